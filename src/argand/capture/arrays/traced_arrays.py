"""numpy arrays traced through torch: numpy decides type, dtype, shape and aliasing, a graph of torch calls the values.

Every call on a `Traced` array is made three times. numpy runs it on arrays of made-up values: what comes out has the
right type, dtype and shape, is a view or is not, and numpy's errors are found. `torch._numpy` (numpy's functions
written with torch's) runs it on tensors of the same made-up values: where its answer is not numpy's the graph ends.
Then it runs on the stand-ins, under the trace mode, which records the torch calls.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch

from argand import errors
from argand.capture.arrays import array_tables as tables
from argand.capture.arrays import numpy_itself
from argand.capture.arrays.array_arguments import (
    REFUSED,
    Array,
    check_power,
    dtype_of,
    dummy,
    flips_of,
    forwards,
    has_mask,
    is_scalar,
    laid_out,
    layout_of,
    leaves,
    no_overlap,
    operand,
    plain,
    refusal,
    running_forwards,
    start_of,
    steps,
    supported,
    tensor_in,
    tensor_of,
    traced_in,
)
from argand.capture.facts import numpy_settings
from argand.capture.facts.handlers import Args, Function, Kwargs
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.optional_packages import numpy
from argand.capture.facts.sources import CallSource, ConstSource, Source
from argand.capture.facts.values.array_value import BINARY, FUNCTIONS, Method, Traced, needs_values
from argand.capture.sizes import symbolic_ops
from argand.capture.torch_functions import torch_calls
from argand.capture.torch_functions.torch_calls import handler
from argand.graph.trees import mapped


def load(state: CaptureState, source: Source, value: object) -> object:
    """The stand-in of an array found outside, or NotImplemented where torch cannot hold it.

    Arguments:
        source: where it is; a ConstSource (a constant of the code) is left alone.
    """
    if type(value) is not numpy.ndarray or isinstance(source, ConstSource) or not supported(value):
        return NotImplemented
    arrays = of(state)
    known = arrays.by_real.get(id(value))
    if known is not None:
        if known._a_source != source:
            state.guards.add(source, "same_object", known._a_source)
        return known
    state.guard(source, "type", numpy.ndarray)
    state.guard(source, "call", layout_of, layout_of(value), label="ARRAY_MATCH")
    with torch._C.DisableTorchFunction():
        tensor = state.graph.new_input(CallSource(source, tensor_of), torch.from_numpy(value))
    traced = arrays.by_real[id(value)] = Traced(arrays, dummy(value.shape, value.strides, value.dtype), tensor, source)
    arrays.real[id(traced)] = value
    state.keep(value)
    return traced


def of(state: CaptureState) -> Arrays:
    """The arrays of a capture."""
    if state.arrays is None:
        state.arrays = Arrays(state)
    arrays: Arrays = state.arrays
    return arrays


def _unchanged(array: object, *args: object, **kwargs: object) -> object:
    return array


class Arrays:
    """The traced arrays of one capture.

    Fields:
        by_real: id of an array from outside -> its stand-in.
        real: id of such a stand-in -> the array.
        recording: torch._numpy runs on stand-ins: it changes torch's default dtype around what it makes of numbers.
    """

    def __init__(self, state: CaptureState) -> None:
        import torch._numpy

        self.state = state
        self.by_real: dict[int, Traced] = {}
        self.real: dict[int, object] = {}
        self.library: Any = torch._numpy
        self.recording = False

    def guard_aliases(self) -> None:
        """Arrays that were traced as several share no memory with each other or with a tensor.

        Raises:
            GraphBreak: they do now.
        """
        held = list(self.by_real.values())
        sources = [array._a_source for array in held]
        if len(held) > 1:
            self.state.guards.add(None, "distinct", sources, label="NO_ALIASING", shown=False)
        if not self.state.graph.written:
            return
        others = [
            info
            for info in self.state.graph.inputs
            if isinstance(info.real, torch.Tensor)  # not a number that varies
            and info.source is not None
            and info.device.type == "cpu"
            and not isinstance(info.source, CallSource)
        ]
        if len(held) + len(others) < 2:
            return
        reals = [*(self.real[id(array)] for array in held), *(info.real for info in others)]
        check = functools.partial(no_overlap, len(held))
        if not check(*reals):
            raise errors.graph_break(
                kind="numpy arrays that share memory",
                context=", ".join(source.name() for source in sources),
                skip_frame=True,
            )
        every: list[object] = [*sources, *(info.source for info in others)]
        self.state.guards.add(None, "python", check, every, label="NO_ALIASING", shown=False)

    def flipped(self, array: Traced) -> object:
        """The values, as they are now, of an array that runs backwards."""
        with torch._C.DisableTorchFunction():
            return self.state.graph.call(torch.flip, (array._a_memory, array._a_flips), {})

    # ---------------------------------------------------------------- calls

    def call(self, fn: Function, args: Args, kwargs: Kwargs) -> Array:
        """A call of numpy's; NotImplemented where no traced array is among the arguments.

        Raises:
            GraphBreak: torch has no equivalent, or the result depends on values.
        """
        if not traced_in((args, kwargs)):
            return NotImplemented
        name = getattr(fn, "__name__", "?")
        bound = getattr(fn, "__self__", None)
        if fn is operator.getitem:
            return self._item_of_constant(*args)
        if isinstance(bound, numpy.ndarray | numpy.generic):
            return self._of_constant(bound, name, args, kwargs)
        if name in tables.METADATA and fn is getattr(numpy, name) and all(a.ndim for a in traced_in((args, kwargs))):
            return self.expect(name, fn, args, kwargs)
        if isinstance(fn, type) and issubclass(fn, numpy.generic) and len(args) == 1 and not kwargs:
            return self._run("astype", fn, lambda given: given.astype(self.library.dtype(name)), args, kwargs)
        written = numpy_itself.text_of(fn)
        if written is None:
            return self._equally(fn, name, args, kwargs)
        if name in ("array", "asarray") and type(args[0]) in (list, tuple):
            return numpy_itself.call(self.state, *written, fn, args, kwargs)
        try:
            return self._equally(fn, name, args, kwargs)
        except errors.GraphBreak as why:
            if why.reason.kind != REFUSED or kwargs.get("out") is not None:
                raise
            return numpy_itself.call(self.state, *written, fn, args, kwargs)

    def _equally(self, fn: Function, name: str, args: Args, kwargs: Kwargs) -> Array:
        """What the function of torch's that does the same gives."""
        other = self.equivalent(fn, name)
        if name in tables.BACKWARDS:
            other = _unchanged  # what runs backwards, numpy says
        elif name == "diag" and args and numpy.ndim(plain(args[0])) == 2:
            other = self.library.diagonal  # a view, as numpy's
        self._check_call(name, args, kwargs)
        kwargs = dict(kwargs)
        out = kwargs.pop("out", None)
        out = out[0] if isinstance(out, tuple) and len(out) == 1 else out
        if out is not None:
            return self._into(name, fn, other, args, kwargs, out)
        return self._run(name, fn, other, args, kwargs)

    def equivalent(self, fn: Function, name: str) -> Function:
        """The function of `torch._numpy` that computes what one of numpy's does.

        Raises:
            GraphBreak: none does.
        """
        module = getattr(fn, "__module__", None) or ""
        owner = self.library
        if module == "numpy.linalg" and name in tables.LINALG:
            owner = self.library.linalg
        elif module == "numpy.fft" and name in tables.FFT:
            owner = self.library.fft
        elif getattr(numpy, name, None) is not fn or name not in (
            tables.UFUNCS if isinstance(fn, numpy.ufunc) else tables.FUNCTIONS
        ):
            raise refusal(name, "torch has no function that is known to do the same")
        other = getattr(owner, name, None)
        if other is None:
            raise refusal(name, "torch has no such function")
        return other

    def _item_of_constant(self, array: Array, key: Traced) -> object:
        """`array[key]` of an array that is a constant of the capture: a copy of its items."""
        if type(array) is not numpy.ndarray or self.state.is_outer(array) or not supported(array) or not key.ndim:
            raise refusal("indexing", "a constant array meets one that the graph computes")
        held = array.copy()
        with torch._C.DisableTorchFunction():
            tensor = self.state.graph.constant(torch.from_numpy(held.copy()))
        return self.item(Traced(self, held, tensor), key)

    def _of_constant(self, array: object, name: str, args: Args, kwargs: Kwargs) -> object:
        """A method of an array that is a constant of the capture, on traced ones."""
        known = BINARY.get(name)
        if known is not None and len(args) == 1 and not kwargs:
            return self.named(known[0], (args[0], array) if known[1] else (array, args[0]))
        raise refusal(name, "a constant array meets one that the graph computes")

    def named(self, ufunc: str, args: Args) -> object:
        """An operator, by the name of its ufunc."""
        if any(isinstance(arg, torch.Tensor) for arg in args):
            raise refusal(ufunc, "an array meets a tensor")
        if any(not operand(arg) for arg in args):
            raise refusal(ufunc, "the other operand is none of numpy's")
        if ufunc == "power":
            check_power(*args)
        if ufunc == "multiply" and any(type(arg) in (list, tuple) for arg in args) and any(map(is_scalar, args)):
            raise refusal(ufunc, "a scalar would repeat a sequence")
        return self.call(getattr(numpy, ufunc), args, {})

    def inplace(self, ufunc: str, target: Traced, other: object) -> object:
        """`target op= other`."""
        if not isinstance(target._a_dummy, numpy.ndarray):
            return self.named(ufunc, (target, other))
        if isinstance(other, torch.Tensor) or not operand(other):
            raise refusal(ufunc, "the other operand is none of numpy's")
        if ufunc == "power":
            check_power(target, other)
        return self.call(getattr(numpy, ufunc), (target, other), {"out": (target,)})

    def method(self, array: Traced, name: str, args: Args, kwargs: Kwargs) -> object:
        """`array.name(*args, **kwargs)`."""
        if name == "fill" and len(args) == 1 and not kwargs:
            self.set_item(array, ..., args[0])
            return None
        if name == "view" and not args and not kwargs:
            return self.item(array, ...)
        if name in tables.OWN_METHODS and "out" not in kwargs:
            function = getattr(numpy.ndarray, name)
            return numpy_itself.call(self.state, f".{name}", tables.OWN_METHODS[name], function, (array, *args), kwargs)
        if name not in tables.METHODS or "out" in kwargs:
            raise needs_values(f"method {name}")
        self._check_call(name, (array, *args), kwargs)
        scalar = not isinstance(array._a_dummy, numpy.ndarray)
        if scalar and name in ("ravel", "flatten", "reshape", "repeat", "transpose"):
            raise refusal(name, "it is called on a scalar")

        def expected(given: object, *rest: object, **named: object) -> object:
            return getattr(given, name)(*rest, **named)

        return self._run(name, expected, expected, (array, *args), kwargs)

    def attribute(self, array: Traced, name: str) -> object:
        """`array.T` and the like."""

        def read(given: object) -> object:
            return getattr(given, name)

        def rewritten(given: Array) -> object:
            return given.tensor.mT if name == "mT" else getattr(given, name)

        return self._run(name, read, rewritten, (array,), {})

    def _check_call(self, name: str, args: Args, kwargs: Kwargs) -> None:
        if name in tables.INTEGER_ERRORS:
            kinds = [dtype_of(arg).kind for arg in args]
            constant = len(args) > 1 and type(args[1]) is int and args[1] > 0
            if all(kind in "biu" for kind in kinds) and not constant:
                raise refusal(name, "what happens with zeros and negative numbers differs for integers")
        if name == "where" and len(args) + len(kwargs) != 3:
            raise needs_values("where with one argument")
        if name == "repeat" and any(traced_in(arg) or isinstance(arg, numpy.ndarray) for arg in args[1:]):
            raise needs_values("repeat with an array of repeats")
        for key in ("where", "casting", "order", "subok", "signature", "like", "initial"):
            if key in kwargs:
                raise refusal(name, f"the argument {key} is given")

    # ---------------------------------------------------------------- items

    def item(self, array: Traced, key: object) -> object:
        """`array[key]`."""
        if has_mask(key):
            raise needs_values("indexing by a mask")

        def get(given: Array, index: object) -> Array:
            return given[index]

        def get_forwards(given: Array, index: object) -> Array:
            return given[forwards(index, given.shape)]

        return self._run("indexing", get, get_forwards, (array, key), {})

    def set_item(self, array: Traced, key: object, value: Array) -> None:
        """`array[key] = value`."""
        if isinstance(value, torch.Tensor) or not operand(value):
            raise refusal("item assignment", "the value is none of numpy's")
        if array._a_flips:
            raise refusal("item assignment", "the array runs backwards through its memory")
        if has_mask(key) and numpy.ndim(plain(value)):
            raise needs_values("assignment of an array to a mask")

        def put(given: Array, index: object, what: object) -> Array:
            given = given.copy()
            given[index] = what
            return given

        self.expect("item assignment", put, (array, key, value), {})
        with torch._C.DisableTorchFunction():
            checked = put(*self._to_library((array, key, value), real=True))
        self._same("item assignment", put(*plain((array, key, value))), checked.tensor)
        given, index, what = self._to_library((array, key, value), real=False)
        given.tensor = given.tensor.data  # torch counts no writes of numpy's
        try:
            given[index] = what
        except (TypeError, ValueError, NotImplementedError, RuntimeError, IndexError) as e:
            raise refusal("item assignment", f"torch says {e}") from e

    def _into(self, name: str, fn: Function, other: Function, args: Args, kwargs: Kwargs, out: object) -> object:
        """A result that is written to an array."""
        if type(out) is not Traced or not isinstance(out._a_dummy, numpy.ndarray) or out._a_flips:
            raise refusal(name, "it writes to an array that is not followed")
        given, named = plain(args), plain(kwargs)
        target = out._a_dummy.copy()
        target.flags.writeable = out._a_dummy.flags.writeable
        try:
            with numpy_settings.quiet():
                fn(*given, **named, out=target)
        except Exception as e:
            raise refusal(name, f"numpy says {e}") from e
        result = self._run(name, fn, other, args, kwargs)
        if type(result) is not Traced or result._a_dummy.shape != out._a_dummy.shape:
            raise refusal(name, "the result and the array that it is written to differ in shape")
        out._a_tensor.data.copy_(result._a_tensor)
        return out

    # ---------------------------------------------------------------- the three runs

    def _run(self, name: str, fn: Function, other: Function, args: Args, kwargs: Kwargs) -> object:
        expected = self.expect(name, fn, args, kwargs)
        integers = all(array._a_dummy.dtype.kind in "biu" for array in traced_in((args, kwargs)))
        if name != "astype" and integers and getattr(getattr(expected, "dtype", None), "kind", "") == "f":
            args, kwargs = self._as_float(args, expected.dtype), self._as_float(kwargs, expected.dtype)
        memory = any(self._views_backwards(part, args) for part in leaves(expected))
        try:
            with torch._C.DisableTorchFunction(), numpy_settings.quiet():
                given, named = (self._to_library(each, real=True, memory=memory) for each in (args, kwargs))
                checked = other(*given, **named)
            self._compare(name, expected, checked, traced_in((args, kwargs)))
            self.recording = True
            given, named = (self._to_library(each, real=False, memory=memory) for each in (args, kwargs))
            result = other(*given, **named)
        except (TypeError, ValueError, NotImplementedError, RuntimeError, IndexError, AttributeError) as e:
            raise refusal(name, f"its torch equivalent says {e}") from e
        finally:
            self.recording = False
        return self._results(name, expected, checked, result, traced_in((args, kwargs)))

    def _views_backwards(self, result: object, args: Args) -> bool:
        """Whether a result is a view of an argument that runs backwards, or runs backwards itself."""
        if not isinstance(result, numpy.ndarray):
            return False
        turned = [array._a_dummy for array in traced_in(args) if array._a_flips]
        return bool(flips_of(result)) or any(numpy.may_share_memory(result, each) for each in turned)

    def _as_float(self, value: object, dtype: Any) -> Array:
        """Integer arrays as the floats that numpy makes of them first; torch would make float32 of them."""

        def as_float(leaf: object) -> object:
            if type(leaf) is not Traced:
                return leaf
            tensor = torch.Tensor.to(leaf._a_tensor, tables.DTYPES[dtype.name])
            return Traced(self, numpy.asarray(leaf._a_dummy).astype(dtype), tensor)

        return mapped(value, as_float)

    def expect(self, name: str, fn: Function, args: Args, kwargs: object) -> Array:
        numpy_settings.rely(self.state, name)
        try:
            with numpy_settings.quiet():
                return fn(*plain(args), **plain(kwargs))
        except Exception as e:  # numpy's error: the program gets it where the call really runs
            raise refusal(name, f"numpy says {type(e).__name__}: {e}") from e

    def _compare(self, name: str, expected: object, checked: Array, inputs: list[Traced]) -> None:
        """Before anything is recorded: whether torch's results are numpy's."""
        if isinstance(expected, tuple | list):
            if not isinstance(checked, tuple | list) or len(checked) != len(expected):
                raise refusal(name, "its torch equivalent gives another number of results")
            for pair in zip(expected, checked):
                self._compare(name, *pair, inputs)
        elif not isinstance(expected, numpy.ndarray | numpy.generic):
            raise needs_values(name)
        elif all(given._a_dummy is not expected for given in inputs):
            ours = tensor_in(checked)
            if ours is None:
                raise refusal(name, "its torch equivalent gives no array")
            self._same(name, running_forwards(expected), ours, name in tables.UNDEFINED)

    def _results(self, name: str, expected: Array, checked: Array, result: Array, inputs: list[Traced]) -> object:
        if isinstance(expected, tuple | list):
            parts = [self._results(name, *three, inputs) for three in zip(expected, checked, result)]
            return parts if type(expected) is list else tuple(parts)
        for given in inputs:
            if given._a_dummy is expected:
                return given
        ours, stand_in = tensor_in(checked), tensor_in(result)
        if ours is None or stand_in is None:
            raise refusal(name, "its torch equivalent gives no array")
        return Traced(self, expected, self._aliased(name, expected, ours, stand_in, inputs), flips=flips_of(expected))

    def _same(self, name: str, expected: Array, got: torch.Tensor, undefined: bool = False) -> None:
        with torch._C.DisableTorchFunction():
            if got.dtype is not tables.DTYPES.get(expected.dtype.name) or tuple(got.shape) != expected.shape:
                raise refusal(name, "its torch equivalent gives another dtype or shape")
            if undefined:
                return
            near = numpy.allclose(got.numpy(), expected, rtol=1e-2, atol=1e-2, equal_nan=expected.dtype.kind in "fc")
        if not near:
            raise refusal(name, "its torch equivalent gives other values")

    def _aliased(
        self, name: str, expected: Array, ours: torch.Tensor, tensor: torch.Tensor, inputs: list[Traced]
    ) -> object:
        """The stand-in of a result: a view where numpy's is one, a copy where numpy's is a copy."""
        if not expected.size:
            return tensor
        with torch._C.DisableTorchFunction():
            theirs = ours.numpy()
        ahead = numpy.asarray(running_forwards(expected))
        alike = steps(theirs) == steps(ahead) and start_of(theirs) == start_of(ahead)
        shares = view = False
        for given in inputs:
            wanted = numpy.may_share_memory(expected, given._a_dummy)
            shared = numpy.may_share_memory(theirs, given._a_dummy)
            if wanted and not (shared and alike):
                raise refusal(name, "numpy gives a view of its argument, torch does not")
            shares, view = shares or (shared and not wanted), view or wanted
        tensor = torch.Tensor.clone(tensor) if shares else tensor
        return tensor if view else laid_out(name, tensor, expected)

    def _to_library(self, value: object, *, real: bool, memory: bool = False) -> Any:
        """Arguments as torch._numpy takes them: tensors of made-up values, or the stand-ins.

        Arguments:
            memory: of an array that runs backwards, the one that runs forwards.
        """
        if type(value) is Traced:
            if not real:
                return self.library.ndarray(value._a_memory if memory else value._a_tensor)
            backwards = value._a_flips and not memory
            array = value._a_dummy.copy() if backwards else running_forwards(value._a_dummy)
            return self.library.ndarray(torch.from_numpy(numpy.asarray(array)))
        if isinstance(value, tuple | list):
            return type(value)([self._to_library(item, real=real, memory=memory) for item in value])
        if isinstance(value, dict):
            return {key: self._to_library(item, real=real, memory=memory) for key, item in value.items()}
        if isinstance(value, numpy.ndarray | numpy.generic):
            if value.dtype.name not in tables.DTYPES:
                raise refusal("array", f"torch has no dtype {value.dtype}")
            with torch._C.DisableTorchFunction():
                held = torch.from_numpy(numpy.array(value))
                return self.library.ndarray(held if real else self.state.graph.constant(held))
        if isinstance(value, numpy.dtype) or (isinstance(value, type) and issubclass(value, numpy.generic)):
            return self.library.dtype(numpy.dtype(value).name)
        return value


@handler(*FUNCTIONS)
def _natively(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """The methods of `Traced` are called, not interpreted."""
    if state.graph.dynamics is not None:
        args, kwargs = symbolic_ops.plain(args), symbolic_ops.plain(kwargs)
    return torch_calls.leaf(state, fn, args, kwargs)


@handler(Method)
def _method(state: CaptureState, fn: Function, args: Args, kwargs: Kwargs) -> object:
    """`array.sum(...)`."""
    args = tuple([state.deep_resolve(arg) for arg in args])
    kwargs = {key: state.deep_resolve(value) for key, value in kwargs.items()}
    if state.graph.dynamics is not None:
        args, kwargs = symbolic_ops.plain(args), symbolic_ops.plain(kwargs)
    return fn(*args, **kwargs)
