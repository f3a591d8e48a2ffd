"""Reads one trace file piece by piece: finds records and the extent of their payloads, never trusting the content.

In: a file that may be growing, cut off, interleaved with other text, or no trace at all. Out: what can be read of it,
and a count of what could not. Memory is bounded by the chunk, the longest record line and the string table allowed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import orjson

from argand.report.records import Payload, Record, StackFrame, TraceId, digest_of, rank_of

CHUNK = 4 << 20
MAX_LINE = 64 << 20  # of a record; payloads may be of any size
MAX_STRINGS = 1 << 20
MAX_STRING = 1 << 16

_TAB = 9
_PREFIX = re.compile(rb"[VIWEC](\d{4} \d\d:\d\d:\d\d\.\d{6}) +(\d{1,20}) ([^:\n]{1,4096}):(\d{1,10})\] (?=.)")
_LINE = re.compile(rb"\n(?!\t)")  # the end of a payload
_DIGEST = re.compile(r"[0-9a-f]{32}")

ENVELOPE = frozenset(
    {"rank", "frame_id", "frame_compile_id", "attempt", "compiled_autograd_id", "has_payload", "stack"}
)
KINDS = frozenset({
    "aot_autograd_backward_compilation_metrics", "aot_backward_graph", "aot_forward_graph", "aot_inference_graph",
    "aot_joint_graph", "artifact", "bwd_compilation_metrics", "chromium_event", "compilation_metrics",
    "compiled_autograd_graph", "create_symbol", "create_unbacked_symbol", "describe_source", "describe_storage",
    "describe_tensor", "dump_file", "dynamo_cpp_guards_str", "dynamo_guards", "dynamo_output_graph", "dynamo_start",
    "export", "exported_program", "expression_created", "graph_dump", "guard_added", "guard_added_fast",
    "guard_on_data_dependent_error", "inductor_input_graph", "inductor_output_code", "inductor_post_grad_graph",
    "inductor_pre_grad_graph", "link", "memoizer_artifacts", "mismatched_fake_kernel", "missing_fake_kernel",
    "optimize_ddp_split_child", "optimize_ddp_split_graph", "propagate_real_tensors",
    "propagate_real_tensors_provenance", "str", "symbolic_shape_specialization",
})  # fmt: skip
"""The records that torch.compile and argand write."""
_STACKS = ("stack", "user_stack", "framework_stack")


class _Body:
    """The indented lines that are being read, of a record or (None) of nothing that could be read."""

    __slots__ = ("digest", "length", "lines", "offset", "record", "sum")

    def __init__(self, record: Record | None, offset: int, digest: str) -> None:
        self.record = record
        self.offset = offset
        self.digest = digest
        self.length = 0
        self.lines = 0
        self.sum = hashlib.md5(usedforsecurity=False) if digest else None

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the file; the first begins with the line feed that ends the record's line."""
        if self.sum is not None:
            text = piece.replace(b"\n\t", b"\n")
            self.sum.update(text if self.length else text[1:])
        self.length += len(piece)
        self.lines += piece.count(b"\n")  # a tab follows each

    def intact(self) -> bool:
        return self.sum is None or self.sum.hexdigest() == self.digest


class Scanner:
    """One trace file.

    Arguments:
        path: the file.
        problems: counts what could not be read, by reason.
        verify: whether payloads are compared with their digests.
    """

    def __init__(self, path: Path, problems: Counter[str], verify: bool = True) -> None:
        self.path = path
        self.problems = problems
        self.verify = verify
        self.strings: dict[int, str] = {}
        rank = rank_of(path)
        self.rank: int | None = None if rank < 0 else rank
        self._stream: FileIO | None = None
        self._buffer = b""
        self._at = 0  # what of the buffer is dealt with; the line feed before the next line while `_body` is open
        self._base = 0  # of the buffer in the file
        self._body: _Body | None = None
        self._skipping = False  # the rest of a line that is too long

    def close(self) -> None:
        """Close the file; payloads can still be read."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def records(self, final: bool = True) -> Iterator[Record]:
        """The records from where the last call ended up to the end of the file; `index` is for the caller to set.

        Arguments:
            final: the file will not grow: what is cut off at its end is yielded as it is, or given up and counted.
                Otherwise it waits for the next call.

        Raises:
            OSError: the file cannot be read.
        """
        if self._stream is None:
            self._stream = FileIO(self.path)
            self._stream.seek(self._base + len(self._buffer))
        while True:
            data = self._stream.read(CHUNK)
            if data:
                self._base += self._at
                self._buffer = self._buffer[self._at :] + data
                self._at = 0
                yield from self._scan(False)
            elif final:
                yield from self._scan(True)
                self.close()
                return
            elif not self._was_cut():
                body = self._body
                if body is not None and (not body.digest or body.intact()):  # as good as complete
                    record = self._end_of(body, False)
                    self._at += 1 if self._at < len(self._buffer) else 0
                    if record is not None:
                        yield record
                return

    def _was_cut(self) -> bool:
        """Whether the file is shorter than what was read of it; then it is read anew."""
        assert self._stream is not None
        end = self._stream.seek(0, 2)
        read = self._base + len(self._buffer)
        if end >= read:
            self._stream.seek(read)
            return False
        self.problems["file was cut while it was read"] += 1
        self._buffer, self._at, self._base, self._body, self._skipping = b"", 0, 0, None, False
        self._stream.seek(0)
        return True

    # ------------------------------------------------------------------ lines

    def _scan(self, final: bool) -> Iterator[Record]:
        """The records that are whole in the buffer."""
        while True:
            body = self._body
            if body is not None:
                if not self._read_body(body, final):
                    return
                record = self._end_of(body, final and self._at >= len(self._buffer))
                if record is not None:
                    yield record
                continue
            buffer, at = self._buffer, self._at
            end = buffer.find(b"\n", at)
            if end < 0:
                if not final:
                    self._limit_line()
                    return
                if at >= len(buffer):
                    return
                end = len(buffer)
            if self._skipping:
                self._skipping = False
                self._at = end + 1
            elif end == at:
                self._at = end + 1  # some log collectors put empty lines in between
            elif buffer[at] == _TAB:
                self.problems["payload without record"] += 1
                self._body, self._at = _Body(None, self._base + at, ""), at
            else:
                record = self._line(at, end, end == len(buffer))
                if record is not None:
                    yield record

    def _line(self, at: int, end: int, cut: bool) -> Record | None:
        """The record of the line in `buffer[at:end]`, unless its payload has to be read first."""
        parsed = self._parse(at, end, cut)
        if parsed is None:
            self._body, self._at = _Body(None, 0, ""), end  # it may have a payload
            return None
        record, digest = parsed
        if cut or digest is None:
            self._at = end + 1
            return record
        self._body, self._at = _Body(record, self._base + end + 1, digest if self.verify else ""), end
        return None

    def _limit_line(self) -> None:
        """Give up a line that has grown too long, or what is left of it."""
        if len(self._buffer) - self._at > MAX_LINE or self._skipping:
            if not self._skipping:
                self.problems["line too long"] += 1
            self._skipping = True
            self._at = len(self._buffer)

    # ------------------------------------------------------------------ payloads

    def _read_body(self, body: _Body, final: bool) -> bool:
        """Read on in a payload; whether its end was found."""
        buffer, at = self._buffer, self._at
        next_line = _LINE.search(buffer, at)
        stop = len(buffer) if next_line is None else next_line.start()
        done = final or (next_line is not None and stop + 1 < len(buffer))
        if stop > at:
            body.feed(buffer[at:stop])
        self._at = stop + 1 if done else stop
        return done

    def _end_of(self, body: _Body, cut: bool) -> Record | None:
        """The record whose payload is complete."""
        self._body = None
        record = body.record
        if record is None:
            return None
        record.payload = Payload(self.path, body.offset, max(body.length - 1, 0), body.lines, body.digest)
        if not body.intact() and not self._intact_with_other_line_ends(record.payload):
            if cut:
                self.problems["payload cut off at the end of the file"] += 1
            else:
                self.problems["payload missing" if not body.length else "payload hash mismatch"] += 1
        return record

    def _intact_with_other_line_ends(self, payload: Payload) -> bool:
        """Whether the digest is that of the payload before somebody gave it another system's line ends."""
        if not 0 < payload.length < MAX_LINE:
            return False
        data = payload.read()
        return b"\r" in data and digest_of(data.replace(b"\r\n", b"\n").removesuffix(b"\r")) == payload.digest

    # ------------------------------------------------------------------ records

    def _parse(self, at: int, end: int, cut: bool) -> tuple[Record, str | None] | None:
        """The record of a line, and the digest of its payload: "" when that is not given, None without a payload."""
        buffer = self._buffer
        prefix = _PREFIX.match(buffer, at, end) or _PREFIX.search(buffer, at, min(end, at + 8192))
        if prefix is None:
            self.problems["line cut off at the end of the file" if cut else "malformed glog prefix"] += 1
            return None
        value = _json(buffer[prefix.end() : end])
        if not isinstance(value, dict):
            self.problems["line cut off at the end of the file" if cut else "malformed json"] += 1
            return None
        kind = next((key for key in value if key not in ENVELOPE), None)
        if kind not in KINDS:
            self.problems["unknown kind"] += 1
        content = None if kind is None else value.pop(kind)
        fields = content if isinstance(content, dict) else {"value": content}
        if kind == "str":
            self._remember(content)
        for key in _STACKS:
            if key in fields:
                fields[key] = self._named(fields[key])
        stack = self._stack(value.get("stack") if "stack" in value else fields.get("stack"))
        time, thread, pathname, lineno = prefix.groups()
        rank = _number(value.get("rank"))
        record = Record(
            0,
            kind or "unknown",
            fields,
            _id(value),
            stack,
            self.rank if rank is None else rank,
            time.decode(),
            int(thread),
            pathname.decode("utf-8", "replace"),
            int(lineno),
            None,
            self.path,
            {key: item for key, item in value.items() if key not in ENVELOPE},
        )
        digest = value.get("has_payload")
        if digest is None or digest is False:
            return record, None
        return record, digest if isinstance(digest, str) and _DIGEST.fullmatch(digest) else ""

    def _remember(self, content: Any) -> None:
        """An entry of the string table."""
        if isinstance(content, list) and len(content) == 2 and isinstance(content[0], str):
            number = _number(content[1])
            if number is not None and len(self.strings) < MAX_STRINGS:
                self.strings[number] = content[0][:MAX_STRING]
                return
        self.problems["malformed string"] += 1

    def _named(self, stack: Any) -> Any:
        """A stack as in the trace, with its file names in place of their numbers."""
        if not isinstance(stack, list):
            return stack
        frames = []
        for frame in stack:
            if isinstance(frame, dict):
                number = frame.get("filename")
                if type(number) is int:
                    frame = {**frame, "filename": self.strings.get(number, "(unknown)")}
            frames.append(frame)
        return frames

    def _stack(self, stack: Any) -> tuple[StackFrame, ...]:
        return frames_of(self._named(stack))


def frames_of(stack: Any) -> tuple[StackFrame, ...]:
    """The frames of a stack in a record's fields (`fields["user_stack"]`, say); what is no frame is left out."""
    if not isinstance(stack, list):
        return ()
    frames = []
    for frame in stack:
        if isinstance(frame, dict):
            line = _number(frame.get("line"))
            name, source = frame.get("name"), frame.get("loc", frame.get("source"))
            frames.append(
                StackFrame(
                    str(frame.get("uninterned_filename") or frame.get("filename") or "(unknown)"),
                    0 if line is None else line,
                    name if isinstance(name, str) else "",
                    source if isinstance(source, str) else "",
                )
            )
    return tuple(frames)


def _json(text: bytes) -> Any:
    """The value of a JSON text; None when it is none."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:  # NaN, Infinity, bytes that are no UTF-8
        return json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _number(value: Any) -> int | None:
    """A non-negative int of reasonable size, else None."""
    return value if type(value) is int and 0 <= value < 1 << 53 else None


def _id(value: dict[str, Any]) -> TraceId | None:
    if "frame_id" not in value and "compiled_autograd_id" not in value and "frame_compile_id" not in value:
        return None
    return TraceId(
        _number(value.get("frame_id")),
        _number(value.get("frame_compile_id")),
        _number(value.get("attempt")) or 0,
        _number(value.get("compiled_autograd_id")),
    )
