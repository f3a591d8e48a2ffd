"""The C core of argand: PEP 523 frame hook, per-code entry cache, guard trees, tensor metadata, kernel launcher.

Nothing in here imports torch, and nothing here knows what a graph is. Plain Python objects cross the boundary.
"""

from collections.abc import Callable, Sequence
from types import CellType, CodeType, FrameType, FunctionType
from typing import Any, Final, TypeAlias, TypeVar, final, overload

_T = TypeVar("_T")

# ---- Frame hook ------------------------------------------------------------------------------------------------------

@final
class Sentinel:
    """The type of the values a callback can answer instead of an `Entry`."""

    name: Final[str]

SKIP: Final[Sentinel]
"""Callback answer: run this code eagerly from now on under this key; frames that it calls are still hooked."""
SKIP_RECURSIVE: Final[Sentinel]
"""Callback answer: as SKIP, and nothing called from this code is hooked either."""
RUN_ONLY: Final[Sentinel]
"""Callback answer: keep using the entries that exist under this key; a miss runs eagerly, the callback is not asked."""

@final
class FrameInfo:
    """What the callback is told about a frame that matched no entry. All attributes are read-only."""

    code: Final[CodeType]
    func: Final[FunctionType]
    globals: Final[dict[str, Any]]
    builtins: Final[dict[str, Any]]
    closure: Final[tuple[CellType, ...] | None]
    @property
    def args(self) -> tuple[Any, ...]:
        """Raw arguments in localsplus order: positional, keyword-only, then the *args tuple, then the **kwargs dict."""
    @property
    def entries(self) -> int:
        """How many live entries this code holds for the current key."""
    @property
    def wasted(self) -> int:
        """How many entries were dropped now, because an object of theirs is gone, that no call ever matched."""
    @property
    def failures(self) -> tuple[tuple[int, str, str], ...]:
        """One (entry index, guard label, detail) for each entry of this key that was tried, in the order tried."""

Answer: TypeAlias = Sentinel | Entry | Callable[[], object] | None
"""None runs this call eagerly; so does a Python function, called when the frame returns instead of raising."""
Callback: TypeAlias = Callable[[FrameInfo], Answer]

@final
class Entry:
    """A transformed code object and the guards under which it may stand in for the frame's own code.

    Args:
        code: takes exactly the frame's raw arguments (`FrameInfo.args`) as positional parameters, and no others; has as
            many free variables as the original; is no generator. It will never be captured itself.
        guards: the guard tree; None makes an entry that runs once and is not stored.
        key: compared by identity with the key of the region.
        payload: any object; kept alive with the entry.
        label: the name of its runs in torch's profiler (`set_profiler`).
        globals: the only globals in which the code runs (known by its address): those into which its names were put.
        graph: the code calls a graph.
        resumed: the code goes on where a graph broke. When such an entry without a graph has run 1,000 times in a
            thread and none with a graph in between, it is a loop of plain Python: the code that it stands in for is
            left alone (SKIP) from then on.
        whole: 1: the frame's own code, with capture off, does the same (`prefer_original`); 2: with others; 0: not.

    Raises:
        TypeError: a wrong type, or code of the wrong shape.
    """

    def __init__(
        self,
        code: CodeType,
        guards: GuardTree | None,
        key: object,
        payload: object = None,
        label: str = ...,
        globals: dict[str, Any] = ...,
        graph: bool = False,
        resumed: bool = False,
        whole: int = 0,
    ) -> None: ...
    code: Final[CodeType]
    guards: Final[GuardTree | None]
    key: Final[Any]
    payload: Final[Any]
    label: Final[str | None]
    @property
    def hits(self) -> int:
        """How often the guards matched (the run right after its making is not counted)."""
    @property
    def last_failure(self) -> tuple[int, str, str] | None:
        """(guard index, label, detail) of the last time these guards were the reason for asking the callback."""
    @property
    def alive(self) -> bool:
        """False once an object that the guards refer to weakly is gone: the entry can never match again."""

@final
class Region:
    """A callable that runs `fn` as `run_with_callback(callback, key, fn, args, kwargs)` does.

    Binds like a function when found on a class. Has a `__dict__`, so `functools.update_wrapper` works on it.
    """

    def __init__(self, callback: Callback | None, key: object, fn: Callable[..., Any]) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    @overload
    def __get__(self, instance: None, owner: type, /) -> Region: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None, /) -> Callable[..., Any]: ...
    callback: Final[Callback | None]
    key: Final[Any]
    fn: Final[Callable[..., Any]]

def forward_alone(compiled: object, plain: object, global_hooks: dict[str, Any], /) -> Any:
    """What a call of a compiled module comes to: its compiled forward; None where there is more (hooks, hosts)."""

def run_with_callback(
    callback: Callback | None,
    key: object,
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    /,
) -> Any:
    """Calls `fn(*args, **kwargs)` with this thread's frames answered by `callback` under `key`.

    `callback=None` switches capture off inside. The state before is restored however fn ends. Guards of code seen
    before are checked in C; `callback(frame_info)` runs only on a miss, with capture switched off, and answers:

    * None: run this frame eagerly now, remember nothing;
    * `SKIP`, `SKIP_RECURSIVE`, `RUN_ONLY`: remembered for this code and key;
    * an `Entry`: stored in front and run without evaluating its guards (guards None: run once, not stored).

    An exception from the callback goes to whoever called the frame. Any other answer raises TypeError there.
    """

def set_callback(callback: Callback | None, key: object = None, /) -> tuple[Callback | None, Any]:
    """Sets this thread's callback and key until set again; returns the pair before. Prefer `run_with_callback`."""

def take_inputs() -> tuple[Any, ...]:
    """The values of the nodes that the guards of the running entry collect (`GuardTree.collect`), once per run.

    For transformed code: called before anything else in it, it gives what the guards have just looked at, so that a
    thousand parameters need not be loaded again. RuntimeError when there is nothing to take.
    """

def get_callback() -> tuple[Callback | None, Any]:
    """This thread's current callback and key. While a callback runs: (None, None)."""

def call_with_list(fn: Callable[..., Any], arguments: list[Any], /) -> Any:
    """`fn(*arguments)`. The list is emptied. Where `fn` is a Python function or a bound method of one, or a region
    without callback that calls one, its items live as long as that function keeps them; otherwise until the call
    returns. Raises TypeError for anything but a callable and a list."""

def call_in_place(fn: Callable[..., Any], arguments: list[Any], /) -> Any:
    """`call_with_list`, for the rest of a frame in a function of its own: until that returns, the frame that calls this
    is not on the stack, so what asks for its caller (`warnings`, `logging`) is told of the one before it."""

def call_with_inputs(fn: Callable[..., Any], /) -> Any:
    """`fn(*take_inputs())`, whose arguments live as long as `fn` keeps them (see `call_with_list`)."""

def run_original(arguments: list[Any], after: Callable[[bool], object] | None, /) -> object:
    """What transformed code returns to have the frame's own code run in its place, with capture off.

    Args:
        arguments: the frame's raw arguments (see `FrameInfo.args`).
        after: told at the end whether that code returned (True) or raised.

    For transformed code that has done nothing yet: the frame starts from the beginning.
    """

def size_class() -> int:
    """How large the call is whose guards held last, in whatever thread, from 0 to 63: to measure by, not to rely on.

    The sizes and ints that its guards compare, each counted once, in powers of two. 0 where they compare none, and in a
    call that was captured.
    """

def prefer_original(size_class: int, unless: Callable[[], object] | None, gain_later: int = -1, /) -> bool:
    """From its next run on, the entry whose code calls this has the frame's own code run instead, with capture off.

    Args:
        size_class: of the calls in which it does (`size_class`); -1: in all.
        unless: a function of C; whenever it gives anything but None the entry's code runs.
        gain_later: of a graph that is faster than eager's kernels, ns that it gains in the backward; it runs on.

    False, and the entry's code runs on, where the innermost transformed code on the stack is none of an entry that is
    `whole` (1). Of such an entry, and of one of which that is 2 and which is not `resumed`, once all graphs that ran in
    it were said to be slower or faster, some runs are by the frame's own code, to time both; then all if it was faster.
    """

def new_frame(code: CodeType, globals: dict[str, Any], /) -> FrameType:
    """A frame for tracebacks to show: it never runs, and keeps neither a caller nor locals alive."""

def set_exception_filter(filter: Callable[[BaseException], object] | None, /) -> None:
    """`filter(exception)` is called for each exception that leaves a region that has a callback, before its caller's
    frame joins the traceback; it may set `__traceback__`. What it raises is dropped. None: nobody is called."""

def set_tracers(
    code_reader: Callable[[], object], trace_state: Callable[[], object], trace_reader: Callable[[], object], /
) -> None:
    """Who is asked when a tracer takes hold of a region: `code_reader()` when it is asked for `__code__`, which it has
    not, `trace_reader()` when it is called while `trace_state()` is not None. Both may refuse by raising."""

def set_other_compiler(set_callback: Callable[[Any], Any] | None, /) -> None:
    """`set_callback(callback)` sets another frame hook's callback of this thread and returns the one before.

    That hook is off in a thread while argand captures there, and within a region that it surrounds.
    """

def set_ambient(snapshot: Callable[[], object], restore: Callable[[Any, BaseException | None], object], /) -> None:
    """What `call_restoring`, and a callback of the hook, are wrapped in: `restore(snapshot(), error or None)`.

    `restore` may be begun several times: it is called again when an exception interrupts it.
    """

def call_restoring(fn: Callable[..., _T], /, *args: Any) -> _T:
    """`fn(*args)` in a copy of the context variables, after which the thread is as before, whatever was raised when."""

def call_locked(lock: Any, fn: Callable[..., _T], /, *args: Any) -> _T:
    """`fn(*args)` while the lock is held. No exception can come between taking or releasing it and the call."""

def call_watched(
    judge: Callable[[FunctionType, tuple[Any, ...]], bool | BaseException | None],
    fn: Callable[..., _T],
    /,
    *args: Any,
    **kwargs: Any,
) -> _T:
    """`fn(*args, **kwargs)`, where each Python function that this starts is first shown to `judge`, with its positional
    arguments: None lets it run with all that it calls, True lets it run and shows what it calls, an exception takes its
    place; that exception is also how the call ends, whatever `fn` made of it."""

def set_profiler(
    space: dict[str, Any],
    flag: str,
    range: Callable[[str, tuple[Any, ...]], Any],
    kernels_wanted: Callable[[], bool],
    /,
) -> None:
    """While `space[flag]` is true, entries that have a label run in `with range(label, ())`.

    So do kernels, with their tensors, where `kernels_wanted()` or their `annotated` is true. A range that raises is
    left out. While the flag is false a call costs a comparison more than without any of this.
    """

def set_regions_enabled(enabled: bool, /) -> bool:
    """False: every region, in every thread, runs as if its callback were None. Returns the setting before."""

def is_hook_installed() -> bool:
    """Whether the interpreter's eval-frame function is argand's at this moment."""

def code_entries(code: CodeType, /) -> list[Entry]:
    """The stored entries of a code object, of every key, in the order in which they are tried."""

def code_mode(code: CodeType, key: object, /) -> Sentinel | None:
    """SKIP, SKIP_RECURSIVE or RUN_ONLY where remembered for (code, key) or for the code under any key; else None."""

def reset_code(code: CodeType, /) -> None:
    """Forgets the entries and remembered answers of a code object. A transformed code stays exempt from capture."""

def skip_code(code: CodeType, /, recursive: bool = False) -> None:
    """Never capture this code under any key (recursive: nor anything that it calls), until `reset_code`."""

def reset_all() -> int:
    """`reset_code` for every code object seen; returns how many held anything."""

# ---- Guards ----------------------------------------------------------------------------------------------------------

@final
class GuardTree:
    """Where guarded values come from (nodes) and what must hold of them (checks). Node 0 is the frame.

    A tree never raises when evaluated: a missing attribute or key, or an exception inside a check, is a failed guard
    (only exceptions outside `Exception`, such as KeyboardInterrupt, propagate). On one node, checks run before children
    are fetched, so a "type" check protects what is below it. Siblings may be visited in any order (cheap ones first).

    Accessors of `child`:

    ==================  ======================================================================================
    "local", i          frame argument i (`FrameInfo.args[i]`); parent must be 0
    "global", name      the frame's globals; parent must be 0
    "builtin", name     the frame's builtins; parent must be 0
    "closure", i        contents of free variable i; parent must be 0
    "const", obj        obj itself (held strongly; classes and functions weakly); parent must be 0
    "attr", name        getattr(value, name)
    "type"              type(value)
    "type_attr", name   raw lookup along the MRO of a class (value must be a class), no descriptors run
    "instance_dict"     the object's own __dict__ ("module_dict" is the same for modules)
    "dict_item", key    raw item of a dict or dict subclass
    "dict_key", i       i-th key of a dict in its order
    "dict_value", i     what is at that key
    "sequence_item", i  raw item of a list or tuple (or subclass); negative counts from the end
    "getitem", key      value[key]
    "call", fn          fn(value)
    "func_code", "func_defaults", "func_kwdefaults"     of a Python function
    "func_closure", i   contents of closure cell i of a Python function
    "cell_contents"     contents of a cell
    "method_self", "method_func"                                        of a bound method
    ==================  ======================================================================================

    Kinds of `check` and their arguments:

    ====================  ====================================================================================
    "type"(cls)           type(value) is cls (held weakly)
    "type_version"(cls)   type(value) is cls, and neither cls nor a base was modified since the check was made. The
                          value itself may be cls (when value is a class that is cls: the class itself is checked).
                          A second argument, a set of names, says which attributes matter: when the class was modified,
                          it holds as long as its MRO is the same and those names, and all that begin with an
                          underscore, have the values they had in each class of it (atoms by value, others by identity)
    "id"(obj)             value is obj (obj held weakly where it can be: dies with it)
    "equals"(const)       same exact type and equal, through containers; NaN equals NaN, 0.0 differs from -0.0.
                          dicts must agree in order too, sets not. The constant is copied when the check is made
    "base_value"(const)   the value is of the type of const (an exact int, float, complex, str or bytes) or of a
                          subclass, and what it holds as one of those is the same, past any method of the subclass
    "is_none"() / "not_none"()
    "len"(n)              len(value) == n
    "dict_keys"(tuple)    the keys of a dict, in order, each exactly equal
    "has_key"(key) / "not_has_key"(key)       of a dict (raw) or anything with `in`
    "has_attr"(name) / "not_has_attr"(name)   runs user code only where a class defines __getattr__/__getattribute__
    "call"(fn, expected)  fn(value) equals expected, compared as "equals" does
    "global_state"(((fn, expected), ...))     each fn() equals expected; on node 0
    "tensor"(cls, dtype, device, requires_grad, dispatch_keys, sizes, strides, flags)
                          see `tensor_guard_args`
    "functions"(functions) Python functions have the code, and the defaults, that they had (defaults that are no
                          numbers, strings or None: as many as they had); on node 0
    "same_object"(other)  value is the value of node `other`
    "distinct"([nodes])   the values of the nodes are pairwise different objects (give it on node 0)
    "python"(fn, [nodes]) fn(*values of the nodes) is truthy (give it on node 0)
    "expr"(program)       the same as `check_expr(program)` (give it on node 0)
    ====================  ====================================================================================
    """

    def __init__(self) -> None: ...
    def child(self, parent: int, accessor: str, arg: object = None, /) -> int:
        """The node reached from `parent` by `accessor` (the same node when asked again).

        Raises:
            ValueError: unknown accessor, no such parent, or an accessor that must hang on the root.
            TypeError: an argument of the wrong type.
        """
    def check(self, node: int, kind: str, /, *args: Any, label: str = ...) -> int:
        """Adds a check and returns its index (its place in `describe()`); an identical repeated check is not added.

        Raises:
            ValueError, TypeError: unknown kind or node, wrong arguments, a constant that cannot be copied.
        """
    def repeat(
        self, first: int, last: int, node: int, other: int, wanted: tuple[int, ...], old: str, new: str, /
    ) -> list[int]:
        """Adds to `other`, and to nodes below it, the checks `first` to `last` of `node` and of nodes below that.

        Nodes that are not below `node` stand for themselves. Labels begin with `new` where they began with `old`.
        Returns the nodes that are to `other` what those `wanted` are to `node`.

        Raises:
            ValueError: no such checks or nodes; a check of classes, functions, expressions or the thread's state.
        """
    def collect(self, nodes: Sequence[int], /) -> None:
        """Hand the values of these nodes (each with a check of its own) to the transformed code: see `take_inputs`."""
    def slot(
        self, node: int, kind: str, dim: int = ..., /, *, name: str | None = None, hint: float | None = None
    ) -> int:
        """The slot of a number, for programs of `check_expr` (the same slot when asked again).

        `kind`: "size" or "stride" of a tensor at `dim`; "int", exactly int (not bool) and within 64 bits; "float",
        exactly float. `name` and `hint` (what it is now) are for failure texts only: `L['x'].size()[0] was 8, is 10`. A
        value that has no such number (no tensor, too few dims) fails the first expression that uses the slot. Open a
        dim in the node's "tensor" check (None in its sizes or strides), or it is compared there as well.
        """
    def check_expr(self, program: tuple[Any, ...], /, *, label: str = ...) -> int:
        """Adds the check that an expression over slots and constants is true; it is evaluated after every other guard.

        A program is a flat tuple in postfix order: ints, floats and bools are constants, `("slot", n)` is a slot, a
        string is an operator. `(("slot", 0), 8, "mod", 0, "eq")` is `s0 % 8 == 0`. Operators, left operand first:

        * "add" "sub" "mul" "floordiv" "mod" "truediv" of two numbers; "min" "max" of two ints or two floats;
        * "eq" "ne" "lt" "le" "gt" "ge" of two numbers (exact between int and float);
        * "and" "or" "not" of truth values (every operand is computed: one that fails makes the guard fail);
        * "neg" "abs" "float" "sqrt" of a number; "floor" "ceil" "trunc" "round" (half to even) give an int.

        Semantics are Python's. What Python would raise for (division by zero, square root of a negative, rounding NaN
        or infinity) and every int beyond 64 bits on the way ("truediv" of ints: beyond 2**53) makes the guard fail.

        Raises:
            TypeError, ValueError: no tuple, unknown operator or slot, operands missing or of the wrong kind, or a
                program that does not leave exactly one truth value.
        """
    def evaluate(
        self,
        args: tuple[Any, ...],
        globals: dict[str, Any] | None = None,
        builtins: dict[str, Any] | None = None,
        closure: tuple[CellType, ...] | None = None,
    ) -> bool | tuple[int, str, str]:
        """True, or (guard index, label, detail) of the first guard that failed. Never False."""
    def matches(
        self,
        args: tuple[Any, ...],
        globals: dict[str, Any] | None = None,
        builtins: dict[str, Any] | None = None,
        closure: tuple[CellType, ...] | None = None,
    ) -> bool:
        """Like `evaluate`, without making the explanation (what the hook does)."""
    def describe(self) -> list[str]:
        """The labels of the checks, in the order in which they were added."""
    def source(self, node: int, /) -> str:
        """A readable path of a node, such as `local[0].attr('weight')`."""
    def checks_of(self, node: int, /) -> list[tuple[int, str]]:
        """(index, kind) of the checks on a node."""
    num_guards: Final[int]
    num_nodes: Final[int]
    @property
    def dead(self) -> bool:
        """True once an object held weakly by an "id" or "type" check is gone: the tree can never match again."""

def generic_attributes(cls: type, /) -> tuple[bool, bool]:
    """Whether a class of C reads, and whether it writes attributes of its objects as `object` does: in the class, then
    in the object's own dict, and nowhere else. False for classes with such methods in Python, too."""

def exact_equal(a: object, b: object, /) -> bool:
    """The comparison of the "equals" check."""

def type_name(type: type, /) -> str:
    """The name of a type in CPython's own messages: `functools.partial`, but `int`."""

def set_in_object(object: object, attributes: dict[str, object], /) -> bool:
    """Sets them past any `__setattr__`, without making the object's `__dict__` where that is not there yet; False, and
    nothing is set, where one of the names is not a str or the class has a descriptor that would be asked."""

# ---- Tensors ---------------------------------------------------------------------------------------------------------

TENSOR_INFERENCE: Final[int]
"""Flag of a "tensor" check: the tensor must be an inference tensor (without it: must not be one)."""
TENSOR_ANY_INFERENCE: Final[int]
"""Flag of a "tensor" check: do not look whether the tensor is an inference tensor."""

def set_exchange_api(capsule: object, tensor_type: type | None = None, /) -> None:
    """Registers `torch.Tensor.__dlpack_c_exchange_api__`. Call once, cheap to repeat. `tensor_type`: torch.Tensor.

    Raises:
        ValueError: not such a capsule, or of another major version.
        RuntimeError: tensor_type left out and torch not imported.
    """

def has_exchange_api() -> bool: ...
def tensor_guard_args(
    tensor: Any,
    dynamic_dims: Sequence[int] | None = (),
    dynamic_strides: Sequence[int] | None = (),
    /,
) -> tuple[Any, ...]:
    """The arguments of a "tensor" check that `tensor` passes: `tree.check(n, "tensor", *tensor_guard_args(t))`.

    `dynamic_dims`: dims whose size is left open; None leaves rank and sizes open. `dynamic_strides` likewise.
    The tuple is (cls, dtype, device, requires_grad, dispatch_keys, sizes, strides, flags). `dispatch_keys` is None for
    a tensor with the key set that every ordinary tensor of this dtype and device has (the check then compares with
    that, and is fast), else the raw key set of a special one (sparse, quantized, conj, neg, nested...), compared
    through attributes. `sizes`/`strides`: a tuple with None in the open places, or None for everything open.
    """

def tensor_layout() -> dict[str, int] | None:
    """Where tensors of this process were found to keep their fields (byte offsets), None when guards ask torch instead.

    Learnt from sample tensors when the first tensor guard is made; used only when every field was found beyond doubt
    (see tensor_layout.c). A tensor guard takes some 10 ns with it and some 1000 ns without.
    """

def learn_tensor_layout(enable: bool, /) -> dict[str, int] | None:
    """Learns the layout again, or (False) forgets it: existing guards then ask torch. Returns `tensor_layout()`."""

def tensor_data_ptr(tensor: Any, /) -> int:
    """Address of the first element. TypeError where it is not a tensor with plain memory."""

def tensor_info(tensor: Any, /) -> tuple[int, int, int, int, int, tuple[int, ...], tuple[int, ...], int]:
    """(DLPack type code, bits, lanes, DLPack device type, device id, sizes, strides, data pointer)."""

# ---- Launcher --------------------------------------------------------------------------------------------------------

@final
class Kernel:
    """`void fn(void **ptrs, const int64_t *ints)` at an address, callable as `kernel(t0, ..., i0, ...)`.

    Args:
        address: of the C function. The caller keeps the library loaded (`owner` is kept alive for that).
        name: for messages and profiles.
        num_tensors: how many tensors (or ints taken as raw addresses, or None for a null pointer) come first.
        num_ints: how many int64 follow.
        release_gil: let other threads run meanwhile (worth it above some microseconds).
        owner: any object to keep alive with the kernel.

    Calling raises TypeError on a wrong number or type of arguments, OverflowError on an int beyond 64 bits.
    """

    def __init__(
        self,
        address: int,
        name: str,
        num_tensors: int,
        num_ints: int,
        release_gil: bool = False,
        owner: object = None,
    ) -> None: ...
    def __call__(self, *args: Any) -> None: ...
    address: Final[int]
    name: Final[str]
    num_tensors: Final[int]
    num_ints: Final[int]
    release_gil: Final[bool]
    owner: Final[Any]
    calls: Final[int]
    annotated: bool
    """Give each call a range in torch's profiler, whatever `set_profiler`'s `kernels_wanted` says."""
    label: str
    """The name of that range; by default `name`."""

class DeviceProduct:
    """A matrix product of fixed sizes by cuBLASLt, called as `product(left, right, [bias,] result, workspace)`.

    Args:
        functions: addresses of cublasLtMatmul, cublasLtMatmulDescSetAttribute, cuCtxGetCurrent, cuCtxPushCurrent and
            cuCtxPopCurrent.
        handles: of the library, of the description, of the layouts of left, right and result, and of the context.
        device: DLPack's type of the device, and its index: where every tensor must be.
        algorithm: what the library's heuristic gave.
        workspace_bytes: that it needs; 0: the workspace may be None.
        bias_attribute: by which the description is told the address of the bias; -1: there is none.
        stream_of: `stream_of(index)` is the address of the current stream.
        otherwise: called with the same arguments where a tensor is elsewhere, or not at a multiple of 16 bytes, and
            after the library refused.
        owner: any object to keep alive with the product.
    """

    def __init__(
        self,
        functions: tuple[int, int, int, int, int],
        handles: tuple[int, int, int, int, int, int],
        device: tuple[int, int],
        algorithm: bytes,
        workspace_bytes: int,
        bias_attribute: int,
        stream_of: Callable[[int], int],
        otherwise: Callable[..., Any],
        owner: object = None,
    ) -> None: ...
    def __call__(self, *args: Any) -> None: ...
    broken: Final[bool]
    calls: Final[int]
    otherwise: Final[Callable[..., Any]]

class DeviceKernel:
    """A function of a GPU, launched as `kernel(gx, gy, gz, t0, ..., i0, ...)` on the device's current stream.

    Args:
        function, context: the driver's handles.
        device: DLPack's type of the device, and its index: where every tensor must be.
        name: for messages and profiles.
        kinds: of each argument: "p" a pointer, "i" 32 bits, "l" 64 bits; pointers come first.
        threads: of one block.
        shared: bytes of shared memory.
        scratch: null pointers that the function takes behind its arguments.
        driver: addresses of cuLaunchKernel, cuCtxGetCurrent, cuCtxPushCurrent and cuCtxPopCurrent.
        stream_of: `stream_of(index)` is the address of the current stream.
        failed: `failed(code, name)` raises what is to be said of a launch that the driver refused.
        unaligned: `unaligned()` makes a kernel for pointers that are no multiples of 16; None when this one takes them.
        owner: any object to keep alive with the kernel.

    Calling raises TypeError on a wrong number or type of arguments, OverflowError on an int that does not fit, and
    ValueError on a tensor of another device or a grid that is too large. An empty grid launches nothing.
    """

    def __init__(
        self,
        function: int,
        context: int,
        device: tuple[int, int],
        name: str,
        kinds: str,
        threads: int,
        shared: int,
        scratch: int,
        driver: tuple[int, int, int, int],
        stream_of: Callable[[int], int],
        failed: Callable[[int, str], Any],
        unaligned: Callable[[], Any] | None = None,
        owner: object = None,
    ) -> None: ...
    def __call__(self, *args: Any) -> None: ...
    name: Final[str]
    num_tensors: Final[int]
    num_ints: Final[int]
    calls: Final[int]
    other: Final[Any]
    annotated: bool
    label: str
