"""What a room may ask of the capture above it: of the interpreter, of the state, of the graph being recorded.

Imports point down, and calls go up through these: a lower room is handed an interpreter, a state or a builder, and
knows of it what stands here. Each class is the interface of one class of the same name: `Interpreter` and `Access` of
`interp.interpreter` and `interp.access`, `CaptureState` of `interp.state`, `GuardSet` of `record.guards`,
`GraphBuilder` of `record.tensors`, `Dynamics` of `sizes.symbolic_state`, `Unbacked` of `sizes.unbacked`; mypy compares.
What a method does stands there; here only of those that have no text of their own there.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import CellType, CodeType, FunctionType
from typing import Any, NoReturn, Protocol

import torch
from torch import fx
from torch.fx.node import Target

from argand.bytecode.per_code import PerCode
from argand.capture.facts.abc_non_members import Unregistered
from argand.capture.facts.code.effort_limits import Patience
from argand.capture.facts.data_dependent_errors import OnData
from argand.capture.facts.exceptions import ExcState, ObservedException
from argand.capture.facts.frames import CodePlace, Frame, LazyLocal, Program, Session
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.overlays import Overlay, Shadow
from argand.capture.facts.sources import Source
from argand.capture.facts.typefacts import TypeFacts
from argand.capture.facts.values.memories import Memories
from argand.capture.facts.values.symbolic import SymbolicNumber, Symbols
from argand.capture.facts.values.symbols import Memory, Nodes, Origin, Place
from argand.capture.facts.values.tainted_values import TaintedText
from argand.capture.facts.values.tensor_info import Dressed, Moved, Scope, TensorInfo
from argand.errors import BreakReason, GraphBreak, UserLine
from argand.graph.dtensors import Layout
from argand.graph.sizes.expr import Expr, Sym
from argand.graph.sizes.relations import Bounds, Relation, Value
from argand.graph.sizes.symbols import SymbolTable


class Access(Protocol):
    """What is asked about objects: is it outer (from before the frame), may native code have it, what stands for it."""

    dynamic: bool
    """There are numbers or sizes that vary."""
    tainted: bool
    """There is a text that only the running program knows."""
    types: TypeFacts
    fast: set[type]
    """Types whose objects are values: native code may have them, and compares, hashes and formats them."""
    settled: frozenset[type]
    """Those of them that no code of the program is bound in."""
    patience: Patience
    number: int
    """Number of the root instruction that is being executed."""
    handled_outside: BaseException | None
    """What `sys.exception()` was where captured code was called."""

    @property
    def state(self) -> CaptureState:
        """The state of this capture."""

    # Tables, by the id of the object, of what the program has made or been told.
    outer: dict[int, Source]
    outer_cells: dict[int, tuple[object, Source]]
    local_cells: dict[int, object]
    local_functions: dict[int, object]
    local_classes: dict[int, type]
    born: dict[int, tuple[object, int]]
    inlined: dict[int, FunctionType]
    odd_keys: dict[int, object]
    lru_caches: dict[int, object]
    cell_values: dict[int, object]
    attr_values: dict[int, dict[str, object]]
    class_values: dict[tuple[int, str], tuple[object, object]]
    module_values: dict[tuple[int, str], object]
    global_values: dict[tuple[int, str], object]
    builtin_names: set[str]
    unregistered: Unregistered | None
    unseen: list[object]

    # ---- what stands for an object, and what is known of it --------------------------------------------------------

    def is_outer(self, obj: object) -> bool: ...
    def source(self, obj: object) -> Source: ...
    def shadow(self, obj: object) -> Any: ...
    def plain(self, obj: object) -> Any: ...
    def origin(self, obj: object) -> object: ...
    def state_has_origin(self, *objs: object) -> bool: ...
    def same_origin(self, a: object, b: object) -> bool: ...
    def pin(self, obj: object) -> None: ...
    def benign(self, obj: object) -> bool: ...
    def is_constant(self, obj: object) -> bool: ...
    def check_known(self, obj: object) -> None: ...
    def is_tensor(self, obj: object) -> bool: ...
    def tensor_attr(self, obj: object, name: str) -> object: ...
    def tensor_setattr(self, obj: object, name: str, value: object) -> None: ...
    def textual(self, obj: object) -> object: ...
    def textual_field(self, obj: object) -> object: ...
    def textual_items(self, obj: object) -> object: ...
    def taint(self, like: object = "", numbers: Sequence[SymbolicNumber] = ()) -> TaintedText: ...
    def refuse_tainted(self, values: Iterable[object]) -> None: ...

    # ---- outer objects, read under guards --------------------------------------------------------------------------

    def load_argument(self, lazy: LazyLocal) -> object: ...
    def load_function(self, fn: Function) -> None: ...
    def load_member(self, member: object) -> object: ...
    def load_class(self, cls: type) -> None: ...
    def read_overlay(self, obj: object, name: str) -> object: ...
    def container_length(self, obj: object) -> int: ...
    def outer_has_key(self, container: Any, key: object) -> bool: ...
    def outer_item(self, container: object, key: object) -> object: ...
    def note_class(self, cls: type) -> None: ...
    def note_local_class(self, cls: type) -> None: ...
    def note_local_function(self, fn: Function) -> None: ...
    def guard_classes(self) -> None: ...
    def guard_functions(self) -> None: ...
    def known_meta(self, meta: type) -> bool: ...
    def renew_facts(self) -> None: ...
    def look_into_sizes(self) -> None: ...

    # ---- native code and torch -------------------------------------------------------------------------------------

    def native(self, fn: Function, /, *args: object, **kwargs: object) -> Any:
        """Call native code for the program: what it may read of its arguments is guarded, or the graph ends."""

    def unread(self, fn: Function, /, *args: object, **kwargs: object) -> Any:
        """As `native`, for code that stores, moves or counts its arguments and does not look into them."""

    def reading(self, what: str, fn: Function, /, *args: object, **kwargs: object) -> Any: ...
    def observe(self, exc: BaseException) -> ObservedException:
        """An exception that native code raised, as the program sees it."""

    def say(self, fn: Function, args: list[object], kwargs: Kwargs) -> None: ...
    def places(self) -> tuple[CodePlace, ...]: ...
    def suspended(self) -> AbstractContextManager[object]: ...
    def wants_torch_call(self, fn: Function, module: str) -> bool: ...
    def is_torch_class(self, cls: type) -> bool: ...
    def torch_call(self, fn: Function, args: list[object], kwargs: Kwargs) -> object: ...
    def special_call(self, fn: Function, args: list[object], kwargs: Kwargs) -> object: ...


class Interpreter(Access, Protocol):
    """What runs the program: Python's protocols, as the program would use them, and the frames."""

    def call(self, fn: object, args: object = (), kwargs: Kwargs | None = None) -> Any:
        """`fn(*args, **kwargs)`."""

    def getattr(self, obj: object, name: str) -> Any:
        """`obj.name`."""

    def try_attr(self, obj: object, name: str) -> object:
        """`getattr(obj, name, NULL)`."""

    def setattr(self, obj: object, name: str, value: object) -> None:
        """`obj.name = value`."""

    def getitem(self, container: object, key: object) -> object:
        """`container[key]`."""

    def truth(self, value: object) -> bool:
        """`bool(value)`."""

    def equal(self, a: object, b: object) -> bool: ...
    def is_callable(self, obj: object) -> bool: ...
    def throw(self, exc: BaseException) -> ObservedException: ...
    def handled(self) -> BaseException | None: ...
    def polyfill(self, fn: object, *args: object) -> Any: ...
    def enter(self, fn: Function, args: Args, kwargs: Kwargs) -> object: ...
    def trampoline(self, fn: Function) -> object: ...
    @property
    def trampoline_type(self) -> type: ...

    frames: list[Frame]
    root: Frame | None
    base_exc: ExcState
    """What is handled where the root frame was called."""
    propagating: BaseException | None
    """An exception of the program on its way through native code."""
    closing: BaseException | None
    """The GeneratorExit of a generator that is being closed."""
    pending: BaseException | None
    """What a finalizer could not raise: the root frame does."""
    generators: weakref.WeakSet[object]
    programs: PerCode[Program]
    policies: dict[int, tuple[Function, CodeType]]
    """Code object by id -> what is done with calls of it."""

    def count_round(self) -> None: ...
    def annotate(self, ending: GraphBreak) -> GraphBreak: ...
    @property
    def session(self) -> Session:
        """What outlives this capture."""

    def run(self, frame: Frame, thrown: BaseException | None = None) -> object: ...


class Guard(Protocol):
    """One check on one source (`record.guards.Guard`)."""

    source: Source | None
    kind: str
    args: Args
    label: str
    position: tuple[CodeType, int] | None
    visible: bool | None


class GuardSet(Protocol):
    """What must hold for a compiled version to be used."""

    dynamics: Dynamics | None
    of_process: str
    operators: set[str]
    of_rank: bool
    registered: list[tuple[type, type]]

    def add(
        self,
        source: Source | None,
        kind: str,
        *args: object,
        position: tuple[CodeType, int] | None = None,
        label: str | None = None,
        shown: bool | None = None,
    ) -> None: ...
    def add_like(self, guard: Guard, source: Source, identity: object) -> None: ...
    def has_like(self, guard: Guard, source: Source, identity: object) -> bool: ...
    def note_run(self, like: object, begin: int, sources: Sequence[Source]) -> None: ...
    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...


class Journal(Protocol):
    """What notes loads and recorded calls (`record.journal`)."""

    busy: bool

    def load(self, source: Source, value: object) -> object: ...
    def call(self, func: Function, args: Args, kwargs: Kwargs, whole: bool) -> object: ...


class History(Protocol):
    """What earlier captures of the code have shown (`sizes.symbolic_policy.History`)."""

    exact: bool
    values: dict[str, set[bytes]]
    changing: set[str]
    varying: set[str]
    signs: set[str]
    fixed: set[str]


class Policy(Protocol):
    """Which sizes and numbers vary."""

    automatic: bool
    everything: bool

    def dims(self, source: Source, real: torch.Tensor) -> dict[int, tuple[int | None, int | None] | None]:
        """The dims of a graph input that are to be symbolic."""

    @property
    def history(self) -> History: ...

    def number(self, source: Source, value: object) -> bool:
        """Whether a Python int or float is to be symbolic."""

    def strides(self, source: Source, real: torch.Tensor) -> frozenset[int]: ...
    def unequal(self, left: Place, right: Place) -> bool: ...
    def is_settled(self, source: Source, value: object) -> bool: ...


class Variable(Protocol):
    """A variable of contexts that the frame has set (`natives.process_state.Variable`)."""

    value: object
    tokens: dict[int, tuple[object, object]]

    def hold(self, state: CaptureState, owner: object, value: object) -> None:
        """It holds another value from here on."""


class CaptureState(Protocol):
    """What one capture knows: what was loaded from outside, what is held back, what is to be replayed."""

    globals: dict[str, object]
    builtins: dict[str, object]
    outer: dict[int, Source]
    """Where each outer object was found, by its id."""
    compared: dict[Source, type]
    shadows: dict[int, Shadow]
    """What stands for outer containers, by their ids; then by its own ids, and for `__dict__`s by those of objects."""
    shadow_origin: dict[int, Shadow]
    dict_shadows: dict[int, dict[str, object]]
    overlay: dict[int, Overlay]
    additions: dict[int, Overlay]
    """What was added to containers that have no shadow, by their ids."""
    elements: int  # of the containers in `shadows`
    value_sources: dict[int, tuple[object, list[Source]]]
    effect_order: list[Shadow | Overlay]
    extra_effects: list[tuple[object, list[object], Kwargs]]
    args: tuple[object, ...]
    said: list[tuple[object, list[object], Kwargs, tuple[CodePlace, ...]]]
    """Messages and warnings: before anything is written they are given, so they cannot depend on what is held back."""
    called_at_end: bool
    """Whether weak references with callbacks were made."""
    listener: list[object] | None
    """What is told of the warnings in `said`, as far as that is a list."""
    variables: dict[int, Variable]
    generators: dict[int, torch.Tensor]
    """The state of each `torch.Generator` that was made or drew, by its id."""
    begun: dict[int, tuple[object, object, int]]
    """Generators from outside, by their ids: each, what stands for it, the root instruction that began it."""
    local_objects: set[int]
    namespaces: dict[int, object]
    """Objects that the program made and whose `__dict__` it has read, by the ids of these."""
    tensors: dict[int, TensorInfo]
    inputs_by_real: dict[int, torch.Tensor]
    loads: list[tuple[Source, object]] | None
    """What is loaded from outside, where somebody wants to know, each time that it is."""
    journal: Journal | None
    """Notes what is loaded and recorded, where that may be repeated."""
    like_modules: object
    """`torch_functions.like_modules.Known`, once a module was called."""
    batching: object
    """`torch_functions.higher_order.transforms.Batching` while an object is taken apart for vmap."""
    told_compiling: bool
    """Whether the program asked if it is being compiled, and was told so."""
    stopped: BreakReason | None
    """Why a torch function that native code called last did not run: that code may say something else of it."""
    nested_regions: bool
    """Whether functions were called that are compiled by themselves where nobody compiles their caller."""

    @property
    def alike(self) -> int:
        """`whole` of a `_C.Entry` of a frame in parts: whether its own code, with capture off, does the same."""
        ...

    open_modes: list[tuple[int, Any, object]]
    autocast: tuple[object, ...]
    arrays: Any
    """`arrays.traced_arrays.Arrays`, once there is one."""
    memory: Memory
    """What earlier attempts at the frame have learned of symbols."""
    overriding: bool
    """Whether classes were asked for their `__torch_function__` where the frame began."""
    data_numbers: bool
    """Numbers that are read from tensors stay in the graph."""
    data_sizes: bool  # the same of sizes

    def call_numpy(self, fn: Any, args: tuple[object, ...], kwargs: dict[str, object]) -> object: ...

    @property
    def policy(self) -> Policy | None: ...

    @property
    def interpreter(self) -> Interpreter: ...

    @property
    def graph(self) -> GraphBuilder: ...

    @property
    def guards(self) -> GuardSet: ...

    def position(self) -> tuple[CodeType, int]: ...
    def user_stack(self) -> tuple[UserLine, ...]: ...
    def load_source(self, source: Source, value: object) -> Any: ...
    def note_loaded(self, source: Source, value: object, own: bool) -> None: ...
    def guard(self, source: Source | None, kind: str, *args: object, label: str | None = None) -> None: ...
    def source_of(self, obj: object) -> Source | None: ...
    def is_outer(self, obj: object) -> bool: ...
    def object_by_id(self, obj_id: int) -> object: ...
    def tensor_info(self, tensor: torch.Tensor) -> TensorInfo: ...
    def resolve(self, obj: object) -> Any: ...
    def is_touched(self, obj: object) -> bool: ...
    def shadow(self, obj: object) -> Any: ...
    def deep_resolve(self, obj: object) -> Any: ...
    def item(self, container: object, key: object) -> object: ...
    def refuse_written_names(self, container: object) -> None: ...
    def read_overlay(self, obj: object, name: str) -> object: ...
    def write_overlay(self, obj: object, name: str, value: object) -> None: ...
    def delete_overlay(self, obj: object, name: str) -> None: ...
    def overlay_names(self, obj: object) -> dict[str, object]: ...
    def pending_item(self, container: object, key: object) -> object: ...
    def has_pending_names(self, container: object) -> bool: ...
    def write_global(self, globals_: dict[str, object], name: str, value: object) -> None: ...
    def write_cell(self, cell: CellType, value: object) -> None: ...
    def note_constant(self, place: str) -> None: ...
    def note_local(self, obj: object) -> None: ...
    def keep(self, obj: object) -> None: ...


class GraphBuilder(Protocol):
    """The graph being recorded (`record.tensors.GraphBuilder` says what each field holds)."""

    root: fx.Graph
    graph: fx.Graph
    scopes: list[Scope]
    finished: dict[int, tuple[str, int]]
    entered: list[Any]
    dressed: dict[int, Dressed]
    wearers: dict[int, torch.Tensor]
    undressing: list[int]
    observed: int
    flags_seen: set[int]
    unsure: set[int]
    several: set[int]
    maybe_same: dict[int, torch.Tensor]
    known: list[TensorInfo]
    gradients: dict[int, torch.Tensor | None]
    checkpoints: list[Any]
    checkpoint_reads: dict[tuple[Source | None, str, object], str]
    hooks: list[object]
    asked: dict[int, Callable[[], None]]
    conditions: set[str]
    memories: Memories
    written: set[int]
    staying: dict[int, GraphBreak]
    passed_on: dict[int, frozenset[int]]
    rerun: object
    dual_level: Any
    writing: dict[fx.Node, list[object]]
    effectful: set[fx.Node]
    kept: set[fx.Node]
    tensors: dict[int, TensorInfo]
    inputs: list[TensorInfo]
    input_names: dict[str, int]
    constants: dict[str, torch.Tensor]
    mutated: dict[int, TensorInfo]
    moved: list[Moved]
    flags: dict[int, dict[bool, tuple[TensorInfo, GraphBreak | None]]]
    calls: int
    arguments: tuple[object, ...]
    answered: object
    dynamics: Dynamics | None
    on_data: OnData
    sharded: bool
    nested: bool
    ragged: list[tuple[Source, torch.Tensor]]
    ragged_sizes: dict[int, torch.Tensor]
    layouts: list[tuple[Source, Layout]]
    local_parts: dict[int, list[torch.Tensor]]
    masks: dict[int, tuple[torch.Tensor | None, int]]

    @property
    def state(self) -> CaptureState: ...

    def new_input(self, source: Source, real: torch.Tensor) -> torch.Tensor: ...
    def constant(self, real: torch.Tensor) -> torch.Tensor: ...
    def register(self, tensor: torch.Tensor, node: fx.Node, device: torch.device) -> torch.Tensor: ...
    def node_of(self, info: TensorInfo) -> fx.Node: ...
    def to_node(self, value: object, infos: list[TensorInfo]) -> object:
        """An argument of a call as an argument of its node; `infos` gets what is known of tensors in it."""

    def call(self, func: Function, args: Args, kwargs: Kwargs) -> Any: ...
    def record(
        self,
        func: Function,
        args: Args,
        kwargs: Kwargs,
        *,
        device: torch.device | None = None,
        meta_args: Args | None = None,
        meta_kwargs: Kwargs | None = None,
    ) -> Any: ...
    def compute(
        self,
        func: Function,
        args: Args,
        kwargs: Kwargs,
        infos: list[TensorInfo],
        device: torch.device,
        meta_args: Args | None,
        meta_kwargs: Kwargs | None,
    ) -> Any:
        """The result of a call on stand-ins: nothing is recorded."""

    def compute_dynamic(
        self, func: Function, args: Args, kwargs: Kwargs, infos: list[TensorInfo], device: torch.device, *meta: object
    ) -> tuple[object, list[Any]]: ...
    def finish_call(
        self,
        target: Target,
        args: Args,
        kwargs: Kwargs,
        meta: object,
        device: torch.device,
        writes: bool,
        written: Sequence[torch.Tensor] = (),
    ) -> Any:
        """Make the node of a call whose result on stand-ins is `meta`."""

    def check_staying(self, outputs: Sequence[object]) -> None: ...
    def note_writes(self, written: Iterable[torch.Tensor], func: Function | None = ..., *args: Args) -> None:
        """A call writes to these tensors."""

    def annotate(self, node: fx.Node) -> None: ...
    def effect(self, function: object, args: tuple[Any, ...]) -> fx.Node: ...
    def number_node(self, value: object) -> object: ...
    def item(self, tensor: torch.Tensor) -> object: ...
    def drop_dead(self, graph: fx.Graph) -> None: ...


class Dynamics(Symbols, Protocol):
    """The symbols of one capture attempt, and what must hold of them."""

    table: SymbolTable
    places: dict[Sym, Place]
    required: dict[Relation, object]
    bounded: set[tuple[Expr, torch.device]]

    memory: Memory
    of_both_signs: bool
    unbacked: Unbacked | None

    @property
    def state(self) -> CaptureState: ...

    @property
    def bounds(self) -> Bounds: ...

    def symbol(
        self, place: Place, hint: object, *, low: int | None = 2, high: int | None = None, above: Value = 0
    ) -> object: ...
    def wrap(self, expr: object, hint: object) -> object: ...
    def select(self, name: str, left: object, right: object) -> object: ...
    def require(self, relation: Relation, *, formulas: bool = True) -> None: ...
    def record(self, relation: Relation) -> None: ...
    def learn(self, relation: Relation, asserted: bool = False) -> None: ...
    def give_up(self, symbols: object, why: Relation) -> NoReturn: ...
    def nearer(self) -> None: ...
    def one_sign(self) -> None: ...
    def settle(self) -> None: ...
    def fits(self, value: object) -> bool: ...
    def nodes(self, builder: GraphBuilder) -> Nodes: ...
    def text(self, value: object) -> str: ...


class Unbacked(Protocol):
    """The symbols whose values depend on the data of tensors, and what is known of them."""

    origins: dict[Sym, Origin]
    memo: dict[object, object]

    @property
    def dynamics(self) -> Dynamics: ...

    def new(self, words: str, *, low: int | None = None, high: int | None = None, kind: object = "int") -> Sym: ...
    def found_in(self, node: fx.Node, sizes: list[object]) -> None: ...
    def among(self, *values: object) -> list[Sym]: ...
    def proven(self, relation: Relation) -> bool: ...
    def learn(self, relation: Relation) -> None: ...
    def decide(self, op: str, left: object, right: object) -> Any: ...
    def possible(self, assignment: Mapping[Sym, int | float], symbols: list[Sym]) -> bool: ...
    def undecided(self, relation: Relation) -> GraphBreak: ...
    def needed(self, value: object) -> GraphBreak: ...
    def unfitted(self, what: str, *values: object) -> GraphBreak: ...
