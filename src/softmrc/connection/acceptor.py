"""Handshakes side by side: one thread that sleeps until a client connects, and limits what clients may take up.

A client that has not yet shown that it knows the secret costs a socket and a little memory; one that has made an offer
and has not yet said that it is ready, a queue pair besides. Each for a limited time, and of either kind there are only
so many, in all and from one address: the oldest is dropped when another comes, never the newest. So clients that fall
silent, at whatever step, keep nobody out; and a client that was dropped is told that it may try again.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from softmrc._support.fork import no_survivor
from softmrc._support.threads import fork_safe_lock, has_started
from softmrc._support.weak_registry import WeakRegistry
from softmrc.connection import keys
from softmrc.connection.bootstrap import Knowledge, authenticator_of
from softmrc.connection.connection import Connection
from softmrc.connection.handshake import LISTENER, Authenticator, BootstrapSocket, HandshakeError, framed, welcome
from softmrc.connection.memory import OfferedMemory
from softmrc.connection.offer import Offer
from softmrc.device import Device
from softmrc.errors import DeviceError, MrcError, UsageError

HANDSHAKE_S = 10.0  # for all of it, from the first byte to the last
MAX_UNFINISHED = 256  # of those who have proved nothing, and as many of those who have
MAX_FROM_ONE_ADDRESS = 64  # likewise
MAX_WAITING = 128  # finished, and not yet accepted
REASONS_KEPT = 16
ADMITTED_AT_ONCE = 64
PAUSE_S = 0.1  # when the system has no descriptors left
PASSING = {errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS, errno.ENOMEM}
OUT_OF_DESCRIPTORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

TOO_MANY = HandshakeError(
    "made room for others: too many had not finished", "too many connect at once; try again", busy=True
)
SHORT = "this side is short of descriptors or memory; try again"
CLOSED = HandshakeError("was there when the listener was closed", "the listener was closed")

_acceptors: WeakRegistry[Acceptor] = WeakRegistry()


@dataclass(frozen=True)
class Refusals:
    """How many clients were turned away, and why the last ones were, oldest first. Those that were told to come again
    (the listener was busy) are counted too, and once more by themselves: honest ones did, as a rule."""

    count: int
    reasons: tuple[str, ...]
    told_to_come_again: int = 0


@lru_cache(maxsize=1024)
def _origin(address: str) -> str:
    """What clients are counted by: an IPv4 address, or an IPv6 network, of which one host has all addresses."""
    known = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(known, ipaddress.IPv6Address) and known.ipv4_mapped is None:
        return str(ipaddress.IPv6Network((known, 64), strict=False))
    return str(known)


def _check_passing(error: OSError) -> None:
    """Where nothing can be sent or received at this moment, it is tried again: until the handshake's time is up."""
    if error.errno not in PASSING:
        raise HandshakeError(f"is gone: {error.strerror or error}") from None


class PendingHandshake:
    """The handshake with a client that is not a peer yet."""

    def __init__(self, sock: socket.socket, origin: str, knowledge: Knowledge, acceptor: Acceptor) -> None:
        self.channel = BootstrapSocket(sock)
        self.origin = origin
        self.since = time.monotonic()  # of this step of the handshake
        self.until = self.since + acceptor.handshake_s
        self.connection: Connection | None = None  # once it has shown that it knows the secret
        self.is_refused = False  # and stays only until it has been told why
        self._is_through = False  # the handshake's steps
        self._acceptor = acceptor
        self._outbox = bytearray()
        self._proof = authenticator_of(knowledge, LISTENER)
        self._steps = welcome(self._proof, self._answer, self._narrow)
        next(self._steps)

    def _answer(self, said: dict[str, Any]) -> dict[str, Any]:
        offer = Offer.checked(said, self._acceptor.device, self._acceptor.is_sealed)
        self.connection = self._acceptor.make(self.channel, self._proof)
        self.since = time.monotonic()
        self.connection.accept(offer)
        return self.connection.offer()

    def _narrow(self, mtu: object) -> bool:
        assert self.connection is not None
        return self.connection.narrow(mtu)

    @property
    def wants(self) -> int:
        """What it says after its part is not the handshake's."""
        reads = 0 if self._is_through or self.is_refused else selectors.EVENT_READ
        return reads | (selectors.EVENT_WRITE if self._outbox else 0)

    @property
    def is_finished(self) -> bool:
        """Whether all is said, by either side."""
        return self._is_through and not self._outbox

    @property
    def is_owed_words(self) -> bool:
        return bool(self._outbox)

    def attend(self) -> None:
        """Take what it has sent, and answer, without waiting."""
        if self.wants & selectors.EVENT_READ:
            self._receive()
        self._send()

    def _receive(self) -> None:
        try:
            data = self.channel.socket.recv(1 << 16)
            if not data:
                raise HandshakeError("closed the connection during the handshake")
            self.channel.inbox.add(data)
        except OSError as error:
            _check_passing(error)
        while not self._is_through and (frame := self.channel.inbox.next()) is not None:
            try:
                answer = self._steps.send(frame)
            except StopIteration as end:
                self._is_through = True
                if end.value is not None:
                    self._outbox += framed(end.value)
            else:
                self._outbox += framed(answer or {})

    def _send(self) -> None:
        try:
            while self._outbox:
                del self._outbox[: self.channel.socket.send(self._outbox)]
        except OSError as error:
            _check_passing(error)

    def refuse(self, refusal: HandshakeError) -> None:
        """Say why, if there is a word for it, as far as that can be said without waiting."""
        if self.is_refused:
            return
        self.is_refused = True
        if refusal.told:
            self._outbox += framed(refusal.frame)
        try:
            self._send()
        except HandshakeError:
            self._outbox.clear()  # it hears nothing any longer

    def leave(self, refusal: HandshakeError) -> None:
        self.refuse(refusal)
        connection, self.connection = self.connection, None
        if connection is not None:
            with contextlib.suppress(MrcError, OSError, MemoryError):
                connection.close(0.0)
        self._steps.close()  # it refers to this handshake, and would keep it
        self.channel.close()


class Acceptor:
    """Receives clients of a listener's sockets, until it is closed or its device is."""

    def __init__(
        self, sockets: Sequence[socket.socket], device: Device, knowledge: Knowledge, memory: OfferedMemory
    ) -> None:
        self.handshake_s = HANDSHAKE_S
        self._sockets = sockets
        self.device = device
        self._knowledge = knowledge
        self._memory = memory
        self.is_sealed = keys.is_wanted(device, knowledge is not None)
        self._pending: dict[socket.socket, PendingHandshake] = {}  # in the order in which they came
        self._lock = fork_safe_lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[Connection] = deque()
        self._wakers: set[Callable[[], Any]] = set()
        self._over = ""  # why nobody is received any longer
        self._refused = self._told_to_come_again = 0
        self._reasons: deque[str] = deque(maxlen=REASONS_KEPT)
        self._resumes_at: float | None = None
        self._wake = -1
        self._thread = threading.Thread(target=self._run, name="softmrc-listener", daemon=True)
        # What was opened so far. A signal may leave the start of a thread that runs, or that is yet to: either it takes
        # this out, and closes all itself, or `close` does, and the thread ends before it has touched anything.
        self._undo = [contextlib.ExitStack()]

    def open(self) -> None:
        """Where that fails, or is interrupted, `close` undoes it."""
        self._open(self._undo[0])
        self._start()
        _acceptors.add(self)

    def _open(self, undo: contextlib.ExitStack) -> None:
        try:
            self._selector = undo.enter_context(selectors.DefaultSelector())
            self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            undo.callback(self._close_wake)
            self._watch = self.device.create_cq()  # nothing ever ends there: readable means that the device is closed
            undo.callback(self._watch.destroy)
            self._resume_accepting()
            self._selector.register(self._wake, selectors.EVENT_READ, lambda: None)
            self._selector.register(self._watch.fileno(), selectors.EVENT_READ, self._device_closed)
        except OSError as error:
            raise DeviceError(error.errno, f"cannot open a listener: {error.strerror}") from None

    def _start(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as error:
            if has_started(self._thread):  # Python was interrupted as it waited for it, and stumbled over its lock then
                raise (error.__context__ or error) from None
            raise DeviceError(errno.EAGAIN, f"cannot start a listener's thread: {error}") from None

    def _resume_accepting(self) -> None:
        for sock in self._sockets:
            if sock not in self._selector.get_map():
                sock.setblocking(False)
                self._selector.register(sock, selectors.EVENT_READ, partial(self._admit, sock))

    # What callers ask.

    def take(self, timeout_s: float | None) -> Connection | None:
        """The next connection that is finished; None when the time is up."""
        with self._lock:
            self._changed.wait_for(lambda: self._waiting or self._over, timeout_s)
            if self._waiting:
                return self._waiting.popleft()
            if self._over:
                raise UsageError(self._over)
            return None

    def call_when_changed(self, wake: Callable[[], Any]) -> bool:
        """Have it called as soon as `take` might find something, unless it would now: then False."""
        with self._lock:
            if self._waiting or self._over:
                return False
            self._wakers.add(wake)
            return True

    def forget(self, wake: Callable[[], Any]) -> None:
        with self._lock:
            self._wakers.discard(wake)

    def refused(self) -> Refusals:
        with self._lock:
            return Refusals(self._refused, tuple(self._reasons), self._told_to_come_again)

    def close(self) -> None:
        """Drop all clients, and wait until the thread has ended."""
        self.end()
        try:
            undo = self._undo.pop()
        except IndexError:
            if self._thread.is_alive() and threading.current_thread() is not self._thread:
                self._thread.join()
        else:
            undo.close()

    def end(self) -> None:
        """Receive nobody any longer. The thread ends by itself."""
        self._end("the listener is closed")
        with self._lock:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def abandon(self) -> None:
        """In a forked child: the thread is the parent's, and so is who comes. Only copies of descriptors are here."""
        self._changed = threading.Condition(self._lock)
        self._over = no_survivor("the listener")
        self._waiting.clear()
        self._selector.close()
        self._close_sockets()
        self._close_wake()

    # What the thread does.

    def make(self, channel: BootstrapSocket, proof: Authenticator) -> Connection:
        if len(self._waiting) >= MAX_WAITING:
            others = f"came when {MAX_WAITING} others waited to be accepted"
            raise HandshakeError(others, "too many wait to be accepted", busy=True)
        return Connection(self.device, channel, proof, self._memory, owns_device=False)

    def _run(self) -> None:
        try:
            self._undo.pop()
        except IndexError:
            return  # closed as it began
        try:
            while not self._over:
                for key, _ in self._ready():
                    self._try(key.data)
                self._try(self._expire)
        except BaseException as error:
            self._end(f"the listener is closed: it failed ({type(error).__name__}: {error})")
            raise
        finally:
            for pending in list(self._pending.values()):
                self._dismiss(pending, CLOSED)
            self._selector.close()
            self._close_sockets()
            self._close_wake()
            with contextlib.suppress(MrcError):  # the device is closed
                self._watch.destroy()  # at once, though an exception may keep this one

    def _close_wake(self) -> None:
        with self._lock:
            wake, self._wake = self._wake, -1
            if wake >= 0:
                os.close(wake)

    def _ready(self) -> list[tuple[selectors.SelectorKey, int]]:
        try:
            return self._selector.select(self._patience_s())
        except (OSError, MemoryError):  # of the kernel, or of this process: it may have some again
            time.sleep(PAUSE_S)
            return []

    def _try(self, step: Callable[[], None]) -> None:
        """What goes wrong with one client, or for a moment, is no reason to receive nobody else."""
        try:
            step()
        except Exception as error:
            self._count(f"something went wrong at this side: {error or type(error).__name__}", is_busy=True)
            time.sleep(PAUSE_S)

    def _close_sockets(self) -> None:
        for sock in self._sockets:
            sock.close()

    def _patience_s(self) -> float | None:
        moments = [pending.until for pending in self._pending.values()][:1]
        if self._resumes_at is not None:
            moments.append(self._resumes_at)
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _expire(self) -> None:
        now = time.monotonic()
        while self._pending and (first := next(iter(self._pending.values()))).until <= now:
            self._turn_away(
                first, HandshakeError("did not finish the handshake in time", "you took too long"), at_once=True
            )
        if self._resumes_at is not None and self._resumes_at <= now:
            self._resumes_at = None
            try:
                self._resume_accepting()
            except OSError:  # the kernel is still short of memory
                self._resumes_at = now + PAUSE_S

    def _admit(self, listening: socket.socket) -> None:
        for _ in range(ADMITTED_AT_ONCE):
            try:
                sock, address = listening.accept()
            except OSError as error:
                if error.errno in OUT_OF_DESCRIPTORS:
                    self._out_of_descriptors()
                return
            try:
                sock.setblocking(False)
                pending = PendingHandshake(sock, _origin(address[0]), self._knowledge, self)
                self._selector.register(sock, selectors.EVENT_READ, partial(self._attend, pending))
            except Exception as error:  # ours, and it may pass: the thread goes on for whoever comes next
                self._count(f"{address[0]} could not be received: {error}", is_busy=True)
                sock.close()
                continue
            self._pending[sock] = pending
            self._make_room_for(pending)

    def _make_room_for(self, newest: PendingHandshake) -> None:
        """Who proves itself competes with those who have, and no longer with the crowd that has not."""
        has_proved = newest.connection is not None
        alike = [pending for pending in self._pending.values() if (pending.connection is not None) is has_proved]
        from_there = [pending for pending in alike if pending.origin == newest.origin]
        if len(from_there) > MAX_FROM_ONE_ADDRESS:
            self._evict(_oldest(from_there))
        elif len(alike) > MAX_UNFINISHED:
            self._evict(_oldest(alike))

    def _evict(self, pending: PendingHandshake) -> None:
        """Unless what it has said meanwhile brings it a step further: who is ready takes itself for connected."""
        step = pending.connection
        self._attend(pending)
        if self._pending.get(pending.channel.socket) is pending and pending.connection is step:
            self._turn_away(pending, TOO_MANY, at_once=True)

    def _out_of_descriptors(self) -> None:
        """A client cannot be accepted: a pending handshake is dropped, or nothing is accepted for a moment."""
        if self._pending:
            pending = list(self._pending.values())
            self._evict(_oldest([one for one in pending if one.connection is None] or pending))
            return
        for sock in self._sockets:
            if sock in self._selector.get_map():  # or another socket was short of descriptors a moment ago
                self._selector.unregister(sock)
        self._resumes_at = time.monotonic() + PAUSE_S

    def _attend(self, pending: PendingHandshake) -> None:
        if self._pending.get(pending.channel.socket) is not pending:
            return  # turned away meanwhile
        had_proved = pending.connection is not None
        try:
            pending.attend()
            if pending.is_refused and not pending.is_owed_words:
                self._dismiss(pending, CLOSED)
            elif pending.is_finished:
                self._finish(pending)
            else:
                self._watch_for(pending)
        except HandshakeError as refusal:
            self._turn_away(pending, refusal)
        except Exception as error:  # ours: it is no fault of the client's, nor a reason to receive nobody else
            is_short = isinstance(error, MemoryError) or getattr(error, "errno", None) in OUT_OF_DESCRIPTORS
            told = SHORT if is_short else "something went wrong at this side"
            self._turn_away(pending, HandshakeError(f"could not be connected: {error}", told, busy=is_short))
        else:
            if not pending.is_finished and pending.connection is not None and not had_proved:
                self._make_room_for(pending)

    def _watch_for(self, pending: PendingHandshake) -> None:
        self._selector.modify(pending.channel.socket, pending.wants, partial(self._attend, pending))

    def _finish(self, pending: PendingHandshake) -> None:
        connection = pending.connection
        assert connection is not None
        pending.channel.socket.setblocking(True)
        connection.begin()
        pending.connection = None  # the caller's alone, from here on
        self._selector.unregister(pending.channel.socket)
        del self._pending[pending.channel.socket]
        with self._lock:
            if not self._over:
                self._waiting.append(connection)
                self._tell()
                return
        connection.close(0.0)

    def _turn_away(self, pending: PendingHandshake, refusal: HandshakeError, at_once: bool = False) -> None:
        """It is told why. Where the system has no room for that at this moment it stays until there is, at most until
        its time is up; one that has to make room goes."""
        is_news = not pending.is_refused
        if is_news:
            self._count(f"{pending.channel.peer_name} {refusal}", refusal.busy)
            pending.refuse(refusal)
        if is_news and pending.is_owed_words and not at_once:
            with contextlib.suppress(OSError):
                self._watch_for(pending)
                return
        self._dismiss(pending, refusal)

    def _count(self, reason: str, is_busy: bool) -> None:
        with self._lock:
            self._refused += 1
            self._told_to_come_again += is_busy
            self._reasons.append(reason)

    def _dismiss(self, pending: PendingHandshake, refusal: HandshakeError) -> None:
        self._selector.unregister(pending.channel.socket)
        del self._pending[pending.channel.socket]
        pending.leave(refusal)

    def _device_closed(self) -> None:
        self._end("the listener is closed: its device is")

    def _end(self, why: str) -> None:
        with self._lock:
            self._over = self._over or why
            left, self._waiting = self._waiting, deque()
            self._tell()
        for connection in left:
            with contextlib.suppress(MrcError):
                connection.close(0.0)

    def _tell(self) -> None:
        self._changed.notify_all()
        for wake in self._wakers:
            with contextlib.suppress(RuntimeError):  # of an event loop that has ended
                wake()


def _oldest(pending: list[PendingHandshake]) -> PendingHandshake:
    """Who has been at this step for longest."""
    return min(pending, key=lambda one: one.since)


def _in_child() -> None:
    for acceptor in _acceptors:
        acceptor.abandon()


os.register_at_fork(after_in_child=_in_child)
