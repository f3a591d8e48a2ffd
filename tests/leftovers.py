"""What a test may leave in its process that changes what the tests after it see, or how long they take."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

EVALUATOR, TRACE, PROFILE = "another's frame evaluator", "a trace function", "a profile function"
MARKED, VALIDATED = "optimizers that torch.compile leaves alone", "whether distributions validate arguments"
_API = ctypes.pythonapi
_KNOWN = hasattr(_API, "_PyEval_EvalFrameDefault")  # whether this Python tells and takes a frame evaluator
if _KNOWN:
    _INTERPRETER, _CURRENT = _API.PyInterpreterState_Get, _API._PyInterpreterState_GetEvalFrameFunc
    _INTERPRETER.restype = _CURRENT.restype = ctypes.c_void_p
    _CURRENT.argtypes, _API._PyInterpreterState_SetEvalFrameFunc.argtypes = [ctypes.c_void_p], [ctypes.c_void_p] * 2
    _OWN = ctypes.cast(_API._PyEval_EvalFrameDefault, ctypes.c_void_p).value


def _is_anothers() -> bool:
    """Whether frames are evaluated by neither CPython nor argand."""
    core: Any = sys.modules.get("argand._core._C")
    return _KNOWN and _CURRENT(_INTERPRETER()) != _OWN and not (core is not None and core.is_hook_installed())


def take_evaluator_away() -> None:
    """Frames are CPython's again. Torch's own evaluator stays where one of its higher-order operations raises, and then
    every call of Python takes several times as long."""
    if _KNOWN:
        _API._PyInterpreterState_SetEvalFrameFunc(_INTERPRETER(), _OWN)


def state() -> dict[str, Any]:
    """What is as it was before a test, or else left by it, by what it is called."""
    told = {EVALUATOR: _is_anothers(), TRACE: sys.gettrace(), PROFILE: sys.getprofile()}
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_default_dtype"):
        told |= {
            "a dispatch mode": torch._C._len_torch_dispatch_stack(),
            "a function mode": torch._C._len_torch_function_stack(),
            "a grad mode": torch.is_grad_enabled(),
            "a default dtype": torch.get_default_dtype(),
            MARKED: {kind: kind.__dict__["step"] for kind in (torch.optim.LBFGS, torch.optim.SparseAdam)},
            VALIDATED: torch.distributions.Distribution._validate_args,
        }
    return told


def left(before: dict[str, Any]) -> list[str]:
    """What is not as `before`; it is taken back where that is possible.

    Of an evaluator nothing is said: once it was left by an error (`take_evaluator_away`), torch counts one too many of
    those who need it, and leaves it after each of its compiles. Nor of what torch's compiler sets for good where it is
    used for the first time: steps of two optimizers are then its disabled functions, in which argand captures nothing.
    """
    after = state()
    back = {
        EVALUATOR: lambda _: take_evaluator_away(),
        TRACE: sys.settrace,
        PROFILE: sys.setprofile,
        "a grad mode": lambda mode: sys.modules["torch"].set_grad_enabled(mode),
        "a default dtype": lambda dtype: sys.modules["torch"].set_default_dtype(dtype),
        MARKED: lambda steps: [setattr(kind, "step", step) for kind, step in steps.items()],
        VALIDATED: lambda on: sys.modules["torch"].distributions.Distribution.set_default_validate_args(on),
    }
    changed = [name for name, value in before.items() if after[name] != value]
    for name in changed:
        back.get(name, lambda _: None)(before[name])
    return [name for name in changed if name not in (EVALUATOR, MARKED, VALIDATED)]
