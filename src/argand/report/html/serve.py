"""A report over HTTP on this machine, and live: the trace is followed, open pages are told when there is more."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from argand.report.html.build import Builder, RunWriter
from argand.report.html.model import Limits
from argand.report.records import Record, trace_files
from argand.report.scanner import Scanner

_WAIT = 15.0
_EVERY = 1.0
_BEGUN_ANEW = 5.0  # seconds in which a report has a first page again


class News:
    """A number that grows with every change, and those who wait for it."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self.version = 0
        self.closed = False

    def publish(self) -> None:
        with self._condition:
            self.version += 1
            self._condition.notify_all()

    def close(self) -> None:
        with self._condition:
            self.closed = True
            self._condition.notify_all()

    def wait(self, seen: int, seconds: float) -> int:
        """The version, as soon as it is not `seen` any more or the time is over."""
        with self._condition:
            self._condition.wait_for(lambda: self.version != seen or self.closed, seconds)
            return self.version


class Server(ThreadingHTTPServer):
    """Serves one folder to this machine only.

    Arguments:
        folder: the report.
        port: 0 for any free one.
        news: tells open pages about changes; None for a report that does not change.
    """

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0, news: News | None = None) -> None:
        self.folder = folder
        self.news = news
        super().__init__(("127.0.0.1", port), Handler)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def finish_request(self, request: Any, client_address: Any) -> None:
        Handler(request, client_address, self, directory=str(self.folder))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no error."""


class Handler(SimpleHTTPRequestHandler):
    """GET and HEAD of the report's files; `/events` tells about changes."""

    server: Server
    server_version = "argand"
    sys_version = ""

    def _allowed(self) -> bool:
        """Only pages of this very server: no other name resolves here (DNS rebinding)."""
        host = (self.headers.get("Host") or "").rpartition(":")[0]
        if host in ("127.0.0.1", "localhost"):
            return True
        self.send_error(403, "wrong host")
        return False

    def do_GET(self) -> None:
        if not self._allowed():
            return
        if self.path.partition("?")[0] == "/events":
            self._events()
        else:
            super().do_GET()

    def do_HEAD(self) -> None:
        if self._allowed():
            super().do_HEAD()

    def list_directory(self, path: Any) -> Any:
        """The first page, which a report that is begun anew lacks for a moment; no list where there is none."""
        news, page, end = self.server.news, Path(str(path)) / "index.html", time.monotonic() + _BEGUN_ANEW
        while news is not None and not news.closed and time.monotonic() < end:
            if page.is_file():
                return self.send_head()
            time.sleep(0.02)
        self.send_error(404, "no such page")
        return None

    def guess_type(self, path: Any) -> str:
        """Payloads are text, whatever they look like."""
        kinds = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".json": "application/json"}
        return f"{kinds.get(Path(str(path)).suffix, 'text/plain')}; charset=utf-8"

    def end_headers(self) -> None:
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not worth a line."""

    def _events(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        news = self.server.news
        seen = -1  # the page may be older than this connection: it is told at once
        with contextlib.suppress(OSError):
            self.wfile.write(b"retry: 1000\n\n")
            self.wfile.flush()
            while news is not None and not news.closed:
                now = news.wait(seen, _WAIT)
                self.wfile.write(f"event: changed\ndata: {now}\n\n".encode() if now != seen else b": still here\n\n")
                self.wfile.flush()
                seen = now


class _Followed:
    """One trace file and the writer of its pages."""

    def __init__(self, writer: RunWriter, scanner: Scanner | None) -> None:
        self.writer = writer
        self.scanner = scanner
        self._records: Iterator[Record] | None = None

    def take(self, seconds: float) -> bool:
        """Read what is new, for some time at most; True when there was something."""
        if self.scanner is None:
            return False
        new = False
        deadline = time.monotonic() + seconds
        if self._records is None:
            self._records = self.scanner.records(final=False)
        for record in self._records:
            self.writer.collector.add(record)
            new = True
            if time.monotonic() > deadline:
                return True  # and goes on from there
        self._records = None
        return new


class Follower:
    """Builds a report of a growing trace again and again, only what changed.

    Arguments:
        source: the trace; may be an empty directory at first.
        out: the folder.
        limits: bounds.
        news: told about every change.
        every: seconds between two looks at the trace.
    """

    def __init__(self, source: Path, out: Path, limits: Limits, news: News, every: float = _EVERY) -> None:
        self.source = source
        self.out = out
        self.limits = limits
        self.news = news
        self.every = every
        self.stopped = threading.Event()

    def run(self) -> None:
        """Follow until `stopped`; begun anew when files appear."""
        while not self.stopped.is_set():
            files = [path for path in trace_files(self.source) if path.is_file()]
            self._until_new_files(files)

    def _until_new_files(self, files: list[Path]) -> None:
        builder = Builder(self.source, self.out, self.limits, live=True)
        followed: list[_Followed] = []
        for path in files:
            writer = builder.run_for(path, len(files) > 1)
            followed.append(_Followed(writer, Scanner(path, writer.run.problems)))
        if not files:
            followed.append(_Followed(builder.run_for(Path("waiting for a trace"), False), None))
        try:
            first = True
            while not self.stopped.is_set():
                changed = [one.take(max(self.every, 0.2)) for one in followed]
                if any(changed) or first:
                    for one, new in zip(followed, changed):
                        if new or first:
                            one.writer.finish({})
                    builder.write_top()
                    self.news.publish()
                    first = False
                self.stopped.wait(self.every)
                if [path for path in trace_files(self.source) if path.is_file()] != files:
                    return
        finally:
            for one in followed:
                if one.scanner is not None:
                    one.scanner.close()


@contextlib.contextmanager
def serving(server: Server, work: Callable[[], None] | None = None) -> Iterator[Server]:
    """Serve, and do `work`, in threads of their own while the block runs."""
    threads = [threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)]
    if work is not None:
        threads.append(threading.Thread(target=work, daemon=True))
    for thread in threads:
        thread.start()
    try:
        yield server
    finally:
        if server.news is not None:
            server.news.close()
        server.shutdown()
        server.server_close()
