"""What a room may ask of the capture above it: of the interpreter, of the state, of the graph being recorded.

Imports point down, and calls go up through these: a lower room is handed an interpreter, a state or a builder, and
knows of it what stands here. Each class is the interface of one class of the same name: `Interpreter` and `Access` of
`interp.interpreter` and `interp.access`, `CaptureState` of `interp.state`, `GuardSet` of `record.guards`,
`GraphBuilder` of `record.tensors`, `Dynamics` of `sizes.symbolic_state`, `Unbacked` of `sizes.unbacked`; mypy compares.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import CellType, CodeType, FunctionType
from typing import Any, Protocol

import torch
from torch import fx
from torch.fx.node import Target

from argand.capture.facts.code.effort_limits import Patience
from argand.capture.facts.exceptions import ExcState, ObservedException
from argand.capture.facts.frames import Frame, LazyLocal, Program, Session
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.on_data import OnData
from argand.capture.facts.overlays import Overlay, Shadow
from argand.capture.facts.per_code import PerCode
from argand.capture.facts.sources import Source
from argand.capture.facts.typefacts import TypeFacts
from argand.capture.facts.unregistered import Unregistered
from argand.capture.facts.values.symbolic import Symbols
from argand.capture.facts.values.symbols import Memory, Nodes, Origin, Place
from argand.capture.facts.values.tainted import TaintedText
from argand.capture.facts.values.tensor_info import Dressed, Scope, TensorInfo
from argand.errors import GraphBreak, UserLine
from argand.graph.sizes.expr import Expr, Sym
from argand.graph.sizes.relations import Bounds, Relation
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
    lru_caches: dict[int, tuple[object, dict[object, object]]]
    cell_values: dict[int, object]
    attr_values: dict[int, dict[str, object]]
    class_values: dict[tuple[int, str], tuple[object, object]]
    module_values: dict[tuple[int, str], object]
    global_values: dict[tuple[int, str], object]
    builtin_names: set[str]
    unregistered: Unregistered | None
    unseen: list[object]

    # ---- what stands for an object, and what is known of it --------------------------------------------------------

    def is_outer(self, obj: object) -> bool:
        """Whether an object existed before the frame."""

    def source(self, obj: object) -> Source:
        """Where an outer object was found."""

    def shadow(self, obj: object) -> Any:
        """What stands for an outer container; any other object as it is."""

    def plain(self, obj: object) -> Any:
        """An object as native code may have it: outer containers in it, at any depth, replaced by their shadows."""

    def origin(self, obj: object) -> object:
        """The object that a shadow stands for; any other as it is."""

    def state_has_origin(self, *objs: object) -> bool:
        """Whether one of the objects is a shadow."""

    def same_origin(self, a: object, b: object) -> bool:
        """Whether two objects here are one to the program."""

    def pin(self, obj: object) -> None:
        """The program depends on which object this is: on its hash, id or default text."""

    def benign(self, obj: object) -> bool:
        """Whether native code that compares, hashes, orders or formats an object runs no Python of the program."""

    def is_constant(self, obj: object) -> bool:
        """Whether an object is an atom, or a container of atoms."""

    def check_known(self, obj: object) -> None:
        """End the graph for an outer object of a native class that nothing is known of."""

    def is_tensor(self, obj: object) -> bool:
        """Whether an object is the stand-in of a tensor."""

    def tensor_attr(self, obj: object, name: str) -> object:
        """An attribute of a stand-in."""

    def tensor_setattr(self, obj: object, name: str, value: object) -> None:
        """An attribute of a stand-in set."""

    def textual(self, obj: object) -> object:
        """An object for native formatting: parts whose text methods are Python code replaced by proxies."""

    def textual_field(self, obj: object) -> object:
        """The same for formatting that reads what is in the object."""

    def textual_items(self, obj: object) -> object:
        """The same for the items of a container."""

    def taint(self, like: object = "") -> TaintedText:
        """The text of a tensor, or another value that only the running program knows."""

    def refuse_tainted(self, values: Iterable[object]) -> None:
        """End the graph if native code would get such a text, at any depth."""

    # ---- outer objects, read under guards --------------------------------------------------------------------------

    def load_argument(self, lazy: LazyLocal) -> object:
        """An argument of the root frame, read for the first time."""

    def load_function(self, fn: Function) -> None:
        """A function found in a class: it is an outer object from now on."""

    def load_member(self, member: object) -> object:
        """A member of an enum, its name and value guarded."""

    def load_class(self, cls: type) -> None:
        """A class that is written to: it is an outer object from now on."""

    def read_overlay(self, obj: object, name: str) -> object:
        """A pending write of an attribute: the value, DELETED, or NULL if there is none."""

    def container_length(self, obj: object) -> int:
        """`len` of a container."""

    def outer_has_key(self, container: dict[object, object], key: object) -> bool:
        """`key in container` for an outer dict."""

    def outer_item(self, container: object, key: object) -> object:
        """An item of an outer container."""

    def note_class(self, cls: type) -> None:
        """The program relies on attributes of a class: it is guarded that it is not changed."""

    def note_local_class(self, cls: type) -> None:
        """The program has made a class."""

    def note_local_function(self, fn: Function) -> None:
        """The program has made a function."""

    def guard_classes(self) -> None:
        """Guard every class that was asked for anything: at the end of the capture."""

    def guard_functions(self) -> None:
        """Guard the code and the defaults of every function that was looked into: at the end of the capture."""

    def known_meta(self, meta: type) -> bool:
        """Whether instance checks of a metaclass run no code of the program."""

    def renew_facts(self) -> None:
        """A class was changed: build anew what is known of types."""

    # ---- native code and torch -------------------------------------------------------------------------------------

    def native(self, fn: Function, /, *args: object, **kwargs: object) -> Any:
        """Call native code for the program: what it may read of its arguments is guarded, or the graph ends."""

    def unread(self, fn: Function, /, *args: object, **kwargs: object) -> Any:
        """As `native`, for code that stores, moves or counts its arguments and does not look into them."""

    def reading(self, what: str, fn: Function, /, *args: object, **kwargs: object) -> Any:
        """As `native`, for code that only compares, hashes or formats its arguments (`native_reads.READS`)."""

    def observe(self, exc: BaseException) -> ObservedException:
        """An exception that native code raised, as the program sees it."""

    def replay(self, fn: Function, args: list[object], kwargs: Kwargs) -> None:
        """Have a call with constant arguments happen at each run."""

    def suspended(self) -> AbstractContextManager[object]:
        """Inside it torch functions are not recorded."""

    def wants_torch_call(self, fn: Function, module: str) -> bool:
        """Whether a Python function may be torch's."""

    def is_torch_class(self, cls: type) -> bool:
        """Whether calls of a class may be torch's."""

    def torch_call(self, fn: Function, args: list[object], kwargs: Kwargs) -> object:
        """A call that may be torch's: its result, or NotImplemented."""

    def special_call(self, fn: Function, args: list[object], kwargs: Kwargs) -> object:
        """A call of an object that may be torch's."""


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

    def equal(self, a: object, b: object) -> bool:
        """`bool(a == b)`."""

    def is_callable(self, obj: object) -> bool:
        """`callable(obj)`."""

    def throw(self, exc: BaseException) -> ObservedException:
        """An exception that an operation of the program raises: `raise interp.throw(TypeError(...))`."""

    def handled(self) -> BaseException | None:
        """`sys.exception()`."""

    def polyfill(self, fn: object, *args: object) -> Any:
        """Interpret a helper function of argand's on the program's behalf."""

    def enter(self, fn: Function, args: Args, kwargs: Kwargs) -> object:
        """A call from native code: exceptions of the program go into that as they are."""

    def trampoline(self, fn: Function) -> object:
        """A native callable that interprets `fn`; what is not callable stays as it is."""

    @property
    def trampoline_type(self) -> type: ...

    frames: list[Frame]
    root: Frame | None
    base_exc: ExcState
    """What is handled where the root frame was called."""
    propagating: BaseException | None
    """An exception of the program on its way through native code."""
    pending: BaseException | None
    """What a finalizer could not raise: the root frame does."""
    generators: weakref.WeakSet[object]
    programs: PerCode[Program]
    policies: dict[int, tuple[Function, CodeType]]
    """Code object by id -> what is done with calls of it."""

    def count_round(self) -> None:
        """A loop begins its body again, or a function is called."""

    @property
    def session(self) -> Session:
        """What outlives this capture."""

    def run(self, frame: Frame, thrown: BaseException | None = None) -> object:
        """Run a frame until it returns, yields or makes its generator: why it stopped, and `frame.result`."""


class GuardSet(Protocol):
    """What must hold for a compiled version to be used."""

    dynamics: Dynamics | None
    of_process: str

    def add(
        self,
        source: Source | None,
        kind: str,
        *args: object,
        position: tuple[CodeType, int] | None = None,
        label: str | None = None,
        shown: bool | None = None,
    ) -> None:
        """Add a check (kinds: `_core/_C.pyi`, GuardTree.check); an identical one is not added twice."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...


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
    elements: int  # of the containers in `shadows`
    value_sources: dict[int, tuple[object, list[Source]]]
    effect_order: list[Shadow | Overlay]
    extra_effects: list[tuple[object, list[object], Kwargs]]
    local_objects: set[int]
    tensors: dict[int, TensorInfo]
    inputs_by_real: dict[int, torch.Tensor]
    open_modes: list[tuple[int, Any, object]]
    autocast: tuple[object, ...]
    arrays: Any
    """`arrays.traced_arrays.Arrays`, once there is one."""
    memory: Memory | None
    """What earlier attempts at the frame have learned of symbols."""
    data_numbers: bool
    """Numbers that are read from tensors stay in the graph."""
    data_sizes: bool  # the same of sizes

    @property
    def interpreter(self) -> Interpreter: ...

    @property
    def graph(self) -> GraphBuilder: ...

    @property
    def guards(self) -> GuardSet: ...

    def position(self) -> tuple[CodeType, int]:
        """(code, line) of the innermost interpreted frame."""

    def user_stack(self) -> tuple[UserLine, ...]:
        """The user's lines being interpreted, outermost first."""

    def load_source(self, source: Source, value: object) -> Any:
        """Install the guards that make `value`, found at `source`, predictable; returns what goes on the stack."""

    def guard(self, source: Source | None, kind: str, *args: object, label: str | None = None) -> None:
        """Require `kind(*args)` of `source`."""

    def source_of(self, obj: object) -> Source | None:
        """Where an object came from, if it existed before the frame."""

    def is_outer(self, obj: object) -> bool:
        """Whether an object itself (not its shadow) existed before the frame."""

    def object_by_id(self, obj_id: int) -> object:
        """The outer object with this id."""

    def tensor_info(self, tensor: torch.Tensor) -> TensorInfo:
        """What is known of a stand-in."""

    def resolve(self, obj: object) -> Any:
        """The shadow of an object if it has one, else the object."""

    def shadow(self, obj: object) -> Any:
        """The shadow of an outer container, made now if need be; any other object as it is."""

    def deep_resolve(self, obj: object) -> Any:
        """An object with every outer container in it, at any depth, replaced by its shadow."""

    def item(self, container: object, key: object) -> object:
        """An item of an outer container that has no shadow."""

    def refuse_written_names(self, container: object) -> None:
        """End the graph before globals are read as a dict while names of theirs have been written."""

    def read_overlay(self, obj: object, name: str) -> object:
        """The value written to an attribute of an outer object, DELETED, or UNSET."""

    def write_overlay(self, obj: object, name: str, value: object) -> None:
        """Pending `obj.name = value`."""

    def delete_overlay(self, obj: object, name: str) -> None:
        """Pending `del obj.name`."""

    def overlay_names(self, obj: object) -> dict[str, object]:
        """All pending attribute writes of an object."""

    def write_global(self, globals_: dict[str, object], name: str, value: object) -> None:
        """Pending `globals_[name] = value` (DELETED deletes)."""

    def write_cell(self, cell: CellType, value: object) -> None:
        """Pending write of the contents of an outer cell (DELETED empties it)."""

    def note_constant(self, place: str) -> None:
        """A number that varies is needed as a constant: it is one from the beginning next time."""

    def keep(self, obj: object) -> None:
        """Keep an object alive as long as the capture: its id is in use."""


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
    maybe_same: dict[int, torch.Tensor]
    gradients: dict[int, torch.Tensor | None]
    writing: set[fx.Node]
    effectful: set[fx.Node]
    kept: set[fx.Node]
    tensors: dict[int, TensorInfo]
    inputs: list[TensorInfo]
    input_names: dict[str, int]
    constants: dict[str, torch.Tensor]
    mutated: dict[int, TensorInfo]
    calls: int
    arguments: tuple[object, ...]
    dynamics: Dynamics | None
    on_data: OnData

    @property
    def state(self) -> CaptureState: ...

    def new_input(self, source: Source, real: torch.Tensor) -> torch.Tensor:
        """A placeholder for a tensor that existed before the frame; returns its stand-in."""

    def constant(self, real: torch.Tensor) -> torch.Tensor:
        """A tensor that the graph itself holds."""

    def register(self, tensor: torch.Tensor, node: fx.Node, device: torch.device) -> torch.Tensor:
        """Make `tensor` the stand-in of `node`'s value."""

    def node_of(self, info: TensorInfo) -> fx.Node:
        """The node that stands for a tensor in the graph being recorded."""

    def to_node(self, value: object, infos: list[TensorInfo]) -> object:
        """An argument of a call as an argument of its node; `infos` gets what is known of tensors in it."""

    def call(self, func: Function, args: Args, kwargs: Kwargs) -> Any:
        """Record a torch call and return its result: stand-ins for tensors, real values for everything else."""

    def record(
        self,
        func: Function,
        args: Args,
        kwargs: Kwargs,
        *,
        device: torch.device | None = None,
        meta_args: Args | None = None,
        meta_kwargs: Kwargs | None = None,
    ) -> Any:
        """The general case of `call`."""

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
    ) -> tuple[object, list[Any]]:
        """The same at the sizes of this call and at the probes."""

    def finish_call(
        self, target: Target, args: Args, kwargs: Kwargs, meta: object, device: torch.device, writes: bool
    ) -> Any:
        """Make the node of a call whose result on stand-ins is `meta`."""

    def note_mutation(self, args: Args, kwargs: Kwargs) -> None:
        """A call writes to its first argument or to `out`."""

    def annotate(self, node: fx.Node) -> None:
        """Note where in the program an operation stands."""

    def number_node(self, value: object) -> object:
        """The node of a symbolic number."""

    def item(self, tensor: torch.Tensor) -> object:
        """The value of a tensor as a symbolic number; NotImplemented where capture does not have it."""

    def drop_dead(self, graph: fx.Graph) -> None:
        """Erase the operations whose results nobody needs."""


class Dynamics(Symbols, Protocol):
    """The symbols of one capture attempt, and what must hold of them."""

    table: SymbolTable
    places: dict[Sym, Place]
    required: dict[Relation, object]
    bounded: set[tuple[Expr, int]]

    memory: Memory
    unbacked: Unbacked | None

    @property
    def state(self) -> CaptureState: ...

    @property
    def bounds(self) -> Bounds: ...

    def symbol(self, place: Place, hint: object, *, low: int | None = 2, high: int | None = None) -> object:
        """The expression for the number found at `place`; the number itself where it is to be a constant."""

    def wrap(self, expr: object, hint: object) -> object:
        """An expression as the program sees it: a symbolic number, or the plain one if nothing varies."""

    def select(self, name: str, left: object, right: object) -> object:
        """`min` or `max` of two numbers, decided by a guard."""

    def require(self, relation: Relation) -> None:
        """Guard a condition that holds in the call at hand; probes must meet it too."""

    def record(self, relation: Relation) -> None:
        """Guard a condition that says nothing to probes."""

    def learn(self, relation: Relation, asserted: bool = False) -> None:
        """Probes must meet a condition: interpret the frame again."""

    def give_up(self, symbols: object, why: Relation) -> None:
        """These symbols are constants after all: interpret the frame again."""

    def nearer(self) -> None:
        """Interpret the frame again with probes nearer to the sizes of the call, where there are any."""

    def nodes(self, builder: GraphBuilder) -> Nodes:
        """The scalar nodes of the graph."""

    def text(self, value: object) -> str:
        """An expression or condition in the user's terms."""


class Unbacked(Protocol):
    """The symbols whose values depend on the data of tensors, and what is known of them."""

    origins: dict[Sym, Origin]
    memo: dict[object, object]

    @property
    def dynamics(self) -> Dynamics: ...

    def new(self, words: str, *, low: int | None = None, high: int | None = None, kind: object = "int") -> Sym:
        """A symbol; `words` say what it is, `low` and `high` what its value is for certain."""

    def found_in(self, node: fx.Node, sizes: list[object]) -> None:
        """The tensor of `node` has these sizes."""

    def among(self, *values: object) -> list[Sym]:
        """The unbacked symbols that expressions or conditions depend on."""

    def proven(self, relation: Relation) -> bool:
        """Whether the condition (of integers) holds for certain."""

    def learn(self, relation: Relation) -> None:
        """From here on the condition holds: the program raises otherwise."""

    def decide(self, op: str, left: object, right: object) -> Any:
        """Whether `left op right`, where facts prove it either way; else a SymbolicBool."""

    def possible(self, assignment: Mapping[Sym, int | float], symbols: list[Sym]) -> bool:
        """Whether an assignment meets what is known."""

    def undecided(self, relation: Relation) -> GraphBreak:
        """The break for a condition that nothing is known of."""

    def needed(self, value: object) -> GraphBreak:
        """The break for a use of the number itself."""

    def unfitted(self, what: str, *values: object) -> GraphBreak:
        """The break for an operation of which nobody knows what it does for all values."""
