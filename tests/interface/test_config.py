"""The typed config object."""

from __future__ import annotations

import warnings

import pytest

import argand
from argand.config import _CPP, _ROOT, Section
from argand.errors import ConfigError


def test_unknown_setting_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="cache_size_limit"):
        argand.config.cache_size_limits = 3
    with pytest.raises(AttributeError):
        _ = argand.config.cache_size_limits
    assert not hasattr(argand.config, "nothing_like_this")


@pytest.mark.parametrize(("name", "value"), [("cache_size_limit", "8"), ("cache_size_limit", True), ("verbose", 1)])
def test_wrong_type_is_refused(name: str, value: object) -> None:
    before = getattr(argand.config, name)
    with pytest.raises(ConfigError, match=name):
        setattr(argand.config, name, value)
    assert getattr(argand.config, name) == before


@pytest.mark.parametrize(("text", "warned"), [("", False), (" ", False), ("many", True), ("1.5", True)])
def test_variable_that_is_no_number_stops_nothing(text: str, warned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for row in (_ROOT, _CPP) for s in row.values() if type(s.default) is int for name in s.env]
    assert "TORCHDYNAMO_REPRO_LEVEL" in names
    for name in names:
        monkeypatch.setenv(name, text)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        made = Section("config", _ROOT)
    assert made.repro_level == 2
    assert [str(w.message) for w in told if "REPRO_LEVEL" not in str(w.message)] == []
    assert len(told) == (len(names) if warned else 0)


def test_patch_restores_as_context_manager_and_decorator() -> None:
    with argand.config.patch({"cpp.simdlen": 0}, cache_size_limit=3):
        assert argand.config.cpp.simdlen == 0
        assert argand.config.cache_size_limit == 3
    assert argand.config.cpp.simdlen == -1

    @argand.config.patch(verbose=True)
    def inside() -> bool:
        return bool(argand.config.verbose)

    assert inside() and inside()
    assert argand.config.verbose is False
    with pytest.raises(RuntimeError), argand.config.patch(verbose=True):
        raise RuntimeError
    assert argand.config.verbose is False


def test_patch_with_an_unknown_name_changes_nothing() -> None:
    with pytest.raises(ConfigError), argand.config.patch({"verbose": True, "no_such": 1}):
        pass
    assert argand.config.verbose is False


def test_module_and_object_are_one() -> None:
    from argand.config import config

    with argand.config.patch(cache_size_limit=5):
        assert config.cache_size_limit == 5
    argand.config.cache_size_limit = 7
    assert config.cache_size_limit == 7
    argand.config.cache_size_limit = 8


def test_every_setting_has_help() -> None:
    rows = argand.config.describe()
    assert len(rows) > 10
    for name, _default, text in rows:
        assert text.endswith("."), name


def test_a_deleted_setting_has_its_initial_value() -> None:
    """Tools that patch attributes end so with modules whose attributes are not in their `__dict__`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argand.config, "recompile_limit", 3)
        assert argand.config.cache_size_limit == 3
        patch.setattr(argand.config.cpp, "simdlen", 0)
    assert argand.config.cache_size_limit == 8 and argand.config.cpp.simdlen == -1
    with pytest.raises(ConfigError, match="cache_size_limits"):
        del argand.config.cache_size_limits
