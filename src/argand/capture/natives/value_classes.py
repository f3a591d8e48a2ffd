"""Rows of C classes whose objects are values: dates, Decimals, digests, packed structures, results of system calls."""

from __future__ import annotations

from argand.capture.natives.builtin_methods import read_only
from argand.capture.natives.rows import enter_class_methods, enter_methods, enter_rows
from argand.capture.objects import outer_generators
from argand.capture.objects.call_protocol.native_handlers import pure

# Where the process decides (clocks, its time zone, its locale, the decimal context), the graph breaks: there is no row.
_OF_TIMES = "isoformat utcoffset tzname dst replace"
enter_rows({
    "datetime.date datetime.datetime datetime.time datetime.timedelta datetime.timezone datetime.tzinfo": pure,
    "time.struct_time struct.Struct": pure,
    "os.stat_result os.statvfs_result os.terminal_size os.times_result os.uname_result": pure,
})  # fmt: skip
enter_class_methods({
    "datetime.date datetime.datetime": (pure, "fromordinal fromisoformat fromisocalendar"),
    "datetime.datetime": (pure, "combine"),
    "datetime.time": (pure, "fromisoformat"),
    "decimal.Decimal": (pure, "from_float"),
})  # fmt: skip
enter_methods({
    "datetime.date":
        (read_only, "ctime timetuple isocalendar isoformat isoweekday toordinal weekday replace"),
    "datetime.datetime":
        (read_only, f"{_OF_TIMES} date time timetz ctime timetuple utctimetuple"),
    "datetime.time": (read_only, _OF_TIMES),
    "datetime.timedelta": (read_only, "total_seconds"),
    "datetime.timezone datetime.tzinfo": (read_only, "utcoffset tzname dst fromutc"),
    "decimal.Decimal":
        (read_only, "is_canonical is_finite is_infinite is_nan is_qnan is_snan is_signed is_zero adjusted canonical "
                    "conjugate radix copy_abs copy_negate as_integer_ratio"),
    "struct.Struct": (read_only, "pack unpack unpack_from iter_unpack"),
    "types.GeneratorType": (outer_generators.call_method, "send throw close"),
    "types.CoroutineType": (read_only, "send throw close"),
    "types.AsyncGeneratorType": (read_only, "asend athrow aclose"),
    "types.FrameType": (read_only, "clear"),
    "typing.TypeVar typing.ParamSpec typing.TypeVarTuple": (read_only, "has_default[python>=3.13]"),
})  # fmt: skip
