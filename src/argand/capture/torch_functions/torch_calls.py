"""What is done with calls into torch: recorded as one operation, answered as a constant, interpreted, or a graph break.

`torch_call` is asked by the interpreter for every callable that belongs to torch (or that the user marked). It answers
NotImplemented for plain Python, which is then interpreted like the user's own code.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from argand import errors
from argand._core import _C
from argand.capture.facts.code import directives
from argand.capture.facts.exceptions import ObservedException
from argand.capture.facts.handlers import ABSENT, Args, Function, Kwargs, enter, names_here
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.kinds import attributes_of, is_a, module_of
from argand.capture.facts.name_tables import public_name
from argand.capture.facts.values.array_value import Traced, needs_values
from argand.capture.metadata import call_targets, trial_runs
from argand.capture.record import generators, numpy_calls
from argand.capture.sizes import dtensors, symbolic_ops
from argand.capture.torch_functions import assumed_constants
from argand.capture.world import native_reads
from argand.graph.compat import COMMUNICATION

Handler: TypeAlias = "Callable[[CaptureState, Any, Args, Kwargs], Any]"

HANDLERS: dict[object, Handler] = {}
NAMED: dict[str, Handler] = {}
"""By "module.name", for functions, and classes of callable objects, of modules that are not imported yet."""
CODES: dict[str, Handler] = {}
"""By "file:qualified name" of the code, for functions of torch that functools.wraps disguises as the user's."""
_C_NAMESPACES: frozenset[int] = frozenset(
    id(getattr(torch._C, name))
    for name in ("_nn", "_fft", "_linalg", "_special", "_sparse", "_nested", "_VariableFunctionsClass")
    if hasattr(torch._C, name)
) | {id(torch._C._VariableFunctions), id(type(torch._C._VariableFunctions))}


def handler(*functions: Any) -> Callable[[Handler], Handler]:
    """Register what is done with calls of `functions`."""

    def register(fn: Handler) -> Handler:
        for function in functions:
            if not _is_programs(_key(function)):
                enter(HANDLERS, _key(function), fn)
        return fn

    return register


def instead(function: Function) -> Handler:
    """Have `function` called, and interpreted, in place of torch's."""
    return lambda state, fn, args, kwargs: state.interpreter.call(function, args, kwargs)


_OWN_FOLDERS = tuple(os.path.dirname(str(module.__file__)) + os.sep for module in (torch, errors))
_WRAPPERS = ("typing_extensions.py", "warnings.py", "contextlib.py", "functools.py")


def _is_programs(function: object) -> bool:
    """Whether a program put a function of its own in place of torch's before capture was imported."""
    if type(function) is not types.FunctionType:
        return False
    path = function.__code__.co_filename
    return not path.startswith(_OWN_FOLDERS) and os.path.basename(path) not in _WRAPPERS


def enter_rows(table: Mapping[str, Handler]) -> None:
    """Enter a table of paths below `torch`, several to a row, and what is done with calls of these."""
    for paths, what in table.items():
        handler(*all_of(paths))(what)


def enter_late(table: Mapping[str, Handler]) -> None:
    """The same for what torch imports late: names of functions, and of classes of callable objects, where they are
    defined."""
    for paths, what in table.items():
        for path in names_here(paths):
            enter(NAMED, f"torch.{path}", what)


def _key(fn: Function) -> Any:
    return fn.__func__ if isinstance(fn, types.MethodType | classmethod | staticmethod) else fn


def find(path: str) -> Any:
    """`torch.<path>`, or None where this torch has no such thing. Imports nothing."""
    value: Any = torch
    for part in path.split("."):
        value = getattr(value, part, None) if not isinstance(value, types.ModuleType) else vars(value).get(part)
        if value is None:
            return None
    return value


def all_of(*paths: str) -> tuple[Any, ...]:
    """`find` of several space-separated paths; those of other versions of torch are marked as `names_here` says."""
    listed = [path for text in paths for path in names_here(text)]
    values = [find(path) for path in listed]
    ABSENT.extend(f"torch.{path}" for path, value in zip(listed, values) if value is None)
    return tuple(value for value in values if value is not None)


# ---------------------------------------------------------------------- classification


def is_overridable(fn: Any) -> bool:
    """Whether a call of `fn` reaches `__torch_function__`: it becomes one node. Not remembered: that would keep the
    objects alive that bound methods and closures refer to."""
    if is_a(fn, types.BuiltinFunctionType):
        owner = fn.__self__
        if owner is None:
            return str(fn.__qualname__).startswith("_VariableFunctionsClass.")
        return id(owner) in _C_NAMESPACES or (
            is_a(owner, type) and owner.__name__ in ("_VariableFunctionsClass", "_VariableFunctions")
        )
    if is_a(fn, types.MethodDescriptorType | types.WrapperDescriptorType):
        return issubclass(torch.Tensor, fn.__objclass__) and fn.__objclass__ is not object
    if is_a(fn, types.FunctionType):
        # Some functions only ask has_torch_function (nn.MultiheadAttention.forward): they are plain Python.
        dispatches = "handle_torch_function" in fn.__code__.co_names and not _only_dispatches(fn)
        # Some that communicate ask it too; a node's metadata come from a call on stand-ins, which must not communicate.
        return dispatches and not str(fn.__module__).startswith("torch.distributed.")
    return is_a(fn, torch._ops.OpOverload | torch._ops.OpOverloadPacket)


def _only_dispatches(fn: types.FunctionType) -> bool:
    """Functions that mention the protocol without being dispatched themselves."""
    halves = ("_unique_impl", "_unique_consecutive_impl")  # torch 2.11 has them ask once more within torch.unique
    return fn.__module__ in ("torch.overrides",) or fn.__name__ in ("__torch_function__", *halves)


_BREAK_MODULES: dict[str, str] = {
    "torch._higher_order_ops": "higher-order operators are not captured",
    "torch.distributed": "distributed communication is not captured",
    **dict.fromkeys(
        (f"torch._ops.{name}" for name in sorted(COMMUNICATION)),
        "communication goes on after it is asked for, and ranks must do the same in the same order",
    ),
    "torch.nn.parallel": "what spreads a module over processes runs eagerly; the module in it is captured",
    "torch.utils.data": "data loading is not captured",
    "torch.utils.tensorboard": "writing files is not captured",
    "torch.multiprocessing": "starting processes is not captured",
    "torch.serialization": "reading and writing files is not captured",
    "torch.autograd.gradcheck": "derivatives taken inside the compiled function are not captured",
    "torch.cuda.random": "the state of random number generators is changed or read",
    "torch.hub": "downloading is not captured",
    "torch.onnx": "exporting is not captured",
    "torch.export": "exporting is not captured",
    "torch.fx": "symbolic tracing is not captured",
    "torch.profiler": "profiling is not captured",
    "torch._dynamo": "torch's own compiler is not captured",
    "torch._inductor": "torch's own compiler is not captured",
    "torch._compile": "the function is marked as not to be compiled",
    "torch.cuda.streams": "streams are not captured",
    "torch.cuda.graphs": "CUDA graphs are not captured",
    "torch._subclasses": "fake tensors are not captured",
    "torch.storage": "tensor storages are not captured",
}


_PLAIN_PYTHON = frozenset((
    "torch._dynamo._trace_wrapped_higher_order_op", "torch._dynamo.external_utils",
    "torch.distributed._functional_collectives", "torch.distributed.tensor.parallel.style",
    "torch.distributed.tensor._dtensor_spec", "torch.distributed.tensor.experimental._func_map",
    "torch.distributed.tensor.placement_types",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
    "torch.export._unlift", "torch.export._tree_utils", "torch.fx._pytree",
))  # fmt: skip
"""Within those, modules with helpers of programs (index functions of attention masks, `torch.compiler.wrap_numpy`,
collectives, hooks of parallel layers): interpreted."""


@functools.lru_cache(maxsize=4096)
def _break_module(module: str) -> str | None:
    while module and module not in _PLAIN_PYTHON:
        if module in _BREAK_MODULES:
            return _BREAK_MODULES[module]
        module = module.rpartition(".")[0]
    return None


def wants(fn: Function, module: str) -> bool:
    """Whether `torch_call` has something to say about a Python function (asked once per code object)."""
    if directives.is_disabled(fn) or directives.is_allowed_in_graph(fn) or directives.is_constant_result(fn):
        return True
    attributes = attributes_of(fn)
    if attributes and ("_torchdynamo_disable" in attributes or "_torchdynamo_orig_callable" in attributes):
        return True
    if _code_handler(fn) is not None:
        return True
    if module == "numpy" or module.startswith("numpy."):
        return True
    if module == "argand" or module.startswith("argand."):
        return True
    if module != "torch" and not module.startswith("torch."):
        return _hashable_handler(fn) is not None
    if f"{module}.{getattr(fn, '__name__', '')}" in NAMED:
        return True
    return _hashable_handler(fn) is not None or is_overridable(fn) or _break_module(module) is not None


def _code_handler(fn: Function) -> Handler | None:
    code = getattr(fn, "__code__", None)
    if code is None:
        return None
    handler = CODES.get(f"{os.path.basename(code.co_filename)}:{code.co_qualname}")
    return handler if handler is not None and os.sep + "torch" + os.sep in code.co_filename else None


def _hashable_handler(fn: Function) -> Handler | None:
    try:
        handler = HANDLERS.get(_key(fn))
        own = isinstance(fn, types.FunctionType) and os.sep + "torch" + os.sep in fn.__code__.co_filename
        if handler is None and own:
            # torch replaces some of its functions by wrappers when its own compiler is first used
            inner = vars(fn).get("__wrapped__")
            handler = None if inner is None else HANDLERS.get(_key(inner))
        return handler
    except TypeError:
        return None


def is_torch_object(fn: Function) -> bool:
    """A callable object (not a function) that `torch_call` decides about."""
    module = module_of(type(fn))
    return module.startswith(("torch.", "argand.")) or module in ("torch", "argand")


# ---------------------------------------------------------------------- the entry


def torch_call(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """Decide a call.

    Arguments:
        fn: function, builtin, class or callable object.

    Returns:
        The result, or NotImplemented when `fn` is to be interpreted as Python (or, for native code, is unknown).

    Raises:
        GraphBreak: the call ends the graph.
    """
    args = tuple(args)
    attributes = attributes_of(fn)
    if attributes and is_a(attributes, dict):
        marked = _marked(state, fn, attributes, args, kwargs)
        if marked is not NotImplemented:
            return marked
    handler = _hashable_handler(fn)
    if handler is not None:
        if state.graph.sharded:
            dtensors.refuse_functions(handler, name_of(fn), args, kwargs)
        result = handler(state, fn, args, kwargs)
        if result is not NotImplemented:
            return result
        if isinstance(fn, types.FunctionType):
            return NotImplemented
    if isinstance(fn, types.FunctionType):
        own = _code_handler(fn)
        if own is not None:
            return own(state, fn, args, kwargs)
    if "numpy" in sys.modules and numpy_calls.is_numpy(fn):
        return numpy_calls.call(state, fn, args, kwargs)
    if isinstance(fn, types.BuiltinFunctionType | types.MethodWrapperType) and isinstance(fn.__self__, torch.Tensor):
        return _observed(state, fn, args, kwargs)
    if is_overridable(fn):
        return _leaf_or_body(state, fn, args, kwargs)
    module = _module_of(fn)
    named = NAMED.get(f"{module}.{getattr(fn, '__name__', '')}")
    if named is not None:
        result = named(state, fn, args, kwargs)
        if result is not NotImplemented:
            return result
    _refuse_part(fn, module)
    if isinstance(fn, types.BuiltinFunctionType) and module.startswith("torch"):
        return _query(state, fn, args, kwargs)
    if is_torch_object(fn) and not isinstance(fn, type | torch.nn.Module):
        return _torch_object(state, fn, args, kwargs)
    return NotImplemented


_WARN = frozenset(("warnings", "_get_softmax_dim"))
"""Names by which functions of torch's warn."""
_BODY_MAY_DO = frozenset(("argument that a graph cannot hold", "result of unknown size"))


def _refuse_part(fn: Function, module: str) -> None:
    """Break the graph where a part of torch is called that is not captured."""
    reason = _break_module(module)
    if reason is not None:
        raise errors.graph_break(
            kind="part of torch that is not captured", context=name_of(fn), explanation=f"{name_of(fn)}: {reason}."
        )


def _leaf_or_body(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """One operation; where a Python function cannot be one (an options object, a value it looks at), its body."""
    if not isinstance(fn, types.FunctionType):
        if is_a(fn, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            _refuse_part(fn, _module_of(fn))
        return _observed(state, fn, args, kwargs)
    if any(type(value) is torch.Generator for value in (*args, *kwargs.values())):
        return NotImplemented
    if not _WARN.isdisjoint(fn.__code__.co_names) and trial_runs.warns(fn, args, kwargs):
        return NotImplemented  # the warning is one of captured code
    try:
        return leaf(state, fn, args, kwargs)
    except errors.GraphBreak as stop:
        if stop.reason.kind not in _BODY_MAY_DO:
            raise
    return NotImplemented


def _module_of(fn: Any) -> str:
    module = getattr(fn, "__module__", None)
    if module is None and isinstance(getattr(fn, "__self__", None), types.ModuleType):
        module = fn.__self__.__name__
    return str(module or "")


def name_of(fn: Function) -> str:
    """How messages call a callable."""
    return public_name(_full_name(fn))


def outside_effects(fn: Function, why: str = "") -> errors.GraphBreak:
    """A call of torch's reads or changes something outside, which must happen at each call."""
    return errors.graph_break(
        kind="torch function with outside effects",
        context=name_of(fn),
        explanation=f"{name_of(fn)} reads or changes something outside the compiled function{why and ': '}{why}.",
    )


def _full_name(fn: Function) -> str:
    qualname = getattr(fn, "__qualname__", None) or getattr(fn, "__name__", None) or type(fn).__qualname__
    module = _module_of(fn)
    return f"{module}.{qualname}" if module and not str(qualname).startswith(module) else str(qualname)


def _observed(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """`leaf` of a function that torch should tell the trace mode about; some (`Tensor.set_`) it runs unannounced."""
    before = state.graph.observed
    result = leaf(state, call_targets.method_for(fn, args, kwargs), args, kwargs)
    if state.graph.observed == before:
        raise errors.graph_break(kind="torch function that cannot be observed", context=name_of(fn))
    return result


def leaf(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """One operation: run under the trace mode, which records it."""
    args = tuple([state.deep_resolve(arg) for arg in args])
    if kwargs:
        kwargs = {key: state.deep_resolve(value) for key, value in kwargs.items()}
    if "dtype" in kwargs:
        kwargs = {**kwargs, "dtype": _as_dtype(kwargs["dtype"])}
    if getattr(fn, "__name__", "") in _TAKE_DTYPES:
        args = tuple([_as_dtype(arg) for arg in args])
    generator = generators.of_call(kwargs)
    if generator is not None:
        return generators.draw(state, fn, args, kwargs, generator)
    if state.graph.dynamics is not None:
        result = symbolic_ops.torch_call(state, fn, args, kwargs)
        if result is not NotImplemented:
            return result
    try:
        return state.interpreter.reading(native_reads.TORCH, fn, *args, **kwargs)
    except ObservedException as observed:
        if not is_a(observed.value, TypeError) or not any(type(v) is Traced for v in (*args, *kwargs.values())):
            raise
        raise needs_values(f"a number that {name_of(fn)} gets") from None


def _as_dtype(value: object) -> object:
    """What a function of torch's takes one of Python's kinds of numbers for, where it asks for a dtype."""
    return _DTYPES.get(value, value) if type(value) is type else value


_TAKE_DTYPES = frozenset(("to", "view", "promote_types", "can_cast"))
"""Functions that take dtypes without a name; what others are given is theirs to refuse, in their words."""
_DTYPES: dict[object, torch.dtype] = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}


def _marked(state: CaptureState, fn: Function, attributes: dict[str, Any], args: Args, kwargs: Kwargs) -> object:
    """Functions that the user, or torch, marked for compilers."""
    original = directives.wrapped_by_compiler(fn)
    if original is not None and directives.is_of_torch(original):
        return state.interpreter.call(original, args, kwargs)
    if attributes.get(directives.DISABLED) is True or directives.is_disabled_by_torch(fn):
        if attributes.get("_torchdynamo_disable_recursive") is False:
            _C.skip_code(attributes["_torchdynamo_orig_callable"].__code__)  # what it calls is captured
        given = attributes.get(directives.REASON) or attributes.get("_torchdynamo_disable_msg")
        raise errors.graph_break(
            kind="call of a function that is not to be compiled",
            context=name_of(fn),
            explanation=f"{name_of(fn)} is marked with argand.disable or torch.compiler.disable"
            + (f": {given}" if given else "."),
        )
    if directives.is_allowed_in_graph(fn):
        try:
            return allowed_in_graph(state, fn, args, kwargs)
        except errors.GraphBreak:
            if is_a(fn, types.FunctionType):
                _C.skip_code(fn.__code__, True)  # Python calls it now, and nothing in it is looked at either
            raise
    if directives.is_constant_result(fn):
        return assumed_constants.call(state, fn, name_of(fn), args, kwargs)
    if original is not None:
        return state.interpreter.call(original, args, kwargs)
    return NotImplemented


def allowed_in_graph(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """A call of a function that is not looked into, as one operation."""
    args = tuple(state.deep_resolve(arg) for arg in args)
    kwargs = {key: state.deep_resolve(value) for key, value in kwargs.items()}
    with torch._C.DisableTorchFunction():
        return state.graph.record(fn, args, kwargs)


def _is_atom(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str | torch.dtype | torch.device | type)


def guarded_constant(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """Call natively; the compiled code is valid while the answer stays."""
    answer = leaf(state, fn, args, kwargs)
    check = functools.partial(fn, *args, **kwargs) if args or kwargs else fn
    state.guards.add(None, "global_state", ((check, answer),), label="GLOBAL_STATE")
    return answer


_QUERY_PREFIXES = ("is_", "get_", "has_", "_is_", "_get_", "_has_", "_are_", "_len_", "_cuda_is", "_cuda_get")


def _query(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """A builtin of torch._C that is no operation: a question is answered and guarded, everything else breaks."""
    if fn.__name__.startswith(_QUERY_PREFIXES) and all(_is_atom(v) for v in (*args, *kwargs.values())):
        answer = fn(*args, **kwargs)
        if _is_atom(answer):
            return guarded_constant(state, fn, args, kwargs)
    raise errors.graph_break(
        kind="torch function that is not known", context=name_of(fn),
        explanation=f"{name_of(fn)} is no operation on tensors, and what it reads or changes is not known.",
    )  # fmt: skip


_AS_DECORATORS = (torch.utils._contextlib._DecoratorContextManager, torch.autocast)
"""Context managers that a function is decorated with."""
# Where torch's callable objects are plain Python code: hooks of spectral norm, weight norm and pruning among them.
_CALLED_AS_CODE = ("torch.distributions.", "torch.nn.utils.")


def _torch_object(state: CaptureState, fn: Any, args: Args, kwargs: Kwargs) -> object:
    """Callable objects of torch: operators, custom operators, scripted functions."""
    cls = type(fn).__name__
    if cls == "CustomOpDef":
        return leaf(state, fn._opoverload, args, kwargs)
    if isinstance(fn, torch.jit.ScriptFunction):
        original = getattr(fn, "_torchdynamo_inline", None)
        if original is not None:
            return state.interpreter.call(original, args, kwargs)
    if cls == "Region":
        if isinstance(fn, _C.Region) and fn.callback is not None:
            state.nested_regions = True
            return state.interpreter.call(fn.fn, args, kwargs)
    if isinstance(fn, types.BuiltinFunctionType | types.MethodWrapperType):
        return NotImplemented
    if isinstance(fn, _AS_DECORATORS) or module_of(type(fn)).startswith(_CALLED_AS_CODE):
        return NotImplemented
    raise errors.graph_break(
        kind="torch object that is not known", context=f"{type(fn).__module__}.{type(fn).__qualname__}",
        explanation=f"Calling a {type(fn).__qualname__} object is not captured.",
    )  # fmt: skip


def special_call(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """For callable objects whose class has `__call__`: torch's own; NotImplemented for the user's."""
    if is_a(fn, torch.nn.Module):
        if module_of(type(fn)) == "torch._dynamo.eval_frame":  # what torch.compile makes of a module
            modules = state.interpreter.getattr(fn, "_modules")
            original = state.item(modules, "_orig_mod") if state.is_outer(modules) else modules["_orig_mod"]
            return state.interpreter.call(original, args, kwargs)
        return NotImplemented
    attributes = attributes_of(fn)
    if attributes and is_a(attributes, dict):
        marked = _marked(state, fn, attributes, args, kwargs)
        if marked is not NotImplemented:
            return marked
    if "numpy" in sys.modules and numpy_calls.is_numpy(fn):
        return numpy_calls.call(state, fn, tuple(args), kwargs)
    if is_torch_object(fn):
        if is_overridable(fn):
            own = _hashable_handler(fn)
            return (own or _observed)(state, fn, tuple(args), kwargs)
        handler = HANDLERS.get(type(fn)) or NAMED.get(f"{module_of(type(fn))}.{type(fn).__qualname__}")
        if handler is not None:
            return handler(state, fn, tuple(args), kwargs)
        return _torch_object(state, fn, tuple(args), kwargs)
    return NotImplemented
