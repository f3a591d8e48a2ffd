"""Every test starts from a clean argand: no compiled code, initial settings, two OpenMP threads at most."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from _pytest.logging import caplog_handler_key

import leftovers
import warm
import workers

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# OpenMP reads it when torch is imported. Else threads that have nothing to do spin for milliseconds, on cores that other
# workers and compilers need: that was half of the processor time of tests/autograd, two thirds of some files.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Logs are caught for tests that ask for them: torch has 40 loggers of its own to listen to, at each step of each test."""
    plugin: Any = session.config.pluginmanager.get_plugin("logging-plugin")
    caught = plugin._runtest_for

    def caught_where_asked(item: pytest.Item, when: str) -> contextlib.AbstractContextManager[None]:
        if "caplog" in getattr(item, "fixturenames", ()):
            return caught(item, when)  # type: ignore[no-any-return]
        item.stash[caplog_handler_key] = plugin.caplog_handler
        return contextlib.nullcontext()

    plugin._runtest_for = caught_where_asked
    logging.getLogger().addHandler(logging.NullHandler())  # else `logging.warning` gives it one that stays


def pytest_collection() -> None:
    """What is imported and collected stays: nothing of it need be looked at again and again while it grows."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()  # else the first collection, which comes at once, looks at all of torch and at every test (1 s a worker)
    warm.rarely_look_at_old_objects()
    gc.enable()


def torch_does_not_read_stacks() -> None:
    """What takes torch long, and is of no use here."""
    utils = sys.modules.get("torch.testing._internal.common_utils")
    if utils is not None:
        # For the samples of each operator of op_db it reads the sources of every frame of the stack (0.1 s), to find a
        # test of `unittest`'s: half of the time of what sweeps over op_db.
        utils.extract_test_fn = lambda: None
    warm.seed_without_stacks()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Names of tests are the same in every process, as pytest-xdist asks."""
    addresses = [item.nodeid for item in items if " at 0x" in item.nodeid]
    assert not addresses, f"names of tests with addresses of objects: {addresses}"
    if "PYTEST_XDIST_WORKER" in os.environ:
        items[:] = workers.slow_among_quick(items)


@pytest.fixture(autouse=True, scope="module")
def old_objects_are_left_alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """A `gc.collect()` of a test looks at what the tests of its module made, not at all of torch and of the other tests."""
    if hasattr(request.module, "gc"):
        gc.collect()
        gc.freeze()
    yield


@pytest.fixture(autouse=True)
def clean_argand() -> Iterator[None]:
    torch_does_not_read_stacks()
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)  # rounding of other numbers can be past a tolerance once in a thousand runs
    before = leftovers.state()
    yield
    left = leftovers.left(before)
    if not sys.modules.keys().isdisjoint(("argand.api", "argand.engine.entries")):  # either may be there alone
        import argand

        argand.reset()
        argand.config.reset()
    if "argand.runtime.cache" in sys.modules:  # may be there without what compiles, which resets it
        from argand.runtime import cache

        cache.reset()
    if "argand.events" in sys.modules:
        nothing_is_left()
    assert not left, f"left behind: {', '.join(left)}"


def nothing_is_left() -> None:
    """What a test does not take back changes what the tests after it see, which are others in each run."""
    import argand
    from argand import events

    events.bus.prepare()  # takes away what listens for settings that are not set any more
    sinks = [*events.bus.sinks, *(sink for sinks in events.bus.named.values() for sink in sinks)]
    foreign = [sink for sink in sinks if not str(getattr(sink, "__module__", "")).startswith("argand.")]
    for sink in foreign:
        events.bus.unsubscribe(sink)
    assert not foreign, f"listeners are left: {foreign}"
    if "argand.outcomes.store" in sys.modules:
        from argand.outcomes import store

        with argand.config.patch({"cache": True, "program_cache": True, "outcome_cache": True}):
            assert store.wanted(), "a listener, a replaced rule or a substituted function is left"


@pytest.fixture(autouse=True, scope="session")
def small_graphs_that_draw_are_compiled() -> Iterator[None]:
    """Here they are compiled as large ones are: tests of random numbers and their gradients have little programs."""
    from argand.backends import eager_contest

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eager_contest, "_TAPE", 0)
        yield


@pytest.fixture(autouse=True, scope="session")
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests never read the user's kernel cache; one fresh directory for all workers of `workers`, or for this process.

    Programs are not stored, but where a test asks for it: tests replace stages, and what these make would stay.
    """
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if folder.name.startswith(workers.FOLDER) else folder) / "argand-cache"
    folder.mkdir(0o700, exist_ok=True)
    ours = {"ARGAND_CACHE_DIR": str(folder), "ARGAND_PROGRAM_CACHE": "0"}
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    import argand

    argand.config.reset()
    yield
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
