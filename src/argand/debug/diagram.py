"""A picture of a fused graph (`graph_diagram.svg`): kernels, calls and the buffers between them, layer by layer.

The layout is our own and needs no program: each step stands one layer below the steps that it needs, layers are
ordered so that lines cross little, lines are smooth curves. Hovering shows a step's operations and the user's lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from html import escape

from argand.ir.kernel import KernelPlan, Schedule, Step
from argand.ir.loops import Buffer, tensor_refs
from argand.quick_dataclasses import dataclass
from argand.schedule.dump import given_to, overwritten

_WIDTH, _GAP, _LAYER, _LINE, _CHAR = 40, 24, 56, 15, 6.6
_SWEEPS = 4
_MOST_LINES = 6
_MOST_BENDS = 2000  # in pictures with more, the remaining long lines are straight
_STYLE = """
svg{font:11px ui-monospace,Menlo,Consolas,monospace;background:#fff}
.box{stroke:#39424e;rx:5}.kernel .box{fill:#dcebff}.call .box{fill:#fff0d6}.value .box{fill:#eef0f2;rx:12}
.edge{fill:none;stroke:#8893a0;stroke-width:1.2}.label{fill:#68727d;font-size:9.5px}text{fill:#1b2026}
.node:hover .box{stroke:#0b5fff;stroke-width:2}.head{font-weight:600}
@media (prefers-color-scheme:dark){svg{background:#15181c}text{fill:#e6e9ec}.kernel .box{fill:#1f3a5f}
.call .box{fill:#574016}.value .box{fill:#2c3238}.box{stroke:#8893a0}.label{fill:#9aa4af}}
"""


@dataclass(slots=True, eq=False)
class Box:
    """A step, or a value that comes from or goes to the caller.

    Arguments:
        kind: "kernel", "call", "value", or "bend": a place where a long line passes between other boxes.
        lines: what is written in it, the name first.
        hint: what a reader sees on hovering.
        needs: (box, buffers that it reads of those made there, separated by commas).
    """

    kind: str
    lines: list[str]
    hint: str = ""
    needs: list[tuple[Box, str]] = field(default_factory=list)
    layer: int = 0
    x: float = 0.0
    y: float = 0.0
    depth: float = 0.0  # from the top to where lines leave it

    @property
    def width(self) -> float:
        return 4 if self.kind == "bend" else max(_WIDTH, max(map(len, self.lines)) * _CHAR + 16)

    @property
    def height(self) -> float:
        return len(self.lines) * _LINE + 10


def diagram(schedule: Schedule, title: str) -> str:
    """The picture as the text of an SVG file."""
    boxes = _boxes(schedule)
    layers = _layers(boxes)
    links = _links(boxes, layers)
    width = _place(layers, links)
    height = max((box.y + box.height for box in boxes), default=0) + 30
    body = [_edge(source, box, name, schedule.buffers) for source, box, name in links]
    body += [_node(box) for box in boxes]
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path d="M0 0 8 4 0 8z" fill="#8893a0"/></marker></defs>',
            f'<text x="12" y="18" class="head">{escape(title)}</text>',
            *body,
            "</svg>",
            "",
        ]
    )


def _boxes(schedule: Schedule) -> list[Box]:
    by_value: dict[str, Box] = {}
    boxes: list[Box] = []

    def source(name: str) -> Box:
        """What made a buffer last; an input gets a box when it is first needed."""
        if name not in by_value:
            by_value[name] = Box("value", [name, _layout(schedule.buffers.get(name))], f"{name}: input")
            boxes.append(by_value[name])
        return by_value[name]

    for step in schedule.steps:
        box = _step(step)
        reads, writes = _accesses(schedule, step)
        together: dict[int, list[str]] = {}
        for name in reads:
            together.setdefault(id(source(name)), []).append(name)
        box.needs = [(source(names[0]), ", ".join(names)) for names in together.values()]
        boxes.append(box)
        for name in writes:
            by_value[name] = box
    for position, ref in enumerate(tensor_refs(tuple(schedule.outputs))):
        box = Box("value", [f"output {position}", _layout(schedule.buffers.get(ref.buffer))], f"{ref.buffer}: output")
        box.needs = [(source(ref.buffer), ref.buffer)]
        boxes.append(box)
    return boxes


def _accesses(schedule: Schedule, step: Step) -> tuple[list[str], list[str]]:
    if isinstance(step, KernelPlan):
        return [*step.inputs, *overwritten(schedule, step, given_to(schedule)).values()], list(step.outputs)
    reads = dict.fromkeys(ref.buffer for ref in tensor_refs((step.args, step.kwargs)))
    return [*reads, *(name for name in step.mutates if name not in reads)], [
        *(name for name in step.outputs if name is not None),
        *step.mutates,
    ]


def _step(step: Step) -> Box:
    codes = [f"{o.fx_code}{f'   {o.user_line}' if o.user_line else ''}" for o in step.origins]
    if isinstance(step, KernelPlan):
        shown = [origin.fx_node for origin in step.origins]
        more = [f"... {len(shown) - _MOST_LINES} more"] if len(shown) > _MOST_LINES else []
        return Box(
            "kernel", [_short(step.name), *map(_short, shown[:_MOST_LINES]), *more], "\n".join([step.name, *codes])
        )
    return Box("call", [_short(str(step.out_variant or step.target)), _short(step.name)], "\n".join(codes))


def _short(text: str, limit: int = 44) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _layout(buffer: Buffer | None) -> str:
    if buffer is None:
        return ""
    return f"{str(buffer.dtype).removeprefix('torch.')}[{', '.join(map(str, buffer.size))}]"


def _layers(boxes: list[Box]) -> list[list[Box]]:
    """Boxes by layer: below everything they need; inputs just above their first reader."""
    for box in boxes:  # in an order in which what is needed comes first
        box.layer = max((source.layer + 1 for source, _ in box.needs), default=0)
    readers: dict[int, list[int]] = {}
    for box in boxes:
        for source, _ in box.needs:
            readers.setdefault(id(source), []).append(box.layer)
    for box in boxes:
        if not box.needs and id(box) in readers:
            box.layer = min(readers[id(box)]) - 1
    lowest = max((box.layer for box in boxes), default=0)
    layers: list[list[Box]] = [[] for _ in range(lowest + 1)]
    for box in boxes:
        layers[box.layer].append(box)
    return layers


Link = tuple[Box, Box, str]


def _links(boxes: list[Box], layers: list[list[Box]]) -> list[Link]:
    """What is joined by lines: (from, to, buffer) between neighbouring layers, through bends where need be."""
    links: list[Link] = []
    bends: dict[tuple[int, str, int], Box] = {}
    for box in boxes:
        for source, name in box.needs:
            before = source
            for layer in range(source.layer + 1, box.layer if len(bends) < _MOST_BENDS else 0):
                bend = bends.get((id(source), name, layer))
                if bend is None:
                    bend = bends[id(source), name, layer] = Box("bend", [], layer=layer)
                    layers[layer].append(bend)
                    links.append((before, bend, name))
                before = bend
            links.append((before, box, name))
    return links


def _place(layers: list[list[Box]], links: list[Link]) -> float:
    """Coordinates of every box; returns the width of the picture."""
    used_by: dict[int, list[Box]] = {}
    reads: dict[int, list[Box]] = {}
    for source, target, _ in links:
        used_by.setdefault(id(source), []).append(target)
        reads.setdefault(id(target), []).append(source)
    _spread(layers)
    for sweep in range(_SWEEPS):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            towards = reads if sweep % 2 == 0 else used_by
            layer.sort(key=lambda box: _middle(towards.get(id(box), []), box))
        _spread(layers)
    y = 34.0
    for layer in layers:
        height = max((box.height for box in layer), default=0)
        for box in layer:
            box.y = y
            box.depth = height if box.kind == "bend" else box.height
        y += height + _LAYER
    return max((box.x + box.width for layer in layers for box in layer), default=200) + _GAP


def _spread(layers: list[list[Box]]) -> None:
    widest = max((_layer_width(layer) for layer in layers), default=0)
    for layer in layers:
        x = _GAP + (widest - _layer_width(layer)) / 2
        for box in layer:
            box.x = x
            x += box.width + _GAP


def _layer_width(layer: list[Box]) -> float:
    return sum(box.width + _GAP for box in layer)


def _middle(near: list[Box], box: Box) -> float:
    centres = [other.x + other.width / 2 for other in near] or [box.x + box.width / 2]
    return sum(centres) / len(centres)


def _edge(source: Box, target: Box, name: str, buffers: Mapping[str, Buffer]) -> str:
    x1, y1 = source.x + source.width / 2, source.y + source.depth
    x2, y2 = target.x + target.width / 2, target.y
    bend = max((y2 - y1) / 2, 20)
    path = f"M{x1:.1f} {y1:.1f}C{x1:.1f} {y1 + bend:.1f} {x2:.1f} {y2 - bend:.1f} {x2:.1f} {y2:.1f}"
    if target.kind == "bend":
        path += f"V{y2 + target.depth:.1f}"
    label = ""
    if source.kind in ("kernel", "call") and target.kind != "value":
        label = f'<text class="label" x="{(x1 + x2) / 2 + 4:.1f}" y="{(y1 + y2) / 2:.1f}">{escape(name)}</text>'
    hint = escape("\n".join(f"{part}: {_layout(buffers.get(part))}" for part in name.split(", ")))
    arrow = "" if target.kind == "bend" else ' marker-end="url(#arrow)"'
    return f'<g><title>{hint}</title><path class="edge"{arrow} d="{path}"/>{label}</g>'


def _node(box: Box) -> str:
    parts = [
        f'<g class="node {box.kind}"><title>{escape(box.hint)}</title>',
        f'<rect class="box" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"/>',
    ]
    for number, line in enumerate(box.lines):
        head = ' class="head"' if number == 0 else ""
        parts.append(f'<text{head} x="{box.x + 8:.1f}" y="{box.y + 16 + number * _LINE:.1f}">{escape(line)}</text>')
    return "".join([*parts, "</g>"])
