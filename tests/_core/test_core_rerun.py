"""Transformed code that hands the frame back, and frames that are only shown."""

from __future__ import annotations

import functools
import time
import types
from typing import Any

import pytest
import torch

from argand._core import _C


def _handing_back(*arguments: Any, after: Any = None) -> Any:
    """A callback whose entry runs the frame's own code with these arguments."""
    given = list(arguments)

    def callback(info: _C.FrameInfo) -> Any:
        if info.code is not original.__code__:
            return _C.SKIP
        code = compile("def t(a, b): return run_original(given, after)", "<t>", "exec").co_consts[0]
        info.globals.update(run_original=_C.run_original, given=given, after=after)
        return _C.Entry(code, None, None)

    return callback


def original(a: int, b: int) -> float:
    return a / b


def test_frame_runs_with_the_arguments_given() -> None:
    told: list[bool] = []
    assert _C.run_with_callback(_handing_back(6, 3, after=told.append), None, original, (1, 1)) == 2.0
    with pytest.raises(ZeroDivisionError):
        _C.run_with_callback(_handing_back(6, 0, after=told.append), None, original, (1, 1))
    assert told == [True, False]


def test_wrong_arguments_are_an_error() -> None:
    with pytest.raises(SystemError, match="not the arguments of the frame"):
        _C.run_with_callback(_handing_back(6), None, original, (1, 1))
    with pytest.raises(TypeError):
        _C.run_original((), None)  # type: ignore[arg-type]


def test_shown_frame_has_no_caller() -> None:
    frame = _C.new_frame(original.__code__, {"__name__": "shown"})
    assert isinstance(frame, types.FrameType) and frame.f_back is None and frame.f_globals == {"__name__": "shown"}
    with pytest.raises(TypeError):
        _C.new_frame(None, {})  # type: ignore[arg-type]


def test_an_entry_may_leave_its_frame_to_itself() -> None:
    """Once its code has said so, and but while something stands against it; where it stands for the whole frame."""
    asked: list[bool] = []
    against: list[object] = [None]
    ran: list[str] = []

    def own(a: int) -> int:
        ran.append("own")
        return a + 1

    code = compile(
        "def t(a):\n    ran.append('entry')\n    asked.append(prefer(0, unless))\n    return a + 1", "<t>", "exec"
    )
    names = {
        "ran": ran,
        "asked": asked,
        "prefer": _C.prefer_original,
        "unless": functools.partial(against.__getitem__, 0),
    }
    for whole in (False, True):
        ran.clear()
        asked.clear()
        function = types.FunctionType(own.__code__.replace(), names, "own", None, own.__closure__)

        def callback(info: _C.FrameInfo, whole: bool = whole) -> Any:
            guards = _C.GuardTree()
            transformed = code.co_consts[0].replace(co_freevars=info.code.co_freevars)
            return _C.Entry(transformed, guards, None, graph=True, whole=whole)

        for _ in range(3):
            assert _C.run_with_callback(callback, None, function, (1,)) == 2
        assert ran == (["entry", "own", "own"] if whole else ["entry"] * 3)
        assert asked == ([True] if whole else [False] * 3)
    against[0] = 1
    assert _C.run_with_callback(callback, None, function, (1,)) == 2
    assert ran == ["entry", "own", "own", "entry"]
    assert _C.prefer_original(0, None) is False  # called by no transformed code


def test_guards_of_frames_left_to_themselves_are_asked_each_64th_time_of_calls_that_look_alike() -> None:
    """While these leave the frame alone, and no entry was added; a call that looks otherwise is looked at."""
    asked: list[object] = []

    def own(x: object, options: object) -> int:
        return -1

    def kind_of(x: object) -> object:
        return type(x), x == -1.5

    def callback(info: _C.FrameInfo) -> Any:
        guards, kind = _C.GuardTree(), kind_of(info.args[0])
        guards.check(0, "python", lambda x: asked.append(x) or kind_of(x) == kind, [guards.child(0, "local", 0)])
        code = compile("def t(x, _):\n    x == -1.5 or prefer(-1, None)\n    return 1", "<t>", "exec").co_consts[0]
        info.globals.update(prefer=_C.prefer_original)
        return _C.Entry(code, guards, None, graph=True, whole=1)

    function = types.FunctionType(own.__code__.replace(), {})

    def run(*arguments: object) -> tuple[int, int]:
        asked.clear()
        return _C.run_with_callback(callback, None, function, arguments), len(asked)

    assert [run(1.5, ()) for _ in range(2)] == [(1, 0), (-1, 1)]
    assert [run(float(n), ()) for n in range(140)] == [(-1, int(n in (62, 126))) for n in range(140)]
    assert run(1.5, {"a": [0]}) == (-1, 1) and run(2.5, {"a": [0]}) == (-1, 0) and run(1.5, {"a": [1]}) == (-1, 1)
    assert run("", ())[0] == 1  # another entry
    assert run(1.5, ()) == (-1, 2) and run(1.5, ()) == (-1, 0)
    assert [run(-1.5, ())[0] for _ in range(64)] == [-1] * 62 + [1] * 2  # it looks as 1.5 does, and does not leave it
    assert [run(1.5, ()) for _ in range(3)] == [(-1, 2), (-1, 1), (-1, 1)]
    assert [run("", ())[1] for _ in range(3)] == [3, 0, 0]
    x = torch.ones(())
    _C.set_exchange_api(torch.Tensor.__dlpack_c_exchange_api__)
    assert _C.learn_tensor_layout(True)
    assert run(x, ())[0] == 1 and run(x, ())[1] > 0 and run(x, ()) == (-1, 0)
    assert run(x.clone().requires_grad_(), ())[1] > 0  # it looks otherwise


def test_frames_are_left_to_themselves_by_the_sizes_that_vary() -> None:
    """In powers of two; a size that is equal to another counts once, and a stride does not count."""
    ran: list[int] = []
    classes: list[int] = []

    def own(n: int, m: int) -> int:
        return -1

    def runs(n: int, m: int) -> int:
        classes.append(_C.size_class())
        ran.append(n)
        if n < 8:
            assert _C.prefer_original(classes[-1], None)
        return n

    def callback(info: _C.FrameInfo) -> Any:
        if info.code is not function.__code__:
            return None
        guards = _C.GuardTree()
        for place in (0, 1):
            node = guards.child(0, "local", place)
            guards.check_expr((("slot", guards.slot(node, "int")), 0, "ge"))
        code = compile("def t(n, m):\n    return runs(n, m)", "<t>", "exec").co_consts[0]
        return _C.Entry(code, guards, None, graph=True, whole=True)

    function = types.FunctionType(own.__code__.replace(), {"runs": runs})
    calls = [(9, 9), (9, 9), (15, 8), (4, 4), (7, 7), (5, 6), (5, 6), (0, 0), (2**62, 2**61)]
    results = [_C.run_with_callback(callback, None, function, call) for call in calls]
    assert results == [9, 9, 15, 4, -1, 5, -1, 0, 2**62]
    assert classes == [0, 4, 8, 3, 6, 0, 63]
    for wrong in (64, -2):
        with pytest.raises(TypeError):
            _C.prefer_original(wrong, None)


@pytest.mark.parametrize(
    "own_takes, parts_take, later, known, fastest",
    [(0, 2, 0, True, "own"), (2, 0, 0, True, "entry"), (0, 2, 10, True, "entry"), (0, 2, 0, False, "entry")],
)
@pytest.mark.parametrize("whole", [1, 2])
def test_frames_own_code_is_timed_beside_transformed_code(
    own_takes: int, parts_take: int, later: int, known: bool, fastest: str, whole: int
) -> None:
    """Once it is known of all graphs what they gain, and how much (ms) after the call; later both are timed again."""
    ran: list[str] = []
    records = later > 0
    takes = {"own": own_takes, "rest": parts_take}

    def spend(part: str) -> None:
        end = time.perf_counter() + takes[part] * 5e-4
        while time.perf_counter() < end:
            pass

    def own(a: int) -> int:
        ran.append("own")
        spend("own")
        return a + 1

    def rest(a: int) -> int:
        raise AssertionError

    texts = {
        "entry": "def t(a):\n    ran.append('entry')\n    tell(0, unless, later)\n    return rest(a)",
        "rest": "def t(a):\n    spend('rest')\n    known and tell(0, None, 0)\n    return a + 1",
    }
    names: dict[str, Any] = {
        "ran": ran, "tell": _C.prefer_original, "later": later * 10**6, "known": known, "spend": spend,
        "unless": functools.partial([None].__getitem__, 0) if records else None,
    }  # fmt: skip
    functions = {
        part: types.FunctionType(function.__code__.replace(co_name=part), names, part, None, function.__closure__)
        for part, function in (("entry", own), ("rest", rest))
    }
    names["rest"] = functions["rest"]

    def callback(info: _C.FrameInfo) -> Any:
        part = info.code.co_name
        if part not in texts:
            return _C.SKIP
        code = compile(texts[part], "<t>", "exec").co_consts[0].replace(co_freevars=info.code.co_freevars)
        resumed = part == "rest"
        return _C.Entry(code, _C.GuardTree(), None, graph=True, resumed=resumed, whole=2 if resumed else whole)

    def run(count: int) -> list[str]:
        """What ran."""
        ran.clear()
        for _ in range(count):
            assert _C.run_with_callback(callback, None, functions["entry"], (1,)) == 2
        return list(ran)

    trial = run(60)
    assert trial[:5] == ["entry"] * 5 and ("own" in trial) is (known and (whole == 2 or not records))
    assert run(30).count(fastest) >= 29  # each 64th call may be as before
    if fastest == "own":
        takes.update(own=1, rest=0)
        assert run(1100)[-30:] == ["entry"] * 30


def test_sizes_that_alternate_are_timed_one_after_the_other() -> None:
    ran: list[str] = []

    def own(n: int) -> int:
        ran.append("own")
        return n

    def slow(n: int) -> int:
        ran.append("entry")
        _C.prefer_original(_C.size_class(), None, 0)
        time.sleep(5e-4)
        return n

    def callback(info: _C.FrameInfo) -> Any:
        if info.code is not function.__code__:
            return _C.SKIP
        guards = _C.GuardTree()
        guards.check_expr((("slot", guards.slot(guards.child(0, "local", 0), "int")), 0, "ge"))
        code = compile("def t(n):\n    return slow(n)", "<t>", "exec").co_consts[0]
        return _C.Entry(code.replace(co_freevars=info.code.co_freevars), guards, None, graph=True, whole=1)

    function = types.FunctionType(own.__code__.replace(), {"slow": slow}, "own", None, own.__closure__)
    for _ in range(40):
        assert [_C.run_with_callback(callback, None, function, (n,)) for n in (3, 9)] == [3, 9]
    assert ran[-20:] == ["own"] * 20
