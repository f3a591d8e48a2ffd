"""The text of the kernels of attention whose scores pass through functions: online softmax over blocks of keys.

The functions come as Triton text (`codegen.triton.score_mods`). Sizes and strides are written into the text, which so
has the tests and loops alone that a call needs. Blocks of keys that no query of a block sees are not visited.

    flex_forward         a block of queries, through the keys: result and log2-sum-exp of each row
    flex_queries         the gradient of a block of queries, through the keys
    flex_keys            the gradients of a block of keys and values, through the queries
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from string import Template

from argand.quick_dataclasses import dataclass

LOG2E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Tiles:
    """Queries and keys of a block, warps of a program, rounds of a loop whose loads are in flight."""

    rows: int
    columns: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Lists:
    """The blocks of a block mask that are visited, for each block of queries or of keys.

    Arguments:
        batch, heads: 1 where all of them share the list.
        rows, most: blocks that have a list, and the length of the longest.
        full: there is a second list, of blocks that are seen whole.
    """

    batch: int
    heads: int
    rows: int
    most: int
    full: bool


@dataclass(frozen=True, slots=True)
class FlexShape:
    """Everything that the text depends on.

    Arguments:
        batch, heads, keys: batches; heads of queries; of keys.
        queries, others: their lengths.
        width, value_width: of a head.
        dtype: Triton's name of the type of queries, keys and values.
        strides: of batch, head and position: those of query, key, value, result; for a backward, those of the gradients
            of result, query, key, value, too.
        scale: what products are multiplied with.
        block: queries and keys of a block of the block mask; (0, 0) where there is none.
        by_query, by_key: its lists.
        mods: text of `score_mod`, `mask_mod` and `score_grad`; `scored`, `masked`: which of them do anything.
        reads: Triton's types of the pointers that these take.
        tiles: of the kernel.
        checks: the functions have assertions.
    """

    batch: int
    heads: int
    keys: int
    queries: int
    others: int
    width: int
    value_width: int
    dtype: str
    strides: tuple[tuple[int, int, int], ...]
    scale: float
    block: tuple[int, int]
    by_query: Lists | None
    by_key: Lists | None
    mods: str
    scored: bool
    masked: bool
    reads: tuple[str, ...]
    tiles: Tiles
    checks: bool = False


@dataclass(slots=True)
class FlexText:
    """A kernel: its module, and what is passed to it.

    Arguments:
        name, text: of the function, and the module that has it.
        tensors: names of the arguments, all pointers, in their order.
        signature: their types.
        grid: programs.
    """

    name: str
    text: str
    tensors: list[str]
    signature: list[str]
    grid: tuple[int, int]
    specs: dict[str, object] = field(default_factory=dict)


_STRIDES = ("qb qh qm", "kb kh kn", "vb vh vn", "ob oh om", "gb gh gm", "qb2 qh2 qm2", "kb2 kh2 kn2", "vb2 vh2 vn2")

HEAD = """import triton
import triton.language as tl
from triton.language.extra import libdevice

"""

_OF_QUERIES = """    b, h = tl.program_id(1) // $H, tl.program_id(1) % $H
    m = block * $BM + tl.arange(0, $BM)
    d, e = tl.arange(0, $D), tl.arange(0, $E)
    queries = q_ptr + b.to(tl.int64) * $qb + h.to(tl.int64) * $qh
    keys = k_ptr + b.to(tl.int64) * $kb + (h // $G).to(tl.int64) * $kh
    values = v_ptr + b.to(tl.int64) * $vb + (h // $G).to(tl.int64) * $vh
"""  # where a block of queries, and the keys of its head, lie

_FORWARD = (
    """
@triton.jit
def flex_forward($arguments):
    block = $blocks - 1 - tl.program_id(0)  # of causal masks, the last ones take longest
"""
    + _OF_QUERIES
    + """    q = tl.load(queries + m[:, None] * $qm + d[None, :]$row_mask)
    acc = tl.zeros([$BM, $E], tl.float32)
    total = tl.zeros([$BM], tl.float32)
    top = tl.full([$BM], float("-inf"), tl.float32)
$loops
    empty = total == 0.0  # rows that see no key
    total = tl.where(empty, 1.0, total)
    means = acc / total[:, None]
    results = out_ptr + b.to(tl.int64) * $ob + h.to(tl.int64) * $oh
    tl.store(results + m[:, None] * $om + e[None, :], means.to($dtype)$store_mask)
    logs = tl.where(empty, float("-inf"), top + tl.log2(total))
    tl.store(lse_ptr + tl.program_id(1).to(tl.int64) * $M + m, logs$line_mask)
"""
)

_FORWARD_STEP = """k = tl.load(keys + n[None, :] * $kn + d[:, None]$column_mask_t)
v = tl.load(values + n[:, None] * $vn + e[None, :]$column_mask)
s = tl.dot(q, k$precision)
$score
largest = tl.maximum(top, tl.max(s, 1) * $factor)
base = tl.where(largest == float("-inf"), 0.0, largest)
p = tl.exp2(s * $factor - base[:, None])
shrink = tl.exp2(top - base)
total = total * shrink + tl.sum(p, 1)
acc = tl.dot(p.to($dtype), v, acc * shrink[:, None]$precision)
top = largest"""

_QUERIES = (
    """
@triton.jit
def flex_queries($arguments):
    block = $blocks - 1 - tl.program_id(0)
"""
    + _OF_QUERIES
    + """    grads = grad_ptr + b.to(tl.int64) * $gb + h.to(tl.int64) * $gh
    q = tl.load(queries + m[:, None] * $qm + d[None, :]$row_mask)
    g = tl.load(grads + m[:, None] * $gm + e[None, :]$row_mask)
    line = tl.program_id(1).to(tl.int64) * $M + m
    logs = tl.load(lse_ptr + line$line_load)
    logs = tl.where(logs == float("-inf"), 0.0, logs)
    delta = tl.load(delta_ptr + line$line_load)
    acc = tl.zeros([$BM, $D], tl.float32)
$loops
    results = dq_ptr + b.to(tl.int64) * $qb2 + h.to(tl.int64) * $qh2
    tl.store(results + m[:, None] * $qm2 + d[None, :], (acc * $scale).to($dtype)$store_mask)
"""
)

_QUERIES_STEP = """k = tl.load(keys + n[None, :] * $kn + d[:, None]$column_mask_t)
v = tl.load(values + n[None, :] * $vn + e[:, None]$column_mask_t)
s = tl.dot(q, k$precision)
$score
p = tl.exp2(s * $factor - logs[:, None])
ds = p * (tl.dot(g, v$precision) - delta[:, None])
$gradient
acc = tl.dot(ds.to($dtype), tl.trans(k), acc$precision)"""

_KEYS = """
@triton.jit
def flex_keys($arguments):
    block = tl.program_id(0)
    b, kv = tl.program_id(1) // $K, tl.program_id(1) % $K
    n = block * $BN + tl.arange(0, $BN)
    d, e = tl.arange(0, $D), tl.arange(0, $E)
    k = tl.load(k_ptr + b.to(tl.int64) * $kb + kv.to(tl.int64) * $kh + n[:, None] * $kn + d[None, :]$column_mask)
    v = tl.load(v_ptr + b.to(tl.int64) * $vb + kv.to(tl.int64) * $vh + n[:, None] * $vn + e[None, :]$column_mask)
    dk = tl.zeros([$BN, $D], tl.float32)
    dv = tl.zeros([$BN, $E], tl.float32)
    for member in range(0, $G):
        h = kv * $G + member
        queries = q_ptr + b.to(tl.int64) * $qb + h.to(tl.int64) * $qh
        grads = grad_ptr + b.to(tl.int64) * $gb + h.to(tl.int64) * $gh
        lines = (b * $H + h).to(tl.int64) * $M
$loops
    key_grads = dk_ptr + b.to(tl.int64) * $kb2 + kv.to(tl.int64) * $kh2
    value_grads = dv_ptr + b.to(tl.int64) * $vb2 + kv.to(tl.int64) * $vh2
    tl.store(key_grads + n[:, None] * $kn2 + d[None, :], (dk * $scale).to($dtype)$key_store)
    tl.store(value_grads + n[:, None] * $vn2 + e[None, :], dv.to($dtype)$key_store)
"""

_KEYS_STEP = """q = tl.load(queries + m[None, :] * $qm + d[:, None]$row_mask_t)
g = tl.load(grads + m[:, None] * $gm + e[None, :]$row_mask)
logs = tl.load(lse_ptr + lines + m$line_load)
logs = tl.where(logs == float("-inf"), 0.0, logs)
delta = tl.load(delta_ptr + lines + m$line_load)
s = tl.dot(k, q$precision)
$score
p = tl.exp2(s * $factor - logs[None, :])
dv = tl.dot(p.to($dtype), g, dv$precision)
ds = p * (tl.dot(v, tl.trans(g)$precision) - delta[None, :])
$gradient
dk = tl.dot(ds.to($dtype), tl.trans(q), dk$precision)"""


def forward_text(shape: FlexShape) -> FlexText:
    """The kernel of the forward."""
    writer = _Writer(shape, by_key=False)
    tensors = ["q_ptr", "k_ptr", "v_ptr", *writer.lists(), *writer.reads(), "out_ptr", "lse_ptr"]
    return writer.kernel("flex_forward", _FORWARD, _FORWARD_STEP, tensors)


def queries_text(shape: FlexShape) -> FlexText:
    """The kernel of the queries' gradient."""
    writer = _Writer(shape, by_key=False)
    first = ["q_ptr", "k_ptr", "v_ptr", "grad_ptr", "lse_ptr", "delta_ptr"]
    return writer.kernel("flex_queries", _QUERIES, _QUERIES_STEP, [*first, *writer.lists(), *writer.reads(), "dq_ptr"])


def keys_text(shape: FlexShape) -> FlexText:
    """The kernel of the keys' and values' gradients."""
    writer = _Writer(shape, by_key=True)
    first = ["q_ptr", "k_ptr", "v_ptr", "grad_ptr", "lse_ptr", "delta_ptr"]
    tensors = [*first, *writer.lists(), *writer.reads(), "dk_ptr", "dv_ptr"]
    return writer.kernel("flex_keys", _KEYS, _KEYS_STEP, tensors)


class _Writer:
    """Writes one kernel.

    Arguments:
        by_key: a program has a block of keys and goes through queries; the matrix of scores is transposed.
    """

    def __init__(self, shape: FlexShape, by_key: bool) -> None:
        self.shape, self.by_key = shape, by_key
        self.blocks = shape.by_key if by_key else shape.by_query

    def lists(self) -> list[str]:
        """Names of the arguments that hold the lists of blocks."""
        if self.blocks is None:
            return []
        return ["count_ptr", "block_ptr", *(["full_count_ptr", "full_block_ptr"] if self.blocks.full else [])]

    def reads(self) -> list[str]:
        """Names of the arguments that the functions read."""
        return [f"read{number}_ptr" for number in range(len(self.shape.reads))]

    def kernel(self, name: str, text: str, step: str, tensors: list[str]) -> FlexText:
        """The kernel whose loop is `step`."""
        shape = self.shape
        words = self._words(tensors)
        loops = self._loop(step, words, "", shape.masked)
        if self.blocks is not None and self.blocks.full:
            loops += self._loop(step, words, "full_", False)
        deep = 8 if self.by_key else 4
        words["loops"] = "\n".join(" " * deep + line if line else line for line in loops)
        body = Template(text).substitute(words)
        length, tile = (shape.others, shape.tiles.columns) if self.by_key else (shape.queries, shape.tiles.rows)
        grid = -(-length // tile), shape.batch * (shape.keys if self.by_key else shape.heads)
        signature = [self._type(tensor) for tensor in tensors]
        spec = (tuple(signature), (), shape.tiles.warps, shape.tiles.stages, shape.checks)
        return FlexText(name, HEAD + shape.mods + "\n\n" + body, tensors, signature, grid, {name: spec})

    def _type(self, tensor: str) -> str:
        if tensor.startswith("read"):
            return self.shape.reads[int(tensor[4:].removesuffix("_ptr"))]
        if tensor in ("lse_ptr", "delta_ptr"):
            return "*fp32"
        return "*i32" if tensor in self.lists() else "*" + self.shape.dtype

    def _words(self, tensors: Sequence[str]) -> dict[str, str]:
        shape, tiles = self.shape, self.shape.tiles
        words = {
            "arguments": ", ".join(tensors), "blocks": -(-shape.queries // tiles.rows), "H": shape.heads,
            "K": shape.keys, "G": shape.heads // shape.keys, "M": shape.queries, "N": shape.others,
            "BM": tiles.rows, "BN": tiles.columns, "D": shape.width, "E": shape.value_width, "scale": repr(shape.scale),
            "dtype": {"bf16": "tl.bfloat16", "fp16": "tl.float16", "fp32": "tl.float32"}[shape.dtype],
            "precision": ', input_precision="ieee"' if shape.dtype == "fp32" else "",
        }  # fmt: skip
        named = zip(_STRIDES, shape.strides)
        for names, strides in named:
            words.update(zip(names.split(), strides))
        rows, columns = shape.queries % tiles.rows != 0 or self._past("rows"), self._past("columns")
        words.update(
            row_mask=f", mask=m[:, None] < {shape.queries}, other=0.0" if rows else "",
            row_mask_t=f", mask=m[None, :] < {shape.queries}, other=0.0" if rows else "",
            store_mask=f", mask=m[:, None] < {shape.queries}" if rows else "",
            line_mask=f", mask=m < {shape.queries}" if rows else "",
            line_load=f", mask=m < {shape.queries}, other=0.0" if rows else "",
            column_mask=f", mask=n[:, None] < {shape.others}, other=0.0" if columns else "",
            column_mask_t=f", mask=n[None, :] < {shape.others}, other=0.0" if columns else "",
            key_store=f", mask=n[:, None] < {shape.others}" if columns else "",
        )
        return {name: str(value) for name, value in words.items()}

    def _past(self, side: str) -> bool:
        """Whether a tile may reach beyond the last query ("rows") or key ("columns")."""
        shape = self.shape
        length, tile, block = (
            (shape.queries, shape.tiles.rows, shape.block[0]) if side == "rows"
            else (shape.others, shape.tiles.columns, shape.block[1])
        )  # fmt: skip
        return length % (block or tile) != 0 or length % tile != 0

    def _loop(self, step: str, words: dict[str, str], kind: str, masked: bool) -> list[str]:
        """The loop through the blocks of one list, or through all."""
        shape, moving = self.shape, "m" if self.by_key else "n"
        tile, length = (
            (shape.tiles.rows, shape.queries) if self.by_key else (shape.tiles.columns, shape.others)
        )  # fmt: skip
        block = shape.block[0] if self.by_key else shape.block[1]
        score = self._score(masked)
        gradient = self._gradient(masked)
        words = {**words, "factor": repr(self._factor())}
        body = Template(step).substitute(words, score="\n".join(score), gradient="\n".join(gradient)).splitlines()
        body = [f"{moving} = start + tl.arange(0, {tile})", *[line for line in body if line]]
        if self.blocks is None:
            return [f"for start in range(0, {length}, {tile}):", *("    " + line for line in body)]
        per = block // tile
        following = ["after = step + 1"]
        if per == 1:
            following += [f"start = tl.load(listed + after, mask=after < count, other=0) * {block}"]
        else:
            following += [f"start = tl.load(listed + after // {per}, mask=after < count, other=0) * {block}"]
            following += [f"start += (after % {per}) * {tile}"]
        return [
            *self._row(kind),
            f"count = tl.load({kind}count_ptr + row) * {per}",
            f"listed = {kind}block_ptr + row * {self.blocks.most}",
            f"start = tl.load(listed, mask=count > 0, other=0) * {block}",
            "for step in range(0, count):",
            *("    " + line for line in [*body, *following]),
        ]

    def _row(self, kind: str) -> list[str]:
        """Which list is the program's."""
        if kind or self.blocks is None:
            return []
        lists, shape = self.blocks, self.shape
        own = f"(block * {shape.tiles.columns if self.by_key else shape.tiles.rows}) // {shape.block[self.by_key]}"
        terms = [own]
        if lists.batch > 1:
            terms.append(f"b * {lists.heads * lists.rows}")
        if lists.heads > 1:
            terms.append(f"h * {lists.rows}")
        return [f"row = {' + '.join(terms)}"]

    # --- scores

    def _places(self) -> tuple[str, str, str]:
        """The queries and the keys of a tile, that exist, with the tile's dimensions; and its shape."""
        shape, tiles = self.shape, self.shape.tiles
        m, n = ("[None, :]", "[:, None]") if self.by_key else ("[:, None]", "[None, :]")
        query, key = "m", "n"
        if shape.queries % tiles.rows or self._past("rows"):
            query = f"tl.minimum(m, {shape.queries - 1})"
        if self._past("columns"):
            key = f"tl.minimum(n, {shape.others - 1})"
        sides = (tiles.columns, tiles.rows) if self.by_key else (tiles.rows, tiles.columns)
        return query + m, key + n, f"[{sides[0]}, {sides[1]}]"

    def _call(self, name: str, values: Sequence[str]) -> str:
        query, key, _ = self._places()
        return f"{name}({', '.join([*values, 'b', 'h', query, key, *self.reads()])})"

    def _seen(self, masked: bool) -> list[str]:
        """Conditions under which a score counts."""
        shape, conditions = self.shape, []
        if masked:
            conditions.append(f"({self._call('mask_mod', ())})")
        if self._past("columns"):
            conditions.append(f"(n < {shape.others}){'[:, None]' if self.by_key else '[None, :]'}")
        if self.by_key and (shape.queries % shape.tiles.rows or self._past("rows")):
            conditions.append(f"(m < {shape.queries})[None, :]")
        return conditions

    def _score(self, masked: bool) -> list[str]:
        """Lines that make scores of products, -inf where they do not count; times `_factor`, they are powers of 2."""
        shape = self.shape
        lines = []
        if shape.scored:
            lines.append(f"raw = s * {shape.scale!r}")
            score = f"{self._call('score_mod', ('raw',))}.to(tl.float32)"
            lines.append(f"s = tl.broadcast_to({score}, {self._places()[2]})")
        elif shape.scale <= 0:
            lines.append(f"s = s * {shape.scale!r}")
        seen = self._seen(masked)
        if seen:
            lines.append(f"seen = {' & '.join(seen)}")
            lines.append('s = tl.where(seen, s, float("-inf"))')
        return lines

    def _factor(self) -> float:
        """What is left to multiply scores with: one multiplication and addition for each exponent."""
        shape = self.shape
        return LOG2E if shape.scored or shape.scale <= 0 else shape.scale * LOG2E

    def _gradient(self, masked: bool) -> list[str]:
        """Lines that make, of the gradient of a score, that of the product."""
        lines = []
        if self.shape.scored:
            gradient = f"{self._call('score_grad', ('raw', 'ds'))}.to(tl.float32)"
            lines.append(f"ds = tl.broadcast_to({gradient}, {self._places()[2]})")
            if self._seen(masked):
                lines.append("ds = tl.where(seen, ds, 0.0)")
        return lines
