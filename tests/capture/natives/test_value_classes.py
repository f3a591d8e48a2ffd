"""Dates, Decimals, structures, texts and tuples that C code makes of values; settings of the process that are asked for."""

from __future__ import annotations

import binascii
import datetime
import decimal
import operator
import os
import re
import struct
import sys
import threading
import time
import types
import unicodedata
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import argand
from argand.errors import Unsupported
from capture.agreement import Agreeing, agree

pytestmark = pytest.mark.filterwarnings("error:argand. capturing")
UTC = datetime.timezone.utc  # noqa: UP017


class Zone(datetime.tzinfo):
    """Of the program's own: what it answers may change."""

    hours = 1

    def utcoffset(self, when: Any) -> Any:
        return datetime.timedelta(hours=self.hours)

    def dst(self, when: Any) -> Any:
        return None

    def tzname(self, when: Any) -> str:
        return f"zone {self.hours}"


class OwnDate(datetime.date):
    def isoformat(self) -> str:
        return "own"


VALUES: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...]]] = {
    "date": (lambda n: datetime.date(2020, n, 3), (1, 2, 13)),
    "datetime": (lambda n: datetime.datetime(2020, 1, n, tzinfo=UTC).isoformat(), (1, 2)),
    "time": (lambda n: datetime.time(n, 30).isoformat(), (1, 25)),
    "timedelta": (lambda n: datetime.timedelta(days=n, hours=1.5).total_seconds(), (1, 2, 0.5)),
    "timezone": (lambda n: datetime.timezone(datetime.timedelta(hours=n)).utcoffset(None), (1, 2)),
    "difference": (lambda d: (datetime.date(2021, 1, 1) - d).days, (datetime.date(2020, 5, 6), OwnDate(2020, 5, 6))),
    "groups of a match": (lambda m: m[1] + m["rest"], [re.match(r"(\d)(?P<rest>.*)", t) for t in ("1a", "1b", "2a")]),
    "ordinal": (lambda n: datetime.date.fromordinal(n).isocalendar().week, (730000, 730001)),
    "iso": (lambda s: datetime.datetime.fromisoformat(s).timetuple().tm_yday, ("2020-02-03", "2021-02-03T04:05")),
    "bad iso": (lambda s: datetime.date.fromisoformat(s), ("2020-2-3", "2020-02-03")),
    "calendar": (lambda n: datetime.date.fromisocalendar(2020, n, 1).ctime(), (1, 2)),
    "combined": (lambda d: datetime.datetime.combine(d, datetime.time(3)).date(), (datetime.date(2020, 5, 6),)),
    "replaced": (lambda d: d.replace(year=1999).isoformat(), (datetime.date(2020, 5, 6), OwnDate(2020, 5, 6))),
    "of a class": (lambda d: (d.isoformat(), d.weekday()), (OwnDate(2020, 5, 6), datetime.date(2020, 5, 6))),
    "decimal": (lambda d: (d.is_zero(), d.adjusted()), (decimal.Decimal(1), decimal.Decimal("0.00"))),
    "ratio": (lambda d: d.as_integer_ratio(), (decimal.Decimal("1.5"), decimal.Decimal("inf"))),
    "struct": (lambda n: struct.Struct("<iH").unpack(struct.Struct("<iH").pack(n, 2)), (1, 2, -1)),
    "struct time": (lambda n: time.struct_time((n, 1, 2, 3, 4, 5, 6, 7, 8)).tm_year, (2020, 2021)),
    "crc": (lambda b: (zlib.crc32(b), zlib.adler32(b, 2)), (b"ab", b"abc")),
    "compressed": (lambda b: zlib.decompress(zlib.compress(b)), (b"ab", b"abc" * 9)),
    "hex": (lambda b: binascii.unhexlify(binascii.hexlify(b)), (b"ab", b"abc")),
    "unicode": (lambda s: (unicodedata.name(s), unicodedata.normalize("NFD", s)), ("a", "\u00e9")),
    "translated": (lambda s: s.translate(str.maketrans("ab", "cd")), ("ab", "abc")),
    "called": (lambda n: operator.call(max, n, 3, key=lambda v: -v), (1, 5)),
    "nothing": (lambda n: types.NoneType(), (1,)),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_is_what_eager_computes(name: str, dynamic: bool) -> None:
    does, givens = VALUES[name]

    def program(x: torch.Tensor, given: Any) -> Any:
        try:
            return x * 2, does(given)
        except (ValueError, OverflowError) as error:
            return x * 2, type(error), str(error)

    agree(program, *[(given,) for given in (*givens, *givens)], dynamic=dynamic)


@pytest.mark.parametrize("name", [name for name in VALUES if name != "of a class"])
def test_is_captured(name: str) -> None:
    does, givens = VALUES[name]

    def program(x: torch.Tensor) -> Any:
        return x * 2, does(givens[0])

    if name == "bad iso":
        return
    whole = argand.compile(program, backend="eager", fullgraph=True)
    assert repr(whole(torch.ones(2))) == repr(program(torch.ones(2)))


def test_a_time_zone_of_the_programs_is_asked_in_each_call() -> None:
    zone = Zone()

    def program(x: torch.Tensor, zone: Any) -> Any:
        when = datetime.datetime(2020, 1, 2, tzinfo=zone)
        return x * 2, when.utcoffset(), when.tzname(), when.isoformat(), str(when)

    agreeing = Agreeing(program)
    for hours in (1, 2, 2, 3):
        zone.hours = hours
        agreeing(zone)


def test_settings_of_the_process_are_guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: torch.Tensor) -> Any:
        return x * 2, os.getcwd(), os.getpid(), sys.getswitchinterval(), sys.get_int_max_str_digits(), os.cpu_count()

    whole = argand.compile(program, backend="eager", fullgraph=True)
    interval = sys.getswitchinterval()
    try:
        for seconds, folder in ((0.005, "/"), (0.007, "/"), (0.007, str(tmp_path))):
            sys.setswitchinterval(seconds)
            monkeypatch.chdir(folder)
            assert repr(whole(torch.ones(1))) == repr(program(torch.ones(1)))
    finally:
        sys.setswitchinterval(interval)


def test_a_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that is a guard may raise where it did not."""

    def program(x: torch.Tensor) -> Any:
        try:
            return x * 2, os.getcwd()
        except FileNotFoundError:
            return x * 3, ""

    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    agreeing = Agreeing(program)
    agreeing()
    folder.rmdir()
    agreeing()
    monkeypatch.chdir(tmp_path)
    agreeing()


def test_exits_are_exceptions_of_the_program() -> None:
    def program(x: torch.Tensor, how: Any) -> Any:
        try:
            sys.exit(*how)
        except SystemExit as error:
            return x * 2, error.code, error.args

    agreeing = Agreeing(program)
    for how in ((), (3,), ("text",), (None,), ((1, 2),), ((3, 4),), (("text",),), ((),), (SystemExit(4),)):
        agreeing(how)


def test_an_exit_leaves_the_function() -> None:
    def program(x: torch.Tensor) -> Any:
        sys.exit(int(x.shape[0]))

    compiled = argand.compile(program, backend="eager")
    for size in (2, 2, 3):
        with pytest.raises(SystemExit) as caught:
            compiled(torch.ones(size))
        assert caught.value.code == size


BREAKS: dict[str, tuple[Callable[[], Any], str]] = {
    "time": (lambda: time.time() > 0, "AG0035"),
    "sleep": (lambda: time.sleep(0), "AG0035"),
    "now": (lambda: datetime.datetime.now().year > 0, "AG0035"),
    "today": (lambda: datetime.date.today().year > 0, "AG0035"),
    "system": (lambda: os.stat(os.curdir) is None, "AG0035"),
    "decimal": (lambda: decimal.Decimal("1.5"), "AG0035"),
    "root": (lambda: DECIMAL.sqrt(), "AG0035"),
    "count of references": (lambda: sys.getrefcount(None) > 0, "AG0035"),
    "thread's own": (lambda: threading.local() is None, "AG0035"),
}
DECIMAL = decimal.Decimal(2)


@pytest.mark.parametrize("name", BREAKS)
def test_what_each_call_must_do_breaks_the_graph(name: str) -> None:
    does, wanted = BREAKS[name]

    def program(x: torch.Tensor) -> Any:
        return x * 2, does()

    agree(program, (), ())
    with pytest.raises(Unsupported, match=wanted):
        argand.compile(program, backend="eager", fullgraph=True)(torch.ones(2))


# ---- tuples of classes that Python cannot make: their elements, fields and unpacking ------------------------------

DAYS = (datetime.date(2021, 2, 3).isocalendar(), datetime.date(2024, 12, 30).isocalendar())
TUPLES: dict[str, tuple[Any, Any]] = {
    "calendar": DAYS,
    "time": (time.gmtime(0), time.gmtime(10**9)),
    "file": (os.stat(os.devnull), os.stat(os.curdir)),
    "return type": tuple(torch.return_types.max((torch.tensor(k), torch.tensor(0))) for k in (1.0, 2.0)),
}


def _unpacked(x: torch.Tensor, t: Any) -> Any:
    first, *rest = t
    return x * first, rest


def _read(x: torch.Tensor, t: Any) -> Any:
    return x * t[0], [item for item in t], t[1:], type(t).__name__, t == tuple(t)


def _returned(x: torch.Tensor, t: Any) -> Any:
    return x * 1, t, {"t": t}


def _from_a_call(x: torch.Tensor, t: Any) -> Any:
    first, *rest = datetime.datetime(2021, 2, 3, 4).isocalendar()
    return x * first, rest


@pytest.mark.parametrize("program", [_unpacked, _read, _returned, _from_a_call])
@pytest.mark.parametrize("name", TUPLES)
def test_tuples_that_only_c_makes(program: Callable[..., Any], name: str) -> None:
    compiled = argand.compile(program, backend="eager")
    x = torch.ones(2)
    for given in (*TUPLES[name], TUPLES[name][0]):
        mine, eager = compiled(x, given), program(x, given)
        assert repr(mine) == repr(eager)
        assert [type(item) for item in mine] == [type(item) for item in eager]


def test_unpacking_such_a_tuple_is_no_failure_of_argand(recwarn: pytest.WarningsRecorder) -> None:
    argand.compile(_unpacked, backend="eager")(torch.ones(2), DAYS[0])
    assert not [warning for warning in recwarn if "inside argand" in str(warning.message)]
