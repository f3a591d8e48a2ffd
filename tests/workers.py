"""Runs pytest with its tests in processes that are forked when all tests are collected: they import and collect nothing.

    python tests/workers.py 4 [arguments of pytest]

A process takes file after file, so what the tests of a file share is made once, and sends the reports of each test to
the process that collected, which counts and prints them as pytest does. Where one ends in the midst of a test, the test
has failed, and another one goes on with the rest; one that is stuck where pytest-timeout cannot interrupt it is ended. While tests are collected the servers of `warm` start, which all share.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import math
import os
import signal
import sys
import time
import warnings
from collections import deque
from collections.abc import Iterator
from multiprocessing import connection as connections
from pathlib import Path
from typing import Any, NoReturn

import pytest
from _pytest.runner import runtestprotocol

import warm

FOLDER = "worker-"  # how the names of the workers' folders begin


def slow_among_quick(items: list[pytest.Item]) -> list[pytest.Item]:
    """Files with tests that take long or start several processes, one by one among the first two thirds of the others.

    Together they would be in one another's way; at the end one process would run them while others have nothing to do.
    """
    files: dict[object, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    slow, quick = [], []
    for group in files.values():
        takes_long = any(item.get_closest_marker(name) for item in group for name in ("slow", "distributed"))
        (slow if takes_long else quick).append(group)
    each = max(1, 2 * len(quick) // (3 * len(slow))) if slow else 1
    ordered = []
    for number, group in enumerate(quick):
        if number % each == 0 and slow:
            ordered += slow.pop(0)
        ordered += group
    return [*ordered, *(item for group in slow for item in group)]


class _Sender:
    """The plugin of a process that runs tests: what it reports is sent."""

    def __init__(self, config: pytest.Config, connection: connections.Connection) -> None:
        self.config, self.connection = config, connection
        self.running = False  # warnings of the collection are told to new plugins again

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        self.running = True
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        to_data = self.config.hook.pytest_report_to_serializable
        self.connection.send(("reports", [to_data(config=self.config, report=report) for report in reports]))
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_warning_recorded(self, warning_message: Any, when: str, nodeid: str, location: Any) -> None:
        if not self.running:
            return
        text, category = str(warning_message.message), warning_message.category.__name__
        place = warning_message.filename, warning_message.lineno
        self.connection.send(("warning", (text, category, place, when, nodeid, location)))


class _Worker:
    """A forked process that runs tests, as the one that collected sees it.

    Arguments:
        session: what was collected.
        others: connections of this process with other workers.
        folder: where its tests' folders are.
        threads: how many torch computes with.
    """

    def __init__(
        self, session: pytest.Session, others: list[connections.Connection], folder: Path, threads: int
    ) -> None:
        self.connection, own = connections.Pipe()
        self.left: deque[int] = deque()  # the tests that it was given, as numbers, and has not yet reported
        self.heard = time.monotonic()  # when it last said something
        self.stuck = False
        sys.stdout.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # numpy's threads look after themselves
            self.process = os.fork()
        if self.process == 0:
            for other in (*others, self.connection):
                other.close()
            atexit._clear()
            warm.end_with(lambda: _work(session, own, folder, threads))
        own.close()

    def give(self, numbers: range | None) -> None:
        """Tests to run next; None when there are no more."""
        self.left += numbers or ()
        self.connection.send(numbers)

    def end_where_stuck(self, limit: float) -> None:
        """End it where it said nothing for so many seconds: with the stacks of its threads, or else without."""
        if self.left and time.monotonic() - self.heard > limit:
            os.kill(self.process, signal.SIGKILL if self.stuck else signal.SIGABRT)
            self.stuck = True
            self.heard += 5


def _work(session: pytest.Session, connection: connections.Connection, folder: Path, threads: int) -> None:
    """What a worker does: ask for tests and run them, until there are no more."""
    sys.modules["torch"].set_num_threads(threads)
    plugins = session.config.pluginmanager
    capture: Any = plugins.getplugin("capturemanager")  # its files are the other process's
    capture.stop_global_capturing()
    capture.start_global_capturing()
    folders: Any = session.config._tmp_path_factory  # type: ignore[attr-defined]
    folder.mkdir()
    folders._basetemp = folder
    plugins.register(_Sender(session.config, connection))

    def asked() -> Iterator[pytest.Item]:
        while True:
            connection.send(("next", None))
            numbers = connection.recv()
            if numbers is None:
                return
            yield from (session.items[number] for number in numbers)

    try:
        for item, nextitem in itertools.pairwise(itertools.chain(asked(), [None])):
            assert item is not None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
    except (KeyboardInterrupt, EOFError, BrokenPipeError):
        pass  # the other process ends


class Workers:
    """The plugin of the process that collects.

    Arguments:
        count: how many processes run tests.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.threads = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        import torch  # which reads what `conftest` sets

        self.threads = torch.get_num_threads()
        torch.set_num_threads(1)  # those of OpenMP would not be in the forks, which would wait for them
        if session.config.args_source is pytest.Config.ArgsSource.TESTPATHS:  # all of them
            warm.share()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = slow_among_quick(items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or session.config.option.collectonly:
            return None  # pytest says so
        folder: Path = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        names = (folder / f"{FOLDER}{number}" for number in itertools.count())
        files = itertools.groupby(range(len(session.items)), lambda number: session.items[number].path)
        waiting = deque([range(numbers[0], numbers[-1] + 1) for numbers in (list(group) for _, group in files)])
        running: dict[connections.Connection, _Worker] = {}
        limit = math.inf
        with contextlib.suppress(ValueError):  # no such setting: pytest-timeout is not installed
            limit = 1.2 * float(session.config.getini("timeout") or math.inf)

        def fork() -> None:
            worker = _Worker(session, list(running), next(names), self.threads)
            running[worker.connection] = worker

        for _ in range(min(self.count, len(waiting))):
            fork()
        try:
            while running:
                for each in connections.wait(list(running), 1):
                    worker = running[each]  # type: ignore[index]
                    if not _heard(worker, session, waiting):
                        del running[worker.connection]
                        if waiting and len(running) < self.count:
                            fork()
                for worker in running.values():
                    worker.end_where_stuck(limit)
        finally:
            _end(list(running.values()))
        return True


def _heard(worker: _Worker, session: pytest.Session, waiting: deque[range]) -> bool:
    """Do what a worker asks for; False when it has ended."""
    hook = session.config.hook
    worker.heard = time.monotonic()
    try:
        what, given = worker.connection.recv()
    except (EOFError, ConnectionError):
        code = os.waitstatus_to_exitcode(os.waitpid(worker.process, 0)[1])
        if worker.left:
            item = session.items[worker.left.popleft()]
            how = signal.strsignal(-code) if code < 0 else f"exit code {code}"
            how = f"it was stuck: {how}" if worker.stuck else how
            text = f"the process that ran it ended ({how}): {item.nodeid}"
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
            hook.pytest_runtest_logreport(report=report)
            waiting.extendleft(range(number, number + 1) for number in reversed(worker.left))
        return False
    if what == "next":
        worker.give(waiting.popleft() if waiting else None)
    elif what == "warning":
        text, category, place, *rest = given
        message = warnings.WarningMessage(text, type(category, (Warning,), {}), *place)
        names = ("warning_message", "when", "nodeid", "location")
        hook.pytest_warning_recorded.call_historic(kwargs=dict(zip(names, (message, *rest))))
    else:
        item = session.items[worker.left.popleft()]
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for data in given:
            report = hook.pytest_report_from_serializable(config=session.config, data=data)
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True


def _end(workers: list[_Worker]) -> None:
    """Interrupt what still runs, and kill it where that does not help."""
    for sign in (signal.SIGINT, signal.SIGKILL):
        deadline = time.monotonic() + 20
        for worker in workers:
            os.kill(worker.process, sign)
        while workers and time.monotonic() < deadline:
            time.sleep(0.05)
            workers = [worker for worker in workers if not os.waitpid(worker.process, os.WNOHANG)[0]]


def main(count: int, arguments: list[str]) -> NoReturn:
    def run() -> NoReturn:
        raise SystemExit(pytest.main(arguments, plugins=[Workers(count)]))

    warm.end_with(run)


if __name__ == "__main__":
    sys.path[0] = os.getcwd()  # as `python -m pytest` has it
    main(int(sys.argv[1]), sys.argv[2:])
