"""A client of control sockets: one line of JSON there, one line of JSON back.

What comes back was written by another process, which may be ill: sizes and times are bounded, and what is not as agreed
is a `RemoteError` in one sentence.
"""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import time
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from softmrc._support.files import runtime_folder
from softmrc.errors import ConfigError, RemoteError, UsageError, did_you_mean
from softmrc.ops.control import schema

PROTOCOL = 1
MAX_BYTES = 64 << 20  # of an answer
MAX_ASKED_BYTES = 64 << 10  # of a request, as devices have it
MAX_IN_BATCH = 4096  # entries that surely fit into a request
TIMEOUT_S = 5.0
EVENT_TYPES = ("qp_state", "ev_state", "port_state", "peer_ports", "probe_answer", "packet_refused")
_NAME = re.compile(r"(\d+)-(\d+)\.sock")


@dataclass(frozen=True)
class BatchFailure:
    """An entry of a batch that was not done, and why: of a queue pair, or of a profile's list."""

    qpn: int
    ev: int
    error: str
    profile: int = 0


@dataclass(frozen=True)
class BatchResult:
    """What became of a batch: how many entries were done, and those that were not."""

    done: int
    failed: tuple[BatchFailure, ...] = ()


@dataclass
class EventBatch:
    """Events of a device since it was last asked, and how many it no longer knew."""

    events: list[dict[str, Any]] = field(default_factory=list)
    lost: int = 0


class DeviceTimeout(RemoteError):
    """A device does not answer in time. It may be stopped, and answer yet."""


class DeviceClient:
    """One device of a running process. Close it, or use it as a context."""

    def __init__(self, path: Path, timeout_s: float = TIMEOUT_S) -> None:
        self.path = path
        self.name = path.name.removesuffix(".sock")
        self._timeout_s = timeout_s
        self._rest = b""
        self._next: Any = None  # of the events, as the device calls it
        self._is_closed = False
        self._socket: socket.socket | None = self._connected()

    def _connected(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.settimeout(self._timeout_s)
        try:
            made.connect(str(self.path))
        except (OSError, ValueError) as error:
            made.close()
            if isinstance(error, BlockingIOError | TimeoutError):  # its backlog is full
                raise DeviceTimeout(
                    f"device {self.name} does not accept connections: its process may be stopped"
                ) from None
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise UsageError(f"device {self.name} cannot be queried: {why}") from None
        return made

    def close(self) -> None:
        """For good. A thread that waits for an answer gets a RemoteError."""
        self._is_closed = True
        self._hang_up()

    def _hang_up(self) -> None:
        left, self._socket, self._rest = self._socket, None, b""
        if left is not None:
            with suppress(OSError):
                left.shutdown(socket.SHUT_RDWR)
            left.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """One request and its answer; what the device refuses is a `UsageError` in its words."""
        request = {"op": op} | {key: value for key, value in fields.items() if value is not None}
        try:
            line = json.dumps(request).encode()
        except RecursionError:
            raise UsageError(f"device {self.name} was not asked: {op} is nested too deep") from None
        if len(line) >= MAX_ASKED_BYTES:
            most = f"a device takes {MAX_ASKED_BYTES:,} at most"
            raise UsageError(f"device {self.name} was not asked: {op} has {len(line) + 1:,} bytes, and {most}")
        try:
            answer = schema.parse(self._answer(line + b"\n"))
        except TimeoutError:
            raise DeviceTimeout(f"device {self.name} does not answer {op} within {self._timeout_s:g} s") from None
        except RemoteError:
            raise
        except (OSError, EOFError) as error:
            raise RemoteError(f"device {self.name} closed the connection: {error}") from None
        except (ValueError, RecursionError):
            raise RemoteError(f"device {self.name} answers {op} with invalid JSON") from None
        if not isinstance(answer, dict) or not isinstance(answer.get("ok"), bool):
            raise RemoteError(f"device {self.name} answers {op} with {answer!r}")
        if not answer["ok"]:
            refusal = RemoteError(str(answer.get("error", "no reason given")))  # on one line, printable
            raise UsageError(f"device {self.name} refuses {op}: {refusal}")
        try:
            schema.check(op, answer)
        except schema.SchemaError as error:
            raise RemoteError(f"device {self.name} sent an invalid answer to {op}: {error}") from None
        return answer

    def _answer(self, line: bytes) -> bytes:
        """One line. After an error the connection is closed and the next request opens a new one: a late answer would
        be taken for that of another request."""
        if self._is_closed:
            raise UsageError(f"device {self.name} cannot be queried: this client was closed")
        until = time.monotonic() + self._timeout_s
        try:
            if self._socket is None:
                self._socket = self._connected()
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(line)
            return self._line(self._socket, until)
        except BaseException:
            self._hang_up()
            raise

    def _line(self, connection: socket.socket, until: float) -> bytes:
        parts, size = [self._rest], len(self._rest)
        while b"\n" not in parts[-1]:
            if (left := until - time.monotonic()) <= 0:
                raise TimeoutError
            connection.settimeout(left)
            more = connection.recv(1 << 20)
            if not more:
                raise EOFError("the connection ended")
            parts.append(more)
            size += len(more)
            if size > MAX_BYTES:
                raise RemoteError(f"device {self.name} answers with more than {MAX_BYTES:,} bytes")
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line

    # Queries.

    def info(self) -> dict[str, Any]:
        """Who it is: process, program, kind, planes, settings."""
        found = self.ask("info")
        if found.get("protocol") != PROTOCOL:
            spoken = found.get("protocol")
            raise RemoteError(f"device {self.name} speaks protocol {spoken!r}, and this is {PROTOCOL}")
        return found

    def stats(self) -> dict[str, Any]:
        return self.ask("stats")

    def queue_pairs(self, qpn: int | None = None, evs: bool = True) -> list[dict[str, Any]]:
        return _rows(self.ask("qps", qpn=qpn, evs=evs), "qps", self.name)

    def events(self, types: Sequence[str] = (), most: int = 4096) -> EventBatch:
        """Events since this node was last asked; of these types only, if some are named."""
        for unknown in (one for one in types if one not in EVENT_TYPES):
            raise ConfigError(
                "type", unknown, "must be one of " + ", ".join(EVENT_TYPES), did_you_mean(unknown, EVENT_TYPES)
            )
        found = self.ask("events", since=self._next, most=most)
        self._next = found.get("next")
        kept = [one for one in _rows(found, "events", self.name) if not types or one.get("type") in types]
        return EventBatch(kept, int(found.get("lost", 0)))

    # Commands.

    def set_port(self, plane: int, up: bool) -> list[dict[str, Any]]:
        """Take a plane out of service, or put it back; its planes then."""
        return _rows(self.ask("port", plane=plane, up=up), "planes", self.name)

    def faults(self) -> list[dict[str, Any]]:
        return _rows(self.ask("faults"), "faults", self.name)

    def capture(self, path: str | None) -> dict[str, Any]:
        """Begin one to a file, or end the one that runs: where it goes, and how many packets it has."""
        answer = self.ask("capture", stop=True) if path is None else self.ask("capture", start=path)
        if not isinstance(found := answer.get("capture"), dict):
            raise RemoteError(f"{self.name} answered without a capture")
        return found

    def set_faults(self, text: str) -> list[dict[str, Any]]:
        return _rows(self.ask("faults", set=text), "faults", self.name)

    def deny(self, evs: Sequence[int] | None = None, **where: Any) -> BatchResult:
        """Keep queue pairs (that of `qpn`, or all) off some EVs by their indices, or off a `plane`; or those that use
        the EV profile `profile`, now and later, off places of its list. What can be done is
        done, and failures are listed; `stop=True` stops at the first."""
        return self._batch("deny", evs, **where)

    def allow(self, evs: Sequence[int] | None = None, **where: Any) -> BatchResult:
        """Undo `deny`."""
        return self._batch("allow", evs, **where)

    def _batch(
        self, op: str, evs: Sequence[int] | None, *, qpn: int | None = None, plane: int | None = None,
        profile: int | None = None, stop: bool = False,
    ) -> BatchResult:  # fmt: skip
        if (evs is None) == (plane is None):
            raise ConfigError("evs", evs, "needs either a list of indices or a plane")
        listed = None if evs is None else list(evs)
        done, failed = 0, tuple[BatchFailure, ...]()
        for part in _in_parts(listed):
            answer = self.ask(op, qpn=qpn, profile=profile, evs=part, plane=plane, stop=stop or None)
            batch = _batch_of(answer)
            done, failed = done + batch.done, failed + batch.failed
            if stop and failed:
                break
        return BatchResult(done, failed)

    def replace(
        self, qpn: int | None, ev: int, value: int | str, *, profile: int | None = None, all_copies: bool = False
    ) -> None:
        """Another path in the place of an EV: 32 bits, or a wide one as hexadecimal text. Of a queue pair, or of a
        profile's list; then with `all_copies` of the queue pairs that use it, too."""
        self.ask("replace", qpn=qpn, profile=profile, ev=ev, value=value, all_copies=all_copies or None)


def _rows(answer: dict[str, Any], key: str, name: str) -> list[dict[str, Any]]:
    rows = answer.get(key)
    if not isinstance(rows, list) or not all(isinstance(one, dict) for one in rows):
        raise RemoteError(f"device {name} answers without a list of {key}")
    return rows


def _in_parts(evs: list[int] | None) -> Iterator[list[int] | None]:
    """As many requests as it takes: each entry of a batch stands for itself, so several are as good as one."""
    if not evs:
        yield evs
        return
    for first in range(0, len(evs), MAX_IN_BATCH):
        yield evs[first : first + MAX_IN_BATCH]


def _batch_of(answer: dict[str, Any]) -> BatchResult:
    failed = answer.get("failed") or []
    return BatchResult(
        int(answer.get("done", 0)),
        tuple(
            BatchFailure(
                int(one.get("qpn", 0)),
                int(one.get("ev", 0)),
                str(RemoteError(str(one.get("error", "")))),
                int(one.get("profile", 0)),
            )
            for one in failed
        ),
    )


def _paths(where: Path) -> Iterator[Path]:
    """The sockets, by process and number. A folder that others may write to is ignored."""
    try:
        about = where.lstat()
    except OSError:
        return
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
        raise UsageError(f"{where} is no folder of this user's alone; it must be its own, with mode 0700")
    found = [(match, path) for path in where.iterdir() if (match := _NAME.fullmatch(path.name))]
    for _, path in sorted(found, key=lambda pair: (int(pair[0][1]), int(pair[0][2]))):
        yield path


def devices(where: Path | None = None, besides: Container[str] = ()) -> list[DeviceClient]:
    """All reachable devices of this user, except those named in `besides`. Sockets of killed processes and devices that
    accept no connection are skipped."""
    found = []
    for path in _paths(where or runtime_folder()):
        with suppress(UsageError, DeviceTimeout):
            if path.stem not in besides:
                found.append(DeviceClient(path))
    return found


def find_device(name: str | None = None) -> DeviceClient:
    """The device of this name (`4711-0`), the only one of a process (`4711`), or the only one there is."""
    paths = [
        path
        for path in _paths(runtime_folder())
        if name is None or path.stem == name or path.stem.split("-")[0] == name
    ]
    if name is not None and len(paths) == 1:
        return DeviceClient(paths[0])
    alive = []
    for path in paths:
        with suppress(UsageError):
            alive.append(DeviceClient(path))
    if len(alive) == 1:
        return alive[0]
    for node in alive:
        node.close()
    if not alive:
        there = [path.stem for path in _paths(runtime_folder())]
        which = "no device of yours is running" if name is None else f"no device is called {name}"
        if name is None or not there:
            raise UsageError(f"{which}: none is in {runtime_folder()}")
        raise UsageError(f"{which}; there {'is' if len(there) == 1 else 'are'} {', '.join(there)}")
    raise UsageError(
        f"several devices are running: {', '.join(node.name for node in alive)}. Choose one with --device NAME"
    )
