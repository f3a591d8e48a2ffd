"""Reads structured traces: argand's and torch.compile's, one file or a directory with a file per rank.

    for record in Reader("traces/"):
        print(record.id, record.name, record.payload.size if record.payload else 0)

Streaming: a record is yielded as soon as it was read, payloads stay in the file. What cannot be read is skipped and
counted in `problems`.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from argand.errors import ConfigError
from argand.report.records import Record, trace_files
from argand.report.scanner import Scanner


class Reader:
    """The records of a trace.

    Arguments:
        source: a trace file, or a directory of them.
        follow: wait for more at the end, and for new files in a directory, until `stop` says so.
        verify: compare payloads with their digests; without it reading is faster and damage is not noticed.
        poll: seconds between looks at a file that is being followed.
        stop: asked when there is nothing new; True ends a following reader.

    Attributes:
        problems: what could not be read, counted by reason; complete when the iteration is over.
        files: the files read so far.

    Raises:
        ConfigError: there is no trace at `source`.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        follow: bool = False,
        *,
        verify: bool = True,
        poll: float = 0.2,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        self.source = Path(source)
        self.follow = follow
        self.verify = verify
        self.poll = poll
        self.stop = stop
        self.problems: Counter[str] = Counter()
        self.files: list[Path] = []
        self._scanners: dict[Path, Scanner] = {}
        self._look()
        if not self.files and not (follow and self.source.is_dir()):
            raise ConfigError(
                f"there is no structured trace at {self.source}",
                remedy="give a file or a directory that ARGAND_TRACE or TORCH_TRACE wrote",
            )

    def __iter__(self) -> Iterator[Record]:
        """The records, file by file; in the order in which they appear when following."""
        index = 0
        progress = True
        try:
            while progress or self.follow:
                progress = False
                self._look()
                for scanner in list(self._scanners.values()):
                    for record in self._of(scanner):
                        record.index = index
                        index += 1
                        progress = True
                        yield record
                if not self.follow:
                    return
                if not progress:
                    if self.stop is not None and self.stop():
                        self.follow, progress = False, True  # once more, for what is cut off at the end
                    else:
                        time.sleep(self.poll)
        finally:
            for scanner in self._scanners.values():
                scanner.close()

    def _of(self, scanner: Scanner) -> Iterator[Record]:
        try:
            yield from scanner.records(final=not self.follow)
        except OSError:
            self.problems["file cannot be read"] += 1

    def _look(self) -> None:
        """Find the trace files that were not there before."""
        for path in trace_files(self.source):
            if path not in self._scanners and path.is_file():
                self.files.append(path)
                self._scanners[path] = Scanner(path, self.problems, self.verify)
