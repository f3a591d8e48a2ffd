"""Views of dicts (`d.keys()`, `d.values()`, `d.items()`) that existed before the frame: views of the dict's shadow."""

from __future__ import annotations

import collections
import gc
from typing import Final

from argand.capture.facts.handlers import Function
from argand.capture.facts.interfaces import CaptureState
from argand.capture.facts.overlays import Shadow
from argand.capture.facts.sources import CallSource, Source

_ordered: collections.OrderedDict[object, object] = collections.OrderedDict()
MAKERS: Final[dict[type, Function]] = {
    type({}.keys()): dict.keys,
    type({}.values()): dict.values,
    type({}.items()): dict.items,
    type(_ordered.keys()): collections.OrderedDict.keys,
    type(_ordered.values()): collections.OrderedDict.values,
    type(_ordered.items()): collections.OrderedDict.items,
}
"""Class of a view -> what makes one of a dict."""


def dict_behind(view: object) -> object:
    """The dict that a view shows (a step of a source)."""
    return gc.get_referents(view)[0]


def load(state: CaptureState, source: Source, view: object) -> object:
    """The stand-in of a view, whose class is guarded already: it shows what the program does to the dict."""
    entry = state.shadows.get(id(view))
    if entry is None:
        mapping = state.load_source(CallSource(source, dict_behind), dict_behind(view))
        shown = MAKERS[type(view)](state.shadow(mapping))
        entry = state.shadows[id(view)] = Shadow(view, shown, None, source)
        state.shadow_origin[id(shown)] = entry
        state.keep(shown)
    return entry.shadow
