"""CPython's own `test` package with its test methods compiled by argand: nothing that passes plainly may fail.

    python bench/cpython_tests.py [--module test_dict ...] [--test PATTERN] [--json FILE] [--seconds N]

Each module runs in two subprocesses, plainly and with every test method wrapped in `argand.compile(backend="eager")`,
so that the functions it calls are captured inline or by the frame hook. A test that takes too long, or takes its
process down, is recorded as such and the module goes on behind it. The table counts tests, passes and how the test
method itself was captured; what passes plainly and does not under argand is listed, and makes the exit status 1.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fnmatch
import json
import os
import re
import resource
import selectors
import subprocess
import sys
import tempfile
import time
import unittest
import warnings
from collections.abc import Iterator
from typing import Any, TextIO

_NAMES = """
    test_generators test_exceptions test_dict test_list test_set test_contextlib test_dataclasses test_functools
    test_itertools test_math test_with test_patma test_scope test_super test_unpack test_unpack_ex
    test_bool test_int test_int_literal test_float test_complex test_bytes test_str test_unicode test_string test_tuple
    test_range test_slice test_enumerate test_iter test_isinstance test_descr test_descrtut test_class test_property
    test_decorators test_lambda test_grammar test_named_expressions test_positional_only_arg test_keywordonlyarg
    test_extcall test_call test_funcattrs test_global test_opcodes test_augassign test_compare test_richcmp
    test_contains test_bisect test_heapq test_collections test_ordered_dict test_defaultdict test_deque test_userdict
    test_userlist test_userstring test_enum test_typing test_operator test_copy test_weakref test_weakset test_random
    test_statistics test_fractions test_decimal test_numeric_tower test_abstract_numbers test_abc test_types test_raise
    test_exception_group test_except_star test_exception_variations test_yield_from test_genexps test_listcomps
    test_setcomps test_dictcomps test_dictviews test_sort test_format test_fstring test_string_literals test_textwrap
    test_json test_pprint test_reprlib test_dynamicclassattribute test_metaclass test_subclassinit test_memoryview
    test_array test_struct test_hash test_long test_pow test_binop test_unary test_coroutines test_contextlib_async
    test_genericclass test_genericalias test_type_annotations test_type_params test_type_aliases test_typechecks
    test_module test_builtin test_print test_bufio test_baseexception test_pickle test_copyreg test_code test_closures
    test_shelve test_string_literals test_strtod test_stringprep test_colorsys test_cmath test_index test_inspect
    test_keyword test_linecache test_mimetypes test_minidom test_nturl2path test_optparse test_argparse test_getopt
    test_queue test_quopri test_sched test_shlex test_difflib test_fnmatch test_graphlib test_ipaddress test_hashlib
    test_configparser test_csv test_base64 test_html test_time test_calendar test_uuid test_re test_symtable
    test_tokenize test_zlib test_contextvars test_context test_codeop test_eof test_flufl test_complex test_pyclbr
"""
MODULES = _NAMES.split()
"""In the order in which they run; names that this Python does not have are left out."""

EXCLUDED: dict[str, str] = {
    "test_sys_settrace*": "a trace function sees the bytecode that runs, and transformed code has lines of its own",
    "test_coroutines.CoroutineTest.test_for_2": "counts references to a constant, which captured code holds too",
    "test_coroutines.CoroutineTest.test_stack_in_coroutine_throw": "counts the frames of the interpreter's stack",
    "test_coroutines.OriginTrackingTest.*": "looks at the frames that called the function, argand's among them",
    "test_memoryview.Bytes*.test_get*": "counts references to a constant, which captured code holds too",
    "test_memoryview.Bytes*.test_setitem_readonly": "counts references to a constant, which captured code holds too",
    "test_int.*.test_denial_of_service_prevented_*": "compares times of microseconds, which capturing exceeds",
    "test_descr.MiscTests.test_type_lookup_mro_reference": "counts how often the keys of a class are compared",
    "test_call.TestPEP590.test_setvectorcall*": "a function for testing gives a function another entry in C; captured "
    "code runs what the function's code says",
    "test_traceback.*.test_name_error_suggestions_from_builtins_when_builtins_is_module": "no name is suggested among "
    "more than 750, and captured code adds the functions that it calls to the module's globals",
    "test_descr.ClassPropertiesAndMethods.test_slots": "counts all objects of the process, argand's caches among them",
}
"""Patterns of test ids that are not run, and why. Nothing is here that a program could see of a captured function."""

_FAILING = ("fail", "error", "crash", "timeout")
_DONE = re.compile(r"^(\S+) (.*)$")


@dataclasses.dataclass(slots=True)
class Outcome:
    """What became of one test in one mode.

    Arguments:
        status: "pass", "skip", "fail", "error", "expected" (failed as its author said), "crash", "timeout" or
            "excluded" (not run; `detail` says why).
        capture: how the test method was captured: "whole", "broke", "eager" or "" (plain runs).
        internal: warnings about failures inside argand.
        detail: the traceback of a failure.
    """

    status: str
    seconds: float = 0.0
    capture: str = ""
    internal: list[str] = dataclasses.field(default_factory=list)
    detail: str = ""


# ---- in the worker -------------------------------------------------------------------------------------------------


def flatten(suite: Any) -> Iterator[unittest.TestCase]:
    """The test cases of a suite."""
    if isinstance(suite, unittest.TestSuite):
        for part in suite:
            yield from flatten(part)
    else:
        yield suite


def load(modules: str) -> list[unittest.TestCase]:
    """The tests of modules of CPython's `test` package, doctests included, without those that ask for resources.

    Arguments:
        modules: names separated by commas.
    """
    import test.support

    test.support.use_resources = []
    test.support.verbose = 0
    loader = unittest.TestLoader()
    return [case for name in modules.split(",") for case in flatten(loader.loadTestsFromName(f"test.{name}"))]


class Watch:
    """Listens to argand's events: how the functions of one test were captured."""

    def __init__(self) -> None:
        self.broke: set[str] = set()
        self.eager: set[str] = set()

    def __call__(self, event: Any) -> None:
        name = str(event.data.get("function"))
        if event.name == "graph_breaks":
            (self.eager if event.data.get("frame_skipped") else self.broke).add(name)
        elif event.name == "frame_raised":
            self.eager.add(name)

    def verdict(self, name: str) -> str:
        """For a function: its resume functions have its name in theirs."""
        if name in self.eager:
            return "eager"
        return "broke" if name in self.broke else "whole"


def compile_test(case: unittest.TestCase) -> str:
    """Wrap the method that a test case runs; returns the name of its function."""
    import argand

    name = case._testMethodName
    method = getattr(case, name)
    setattr(case, name, argand.compile(method, backend="eager"))
    return str(getattr(method, "__name__", name))


def run_case(case: unittest.TestCase, compiled: bool) -> Outcome:
    """Run one test."""
    result = unittest.TestResult()
    watch = Watch()
    start = time.perf_counter()
    stop: Any = None
    name = ""
    with warnings.catch_warnings(record=False):
        internal = _collect_internal() if compiled else []
        if compiled:
            from argand import events

            name = compile_test(case)
            stop = events.bus.subscribe(watch)
        try:
            case.run(result)
        finally:
            if stop is not None:
                stop()
    bad = [*result.failures, *result.errors]
    if bad:
        status = "error" if result.errors else "fail"
    elif result.unexpectedSuccesses:
        status = "fail"
    elif result.expectedFailures:
        status = "expected"
    else:
        status = "skip" if result.skipped and not result.testsRun > len(result.skipped) else "pass"
    outcome = Outcome(status, time.perf_counter() - start, detail="\n".join(text for _, text in bad)[-6000:])
    if compiled:
        outcome.capture = watch.verdict(name)
        outcome.internal = internal
    return outcome


def _collect_internal() -> list[str]:
    """A list that gets the texts of argand's warnings about itself, which go no further."""
    from argand.capture.driver import failures

    found: list[str] = []

    def note(known: Any, kind: str, text: str, code: Any) -> None:
        if kind == "internal":
            found.append(text[-3000:])

    failures.warn_once = note
    return found


def worker(module: str, compiled: bool, wanted: list[str] | None, done: set[str], out: TextIO) -> None:
    """Run the tests of a module that are wanted and not done, one line before and one after each."""
    for case in load(module):
        ident = case.id().removeprefix("test.")
        if ident in done or (wanted is not None and not any(fnmatch.fnmatch(ident, p) for p in wanted)):
            continue
        reason = next((EXCLUDED[pattern] for pattern in EXCLUDED if fnmatch.fnmatch(ident, pattern)), None)
        if reason is not None:
            print("excluded", json.dumps([ident, reason]), file=out, flush=True)
            continue
        print("start", ident, file=out, flush=True)
        outcome = run_case(case, compiled)
        print("end", json.dumps([ident, dataclasses.asdict(outcome)]), file=out, flush=True)
    print("finished", module, file=out, flush=True)


def worker_main(options: argparse.Namespace) -> None:
    """The subprocess: its standard output is the tests', the report goes to a descriptor of its own."""
    resource.setrlimit(resource.RLIMIT_AS, (options.memory << 30, options.memory << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import torch

    torch.set_num_threads(1)
    import argand.api  # the same modules are loaded in both modes

    del argand
    done = set(json.loads(sys.stdin.read()))
    out = os.fdopen(options.report, "w")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            worker(options.worker, options.compiled, options.test, done, out)
        finally:
            out.flush()
            os.chdir("/")


# ---- in the parent -------------------------------------------------------------------------------------------------


def run_module(module: str, compiled: bool, options: argparse.Namespace) -> dict[str, Outcome]:
    """All tests of a module in one mode, starting again behind a test that crashed or hung."""
    outcomes: dict[str, Outcome] = {}
    for _ in range(options.restarts):
        running, finished, status = _run_worker(module, compiled, options, outcomes)
        if finished or not running:
            if not finished:
                outcomes[f"{module}.<import>"] = Outcome("error", detail=status)
            break
        outcomes[running] = Outcome("timeout" if status == "timeout" else "crash", detail=status)
    return outcomes


def _run_worker(
    module: str, compiled: bool, options: argparse.Namespace, outcomes: dict[str, Outcome]
) -> tuple[str, bool, str]:
    """One subprocess. Returns (test that was running when it ended, whether it got through, what ended it)."""
    reading, writing = os.pipe()
    command = [sys.executable, os.path.abspath(__file__), "--worker", module, "--report", str(writing)]
    command += ["--memory", str(options.memory)] + (["--compiled"] if compiled else [])
    for pattern in options.test or ():
        command += ["--test", pattern]
    errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process's report)
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors, pass_fds=[writing],
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "ARGAND_LOGS": "-dynamo"},
    )  # fmt: skip
    os.close(writing)
    assert process.stdin is not None
    process.stdin.write(json.dumps(sorted(outcomes)).encode())
    process.stdin.close()
    running, finished, status = "", False, ""
    buffer = b""
    selector = selectors.DefaultSelector()
    selector.register(reading, selectors.EVENT_READ)
    deadline = time.monotonic() + max(60.0, options.seconds)
    while True:
        if not selector.select(max(0.0, deadline - time.monotonic())):
            status = "timeout"
            break
        chunk = os.read(reading, 1 << 16)
        if not chunk:
            break
        buffer += chunk
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            kind, _, rest = line.decode().partition(" ")
            deadline = time.monotonic() + options.seconds
            if kind == "start":
                running = rest
            elif kind == "end":
                ident, fields = json.loads(rest)
                outcomes[ident] = Outcome(**fields)
                running = ""
            elif kind == "excluded":
                ident, reason = json.loads(rest)
                outcomes[ident] = Outcome("excluded", detail=reason)
            elif kind == "finished":
                finished = True
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9) if status == "timeout" else None
    code = process.wait()
    os.close(reading)
    with errors:
        errors.seek(0)
        said = errors.read()
    return running, finished, status or f"exit status {code}: {said[-1500:]}"


def differences(plain: dict[str, Outcome], compiled: dict[str, Outcome]) -> list[str]:
    """Tests that pass plainly and do not under argand."""
    missing = Outcome("crash", detail="did not run")
    return [
        ident
        for ident, outcome in plain.items()
        if outcome.status in ("pass", "expected")
        and compiled.get(ident, missing).status not in ("pass", "expected", "skip")
    ]


def report_row(module: str, plain: dict[str, Outcome], compiled: dict[str, Outcome], failed: list[str]) -> str:
    """One line of the table."""

    def count(outcomes: dict[str, Outcome], status: str) -> int:
        return sum(o.status == status for o in outcomes.values())

    captures = [sum(o.capture == kind for o in compiled.values()) for kind in ("whole", "broke", "eager")]
    internal = sum(bool(o.internal) for o in compiled.values())
    seconds = [sum(o.seconds for o in outcomes.values()) for outcomes in (plain, compiled)]
    return (
        f"{module:28} {len(plain):5} {count(plain, 'pass'):6} {count(compiled, 'pass'):6} {captures[0]:6} "
        f"{captures[1]:6} {captures[2]:6} {internal:9} {len(failed):6} {seconds[0]:8.1f} {seconds[1]:8.1f}"
    )


HEADER = (
    f"{'module':28} {'tests':>5} {'plain':>6} {'argand':>6} {'whole':>6} {'broke':>6} {'eager':>6} {'internal':>9} "
    f"{'failed':>6} {'s plain':>8} {'s argand':>8}"
)


def known_module(name: str) -> bool:
    """Whether this Python has the test module."""
    import importlib.util

    return importlib.util.find_spec(f"test.{name}") is not None


def sweep(options: argparse.Namespace) -> int:
    """Run the modules, print the table; returns the exit status."""
    found: dict[str, dict[str, Any]] = {}
    failures: list[tuple[str, Outcome]] = []
    print(HEADER, flush=True)
    for module in dict.fromkeys(options.module or MODULES):
        if not known_module(module):
            continue
        plain = run_module(module, False, options)
        compiled = run_module(module, True, options)
        failed = differences(plain, compiled)
        failures += [(ident, compiled.get(ident, Outcome("crash", detail="did not run"))) for ident in failed]
        found[module] = {
            "plain": {k: dataclasses.asdict(v) for k, v in plain.items()},
            "argand": {k: dataclasses.asdict(v) for k, v in compiled.items()},
            "failed": failed,
        }
        print(report_row(module, plain, compiled, failed), flush=True)
        if options.json:
            with open(options.json, "w") as file:
                json.dump(found, file, indent=1)
    everything = [
        {f"{module}.{ident}": Outcome(**fields) for module, run in found.items() for ident, fields in run[mode].items()}
        for mode in ("plain", "argand")
    ]
    print(report_row("total", everything[0], everything[1], [ident for ident, _ in failures]))
    for ident, outcome in sorted({i: o for i, o in everything[0].items() if o.status == "excluded"}.items()):
        print(f"excluded {ident.partition('.')[2]}: {outcome.detail}")
    for ident, outcome in failures:
        print(f"\nFAILED {ident}: {outcome.status}")
        if options.verbose:
            print(outcome.detail)
    print(f"\n{len(failures)} tests pass plainly and fail under argand")
    return 1 if failures else 0


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options: the command line's, or the given ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--module", action="append", help="a module of the test package; several times for several")
    parser.add_argument("--test", action="append", help="pattern of test ids (test_dict.DictTest.test_len, *len*)")
    parser.add_argument("--json", help="write everything to this file")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit of one test")
    parser.add_argument("--memory", type=int, default=4, help="limit of a process's address space, GiB")
    parser.add_argument("--restarts", type=int, default=20, help="processes per module and mode")
    parser.add_argument("-v", "--verbose", action="store_true", help="print the tracebacks of failures")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--compiled", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--report", type=int, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main() -> int:
    options = parse()
    if options.worker:
        worker_main(options)
        return 0
    return sweep(options)


if __name__ == "__main__":
    sys.exit(main())
