"""A fleet's cache: the entries of the disk cache in a Redis server, for machines that compile the same.

An entry is signed (HMAC-SHA-256, with a key that the fleet shares, over its name and content): what has no valid
signature is never unpacked, let alone loaded. The server is asked by a thread of its own, so that one that is slow,
dead or hostile costs `TIMEOUT` once, and is then left alone for a while. Whatever goes wrong here, what is missing is
compiled.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import platform
import queue
import re
import secrets
import time
import warnings
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from argand import events, files, threads
from argand.config import config
from argand.locks import fork_safe_lock

TIMEOUT = 0.05  # seconds that connecting and questions may be waited for, together, until an entry comes
_SLOW = 0.01  # seconds: an answer that takes longer counts
_WRITE_TIMEOUT = 2.0  # of the thread; nobody waits for it
_REST, _LONGEST_REST = 30.0, 600.0  # seconds for which a server that did not answer is left alone
MAX_PACKED, _MAX_CONTENT = 32 << 20, 256 << 20
_DAYS = 30  # after which an entry goes that nobody wrote again
_MAGIC = b"argand1\n"
_NAME = re.compile(r"[0-9a-f]{16,64}\.(so|kernel|program|outcome)")
_QUEUE = 64  # entries that wait to be written


class Unsigned(ValueError):
    """An entry that this fleet did not sign, or that is damaged."""


# ----------------------------------------------------------------------- entries


def fleet_key() -> bytes:
    """The key that the fleet shares; empty where there is none."""
    return str(config.remote_cache_key).encode()


def pack(name: str, source: bytes, data: bytes, key: bytes) -> bytes:
    """An entry as it lies in the server and in archives.

    Arguments:
        name: file name of the product in the disk cache; source: the text that it was built from.
        key: the fleet's.
    """
    content = zlib.compress(len(source).to_bytes(8, "big") + source + data, 3)
    return _MAGIC + _signature(name, content, key) + content


def unpack(name: str, packed: bytes, key: bytes) -> tuple[bytes, bytes]:
    """Source and product of an entry.

    Raises:
        Unsigned: it is not what this fleet signed under this name.
    """
    start = len(_MAGIC) + hashlib.sha256().digest_size
    content = packed[start:]
    if not key or not _NAME.fullmatch(name):
        raise Unsigned("no key, or no name of an entry")
    signature = packed[len(_MAGIC) : start]
    if packed[: len(_MAGIC)] != _MAGIC or not hmac.compare_digest(signature, _signature(name, content, key)):
        raise Unsigned("its signature is not the fleet's")
    reader = zlib.decompressobj()
    try:
        whole = reader.decompress(content, _MAX_CONTENT)
    except zlib.error as error:
        raise Unsigned(f"it is damaged: {error}") from error
    size = int.from_bytes(whole[:8], "big")
    if reader.unconsumed_tail or not reader.eof or size > len(whole) - 8:
        raise Unsigned("its sizes are wrong")
    return whole[8 : 8 + size], whole[8 + size :]


def _signature(name: str, content: bytes, key: bytes) -> bytes:
    return hmac.digest(key, _machine().encode() + b"\0" + name.encode() + b"\0" + content, "sha256")


@lru_cache(maxsize=1)
def _machine() -> str:
    """What machines have in common that run each other's code: code for another kind has another name and signature."""
    facts = [platform.machine(), *platform.libc_ver(), platform.python_version()]
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as stream:
        facts.append(next((line for line in stream if line.startswith(("flags", "Features"))), ""))
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:24]


# ----------------------------------------------------------------------- the server


_Done = Callable[[Any, Exception | None], None]
"""Gets what the server answered, or what went wrong."""


class _Worker:
    """A thread that talks to the server at one address. One asks and another writes: questions wait for no entry.

    Arguments:
        url: the server's.

    Fields:
        waiting: how many entries it is yet to write.
        connected: the server has answered once; `failed`: why it did not the first time.
        late: a question was given up before that.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.waiting = 0
        self.begun = time.monotonic()
        self.connected = self.late = False
        self.failed: Exception | None = None
        self.asked: queue.SimpleQueue[tuple[Callable[[Any], Any], _Done] | None] = queue.SimpleQueue()
        self.client: Any = None
        with contextlib.suppress(RuntimeError):  # this process may have no more threads: then nobody answers
            threads.begin(self._run, "argand-remote-cache", stop=self._finish)

    def _run(self) -> None:
        while (job := self.asked.get()) is not None:
            do, done = job
            try:
                if self.client is None:
                    self.client = _connect(self.url)
                reply = do(self.client)
            except Exception as error:  # of the network, the server, the client
                self.failed = error
                done(None, error)
            else:
                self.connected = True
                done(reply, None)

    def _finish(self) -> None:
        REMOTE.flush(1.0)
        self.asked.put(None)


def _connect(url: str) -> Any:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    limits = {"socket_timeout": _WRITE_TIMEOUT, "socket_connect_timeout": _WRITE_TIMEOUT}
    try:
        return redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **limits)
    except ValueError as error:  # whose text may be part of a password
        raise ValueError("config.remote_cache is no address that can be read") from error


class RemoteCache:
    """The fleet's cache, as one process sees it."""

    def __init__(self) -> None:
        self.lock = fork_safe_lock()
        self._process = os.getpid()
        self._workers: dict[str, _Worker] = {}
        self.reset()

    def reset(self) -> None:
        """Forget troubles, and what was told of them; threads end when they have done what they were asked."""
        self._let_go()
        self._process = os.getpid()
        self._resting_until, self._rest = 0.0, _REST
        self._warned: set[str] = set()
        self._slow, self._unwritten = 0.0, ""
        self._builds: list[float] = []
        self._token = secrets.token_hex(8)

    def usable(self) -> bool:
        """Whether there is a server to ask now."""
        if not config.remote_cache or not config.cache:
            return False
        if not fleet_key():
            self._tell("key", "config.remote_cache is not used: config.remote_cache_key is empty")
            return False
        if self._process != os.getpid():  # a forked child has no thread
            self.reset()
        if self._unwritten:
            self._tell("write", f"what is compiled does not get into the remote cache: {self._unwritten}")
        worker = self._workers.get("ask")
        if worker is not None and worker.late and not worker.connected:
            if worker.failed is None and time.monotonic() < worker.begun + _WRITE_TIMEOUT:
                return False  # TLS and a far server take their time, which nobody waits for
            error = worker.failed or TimeoutError(f"no connection within {_WRITE_TIMEOUT:.0f} s")
            self._leave_alone(_text(error), error)
        return time.monotonic() >= self._resting_until

    def prepare(self) -> None:
        """Begin to connect: something will be compiled soon."""
        if config.remote_cache and config.cache and fleet_key() and self._process == os.getpid() and not self._workers:
            self._worker("ask").asked.put((lambda client: client.ping(), lambda reply, error: None))

    def fetch(self, name: str) -> tuple[bytes, bytes] | None:
        """Source and product of an entry; None when the server has none, or none that this fleet signed."""
        if not self.usable():
            if config.remote_cache:
                self._note("skipped", name)
            return None
        begun = time.monotonic()
        packed = self._ask(name, lambda client: client.getrange(_address(name), 0, MAX_PACKED))
        if packed is None:
            return None
        if not packed:
            self._note("miss", name, begun)
            return None
        entry = self._unpacked(name, packed)
        if entry is not None:
            self._slow = 0.0
            self._note("hit", name, begun)
        return entry

    def lead(self, name: str) -> tuple[bytes, bytes] | None:
        """As `fetch`, for what is not there: another process may be compiling it, and is waited for, as long as
        compiling takes here. None: compile it."""
        if not self.usable():
            return None
        patience = sorted(self._builds)[len(self._builds) // 2] if self._builds else 1.0
        lease, until = _address(name) + ":turn", time.monotonic() + min(patience, 10.0)
        held = int(1000 * (patience + 5.0))
        begun = time.monotonic()
        mine = self._ask(name, lambda client: bool(client.set(lease, self._token, nx=True, px=held)))
        while mine is False and time.monotonic() < until:
            time.sleep(0.02)
            threads.check_ending()
            # The turn first, then the entry: whoever gives the turn back has written the entry before.
            self._slow = 0.0  # what is waited for anyway
            mine = self._ask(name, lambda client: bool(client.set(lease, self._token, nx=True, px=held)))
            packed = self._ask(name, lambda client: client.getrange(_address(name), 0, MAX_PACKED))
            if packed is None:
                return None
            if packed:
                entry = self._unpacked(name, packed)
                if entry is not None:
                    self._note("waited", name, begun)
                return entry
        return None

    def offer(self, name: str, source: bytes, data: bytes, seconds: float = 0.0) -> None:
        """Give the server an entry. Nobody waits for that.

        Arguments:
            seconds: that it took to make it.
        """
        if seconds:
            self._builds = [*self._builds[-15:], seconds]
        if not self.usable() or len(data) + len(source) > _MAX_CONTENT:
            return
        worker = self._worker("write")
        if worker.waiting >= _QUEUE:
            return
        packed = pack(name, source, data, fleet_key())
        if len(packed) > MAX_PACKED:
            self._note("too large", name)
            return
        address, token = _address(name), self._token.encode()
        lease = address + ":turn"

        def put(client: Any) -> None:
            try:
                client.set(address, packed, ex=_DAYS * 86400)
            finally:  # where the server takes no more, nobody need wait for the entry
                if client.get(lease) == token:
                    client.delete(lease)

        def written(_: object, error: Exception | None) -> None:
            worker.waiting -= 1
            if error is None:
                self._note("stored", name)
            else:
                self._unwritten = _text(error)  # the next one to ask tells of it, in a thread of the program's
                self._note("error", name, text=self._unwritten)

        worker.waiting += 1
        worker.asked.put((put, written))

    def flush(self, seconds: float) -> None:
        """Wait until what was offered is written, not longer than this."""
        worker = self._workers.get("write")
        if worker is None or self._process != os.getpid() or not worker.waiting:
            return
        answer: queue.SimpleQueue[None] = queue.SimpleQueue()
        worker.asked.put((lambda client: None, lambda reply, error: answer.put(None)))
        with contextlib.suppress(queue.Empty):
            answer.get(timeout=seconds)

    def _worker(self, what: str) -> _Worker:
        """The thread that does "ask" or "write"."""
        with self.lock:
            worker = self._workers.get(what)
            if worker is not None and worker.url != config.remote_cache:
                worker.asked.put(None)
                worker = None
            if worker is None:
                worker = self._workers[what] = _Worker(str(config.remote_cache))
            return worker

    def _let_go(self) -> None:
        """Have the threads end; what waits for a server that hangs ends after the socket's own timeout."""
        with self.lock:
            workers = list(self._workers.values()) if self._process == os.getpid() else []
            self._workers.clear()
        for worker in workers:
            worker.asked.put(None)

    def _ask(self, name: str, do: Callable[[Any], Any]) -> Any:
        """The server's answer; None when there is none in time: then it is left alone for a while."""
        try:
            from redis.exceptions import ResponseError  # its import is not the server's time
        except ImportError:
            self._tell("redis", "config.remote_cache is not used: redis is not installed (pip install argand[redis])")
            self._resting_until = float("inf")
            return None
        begun = time.monotonic()
        answer: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        worker = self._worker("ask")
        left = max(TIMEOUT - self._slow, 0.0)
        patience = left if worker.connected else left / 2  # the other half is for its answers, once it is connected
        worker.asked.put((do, lambda reply, error: answer.put((reply, error))))
        reply, error = None, None
        try:
            reply, error = answer.get(timeout=max(begun + patience - time.monotonic(), 0.0))
        except queue.Empty:
            if not worker.connected:
                worker.late = True
                self._slow += patience
                self._note("error", name, begun, f"not connected within {patience * 1e3:.0f} ms")
                return None
            error = TimeoutError(f"no answer within {patience * 1e3:.0f} ms")
        spent = time.monotonic() - begun
        self._slow += spent if spent > _SLOW else 0.0
        if error is None and self._slow <= TIMEOUT:
            self._rest = _REST
            return reply
        refused = isinstance(
            error, ResponseError
        )  # by a server that is full or read-only, or of an entry of another type
        text = (
            _text(error)
            if error is not None
            else (f"answers that took more than {_SLOW * 1e3:.0f} ms took {self._slow * 1e3:.0f}, and brought nothing")
        )
        self._note("error", name, begun, text)
        if refused and self._slow <= TIMEOUT:
            self._tell("refused", f"the remote cache refuses what it is asked: {text}")
            return None
        self._leave_alone(text, error)
        return reply

    def _leave_alone(self, text: str, error: Exception | None) -> None:
        """Ask the server nothing for a while."""
        self._slow = 0.0
        self._let_go()
        self._resting_until = time.monotonic() + self._rest
        self._rest = min(2 * self._rest, _LONGEST_REST)
        what = "does not answer in time" if error is None or isinstance(error, TimeoutError) else "cannot be asked"
        self._tell("server", f"the remote cache {what}, and is left alone for a while: {text}")

    def _unpacked(self, name: str, packed: bytes) -> tuple[bytes, bytes] | None:
        """Source and product; None for what this fleet did not sign. Time that this is looked at is the server's."""
        begun = time.monotonic()
        try:
            return unpack(name, packed, fleet_key())
        except Unsigned as error:
            spent = time.monotonic() - begun
            self._slow += spent if spent > _SLOW else 0.0
            self._note("rejected", name, begun, str(error))
            self._tell("rejected", f"an entry of the remote cache is not used: {error}")
            return None

    def _note(self, outcome: str, name: str, begun: float = 0.0, text: str = "") -> None:
        seconds = round(time.monotonic() - begun, 4) if begun else 0.0
        told = f"{name}: {outcome}" + (f" ({text})" if text else "")
        events.emit("remote_cache", "runtime", told, outcome=outcome, key=name, seconds=seconds)

    def _tell(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(f"argand: {files.printable(text)}", stacklevel=3)


def _text(error: Exception) -> str:
    """What went wrong, in short: what a server sends may be part of it."""
    return f"{type(error).__name__}: {error}"[:200]


def _address(name: str) -> str:
    """Under which name the server keeps an entry: those of other keys, of one that was changed say, are beside it."""
    return f"argand:{_machine()}:{_signature('', b'', fleet_key()).hex()[:8]}:{name}"


REMOTE = RemoteCache()
