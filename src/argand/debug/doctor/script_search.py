"""Makes a script small that goes wrong above the graph (capture, guards, caches): its statements, then expressions.

Every candidate is run eagerly and compiled in child processes; one is kept when the two differ in the same way.
"""

from __future__ import annotations

import ast
import builtins
import copy
import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from torch import fx

from argand.backends.registry import Backend
from argand.debug.doctor.child import PLAIN, Allowed, Mode, Recorder, Script, run_script
from argand.debug.doctor.differences import first_difference, leaks
from argand.debug.doctor.examination import Examination
from argand.debug.doctor.records import Difference, Run
from argand.debug.doctor.repetition import with_variants
from argand.debug.doctor.reproduction import write
from argand.debug.doctor.setup import source_of
from argand.debug.minify.surgery import is_call
from argand.debug.trial.fingerprint import Fingerprint, fingerprint
from argand.debug.trial.search import Proposals, Search, pieces
from argand.quick_dataclasses import dataclass

_SECONDS, _ATTEMPTS = 120.0, 400
Candidates = Callable[[ast.Module], Iterator[ast.Module]]
_BODIES = ("body", "orelse", "finalbody", "handlers")


@dataclass(slots=True)
class ScriptSearch(Search[ast.Module]):
    """One search.

    Arguments:
        script: the original.
        mode: how it goes wrong.
        wanted: the difference to keep.
        failure: fingerprint of the compiled run's end, where that is the difference.
        strict: what rounding explains is no failure; eager is run several times for that.
    """

    script: Script = field(kw_only=True)
    mode: Mode = field(kw_only=True)
    folder: Path = field(kw_only=True)
    wanted: Difference = field(kw_only=True)
    failure: Fingerprint = field(kw_only=True)
    allowed: Allowed = field(kw_only=True)
    strict: bool = False

    @property
    def out_of_time(self) -> bool:
        return self.seconds > _SECONDS or self.attempts > _ATTEMPTS

    def key(self, candidate: ast.Module) -> str:
        return ast.unparse(candidate)

    def is_smaller(self, candidate: ast.Module) -> bool:
        text = _text(candidate)
        return text is not None and len(text) < len(ast.unparse(self.smallest))

    def attempt(self, candidate: ast.Module) -> bool:
        source = ast.unparse(candidate)
        return not _undefined(source) and self.goes_wrong(source)

    def goes_wrong(self, source: str) -> bool:
        """Whether a program goes wrong in the same way."""
        script = replace(self.script, source=source)
        folder = self.folder / f"shrink_{self.attempts}"
        eager = run_script(script, replace(PLAIN, count=self.mode.count), folder / "eager", self.allowed)
        if eager.outcome.failed or not eager.calls:
            return False
        other = run_script(script, self.mode, folder / "compiled", self.allowed)
        differing = difference(eager, other, self.mode)
        if self.strict and differing is not None and differing.signature == self.wanted.signature:
            with_variants(eager, differing, lambda mode: run_script(script, mode, folder / mode.name, self.allowed))
            differing = difference(eager, other, self.mode)
        if differing is None or differing.signature != self.wanted.signature:
            return False
        return (
            not other.outcome.failed or self.failure.kind == "passed" or self.failure.alike(fingerprint(other.outcome))
        )

    def shrink(self, source: str) -> ast.Module:
        """The smallest program found."""
        self.smallest = ast.parse(source)
        while not self.out_of_time:
            if not sum(self.apply(self.cut(candidates)) for candidates in _CANDIDATES):
                break
        return self.smallest

    def cut(self, candidates: Candidates) -> Proposals[ast.Module]:
        """Every candidate of a kind; after one that was accepted, what follows has moved up."""
        position, left = 0, candidates(self.smallest)
        while (candidate := next(left, None)) is not None:
            if (yield candidate):
                left = itertools.islice(candidates(self.smallest), position, None)
            else:
                position += 1


def difference(eager: Run, other: Run, mode: Mode) -> Difference | None:
    """The first difference of two runs; where tensors were counted, a leak too."""
    first = first_difference(eager, other)
    if first is None and mode.count:
        return leaks(eager, other)
    return first


def _undefined(source: str) -> bool:
    """Whether a name is read that nothing in the program binds: most candidates, and they need not be run."""
    read: set[str] = set()
    bound: set[str] = set(dir(builtins)) | {"__file__", "__name__", "__doc__"}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
            if any(alias.name == "*" for alias in node.names):
                return False
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            bound.add(node.name)
    return not read <= bound


def _text(tree: ast.Module) -> str | None:
    try:
        text = ast.unparse(ast.fix_missing_locations(tree))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "candidate", "exec")
    except (SyntaxError, ValueError, RecursionError, AttributeError, TypeError):
        return None
    return text


def _bodies(tree: ast.AST) -> list[tuple[ast.AST, str, list[Any]]]:
    bodies = []
    for node in ast.walk(tree):
        for name in _BODIES:
            body = getattr(node, name, None)
            if isinstance(body, list) and body:
                bodies.append((node, name, body))
    return bodies


def _without_statements(tree: ast.Module) -> Iterator[ast.Module]:
    """Pieces of bodies left out: halves and quarters first, then single statements, from the end."""
    for number, (_, _, body) in enumerate(_bodies(tree)):
        size = len(body)
        while size >= 1:
            for piece in pieces(len(body), size):
                if len(body) == size and number == 0:
                    continue
                changed = copy.deepcopy(tree)
                _, name, target = _bodies(changed)[number]
                del target[piece]
                if not target and name == "body":
                    target.append(ast.Pass())
                yield changed
            size //= 2


def _unwrapped(tree: ast.Module) -> Iterator[ast.Module]:
    """Compound statements replaced by what is in them."""
    for number, (_, _, body) in enumerate(_bodies(tree)):
        for index, statement in enumerate(body):
            if isinstance(statement, (ast.If, ast.For, ast.While, ast.With, ast.Try)):
                changed = copy.deepcopy(tree)
                target = _bodies(changed)[number][2]
                target[index : index + 1] = target[index].body
                yield changed


def _simpler_expressions(tree: ast.Module) -> Iterator[ast.Module]:
    """Expressions replaced by parts of them."""
    for number, place in enumerate(_places(tree)):
        for choice in range(len(_parts(place[3]))):
            changed = copy.deepcopy(tree)
            parent, name, index, expression = _places(changed)[number]
            part = _parts(expression)[choice]
            if index is None:
                setattr(parent, name, part)
            else:
                getattr(parent, name)[index] = part
            yield changed


def _places(tree: ast.AST) -> list[tuple[ast.AST, str, int | None, ast.expr]]:
    places: list[tuple[ast.AST, str, int | None, ast.expr]] = []
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.expr) and _parts(value):
                places.append((node, name, None, value))
            elif isinstance(value, list):
                for index, item in enumerate(value):
                    if isinstance(item, ast.expr) and _parts(item):
                        places.append((node, name, index, item))
    return places


def _parts(node: ast.expr) -> list[ast.expr]:
    """What may stand for an expression."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.UnaryOp):
        return [node.operand]
    if isinstance(node, ast.BoolOp):
        return list(node.values)
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, ast.Call):
        parts: list[ast.expr] = [arg for arg in node.args if not isinstance(arg, ast.Starred)]
        if isinstance(node.func, ast.Attribute):
            parts.insert(0, node.func.value)
        if node.keywords:
            parts.append(ast.Call(node.func, node.args, node.keywords[:-1]))
        return parts
    if isinstance(node, (ast.Tuple, ast.List)) and isinstance(node.ctx, ast.Load):
        return list(node.elts)
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value > 2:
        return [ast.Constant(2)]
    return []


_CANDIDATES: tuple[Candidates, ...] = (_without_statements, _unwrapped, _simpler_expressions)


# ----------------------------------------------------------------------- the result


@dataclass(slots=True)
class Counter:
    """Counts the calls of captured graphs; graphs run as they are, or through the backend."""

    backend: str

    def __call__(self, recorder: Recorder, function: Backend, asked: Any) -> Backend:
        def compile_graph(gm: fx.GraphModule, example_inputs: Any, **options: Any) -> Any:
            recorder.facts["nodes"] = recorder.facts.get("nodes", 0) + sum(map(is_call, gm.graph.nodes))
            if self.backend == "eager":
                return gm.forward
            return function(gm, example_inputs, **options)

        return compile_graph


def shrink_script(doctor: Examination, wanted: Difference, mode: Mode) -> tuple[Path | None, int, list[str]]:
    """The smallest program that goes wrong in the same way, as a file.

    Returns:
        its path (None when the script itself does not fail again), the calls in its graphs, and the lines of the
        compiled function that are left.
    """
    source = source_of(doctor.script.path)
    first = doctor.run(mode)
    eager = doctor.run(replace(PLAIN, count=mode.count))
    seconds = min(doctor.allowed.seconds, 5.0 + 4 * max(first.outcome.seconds, eager.outcome.seconds))
    if wanted.kind == "hang":
        seconds = min(doctor.allowed.seconds, 5.0 + 4 * eager.outcome.seconds)
    again = difference(eager, first, mode)
    if again is None:
        return None, -1, []
    search = ScriptSearch(
        ast.Module([], []),
        script=doctor.script,
        mode=mode,
        folder=doctor.folder,
        wanted=again,
        failure=fingerprint(first.outcome),
        allowed=replace(doctor.allowed, seconds=seconds),
    )
    tree = search.shrink(source) if source else search.smallest
    search.strict = True
    if source and not search.goes_wrong(ast.unparse(tree)):  # only rounding is left of it
        search.tried.clear()
        tree = search.shrink(source)
    text = ast.unparse(tree)
    folder = doctor.folder / "count"
    counted = run_script(replace(doctor.script, source=text), mode, folder, search.allowed, Counter(mode.backend))
    nodes = int(counted.facts.get("nodes", 0))
    path = write(doctor, text, mode, again.text)
    return path, nodes, _lines(tree, wanted, doctor.script.path, source)


def _lines(tree: ast.Module, difference: Difference, path: str, source: str) -> list[str]:
    """Lines of the compiled function that are left, as they were in the script."""
    name = difference.function.rpartition(".")[2]
    texts = source.splitlines()
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            for statement in node.body:
                number = getattr(statement, "lineno", 0)
                if 0 < number <= len(texts) and not isinstance(statement, ast.Pass):
                    lines.append(f"{path}:{number} in {name}: {texts[number - 1].strip()}")
    return lines[:4]
