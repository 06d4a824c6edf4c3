"""A listener's thread. It sleeps until a client connects; the handshakes and their limits are the core's
(`core/host/acceptor.h`). What is made of a client's offer, once that is authenticated, is made here."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from softmrc import _core
from softmrc._core import AcceptorEvent
from softmrc._support.fork import no_survivor
from softmrc._support.threads import fork_safe_lock, has_started
from softmrc._support.weak_registry import WeakRegistry
from softmrc.connection import keys
from softmrc.connection.bootstrap import Knowledge, native_credentials
from softmrc.connection.connection import Connection
from softmrc.connection.handshake import BootstrapSocket, Session
from softmrc.connection.identity import Identity
from softmrc.connection.memory import OfferedMemory
from softmrc.connection.offer import Offer
from softmrc.device import Device
from softmrc.errors import DeviceError, HandshakeError, MrcError, UsageError

HANDSHAKE_S = 10.0  # for all of it, from the first byte to the last
MAX_WAITING = 128  # finished, and not yet accepted
PAUSE_S = 0.1  # when the system is short of something
OUT_OF_DESCRIPTORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

SHORT = "this side is short of descriptors or memory; try again"

_acceptors: WeakRegistry[Acceptor] = WeakRegistry()


@dataclass(frozen=True)
class Refusals:
    """How many clients were turned away, and why the last ones were, oldest first. Those that were
    answered to try again (the listener was busy) are counted too, and once more by themselves."""

    count: int
    reasons: tuple[str, ...]
    told_to_come_again: int = 0


class Acceptor:
    """Receives clients of a listener's sockets, until it is closed or its device is."""

    def __init__(self, listening: Sequence[int], device: Device, knowledge: Knowledge, memory: OfferedMemory) -> None:
        """Takes the descriptors of the listening sockets, also where it fails."""
        config = device.config
        self._native = _core.Acceptor(
            listening, native_credentials(knowledge), config.max_pending, config.max_pending_per_address,
            config.max_connections, config.max_connections_per_address, HANDSHAKE_S,
        )  # fmt: skip
        self.device = device
        self._knowledge = knowledge
        self._memory = memory
        try:
            self.is_sealed = keys.is_wanted(device, knowledge is not None)
        except BaseException:
            self._native.close()  # at once, though the exception keeps this one
            raise
        self._names: dict[int, str] = {}  # by which keys are known, of clients that are not connected yet
        self._pending: dict[int, Connection] = {}  # likewise, what was made of their offers
        self._lock = fork_safe_lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[Connection] = deque()
        self._wakers: set[Callable[[], Any]] = set()
        self._over = ""  # why no client is accepted any longer
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
            self._selector.register(self._native.fileno(), selectors.EVENT_READ, lambda: None)
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
        return Refusals(*self._native.refusals())

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
            self._native.close()

    def end(self) -> None:
        """Accept no more clients. The thread ends by itself."""
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
        self._native.close_after_fork()
        self._close_wake()

    # What the thread does.

    def _run(self) -> None:
        try:
            self._undo.pop()
        except IndexError:
            return  # closed as it began
        try:
            while not self._over:
                for key, _ in self._ready():
                    key.data()
                self._try(self._poll)
        except BaseException as error:
            self._end(f"the listener is closed: it failed ({type(error).__name__}: {error})")
            raise
        finally:
            self._native.close()
            for connection in self._pending.values():
                _drop(connection)
            self._pending.clear()
            self._selector.close()
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
            return self._selector.select(self._native.due_s())
        except (OSError, MemoryError):  # of the kernel, or of this process: it may have some again
            time.sleep(PAUSE_S)
            return []

    def _try(self, step: Callable[[], None]) -> None:
        """An error with one client, or a temporary one, must not stop the listener from accepting others."""
        try:
            step()
        except Exception as error:
            self._native.count_refusal(f"something went wrong at this side: {error or type(error).__name__}")
            time.sleep(PAUSE_S)

    def _poll(self) -> None:
        """Poll once only: clients may connect without end, and the listener may be closed at any time. After an answer
        the next step is due at once."""
        try:
            events = self._native.poll()
        except DeviceError as error:
            if error.errno is not None:
                raise
            return self._end(f"the listener is closed: {error}")  # a socket of it has failed for good
        for kind, number, mtu, content, *_ in events:
            if kind is AcceptorEvent.ENDED:
                self._forget(number)
            elif kind is AcceptorEvent.IDENTIFIED:
                self._answer(number, partial(self._identify, number, content))
            elif kind is AcceptorEvent.OFFERED:
                self._answer(number, partial(self._offer, number, content))
            elif kind is AcceptorEvent.READY:
                self._answer(number, partial(self._ready_for, number, mtu))
            elif kind is AcceptorEvent.FINISHED:
                self._answer(number, partial(self._finish, number))

    def _answer(self, number: int, step: Callable[[], None]) -> None:
        """A step of one client's handshake."""
        try:
            step()
        except HandshakeError as refusal:
            self._native.refuse(number, str(refusal), refusal.message_to_peer, refusal.busy)
            self._forget(number)
        except Exception as error:  # our failure, not the client's: other clients are still accepted
            is_short = isinstance(error, MemoryError) or getattr(error, "errno", None) in OUT_OF_DESCRIPTORS
            answer = SHORT if is_short else "something went wrong at this side"
            self._native.refuse(number, f"could not be connected: {error}", answer, is_short)
            self._forget(number)

    def _identify(self, number: int, key: bytes) -> None:
        assert isinstance(self._knowledge, Identity)
        self._names[number] = self._knowledge.name_of(key)
        self._native.allow(number)

    def _offer(self, number: int, content: bytes) -> None:
        if len(self._waiting) >= MAX_WAITING:
            others = f"came when {MAX_WAITING} others waited to be accepted"
            raise HandshakeError(others, "too many wait to be accepted", True)
        native = self._native
        exporter = native.exporter(number)
        if exporter is None and self._knowledge is not None:
            return  # it was dropped for another since, which is said next; without keys nothing is made of its offer
        offer = Offer.checked(content, self.device, self.is_sealed)
        session = Session(False, native.peer(number), exporter, self._names.pop(number, ""))
        connection = Connection(self.device, session, self._memory, owns_device=False)
        self._pending[number] = connection
        connection.accept(offer)
        native.answer(number, connection.offer())

    def _ready_for(self, number: int, mtu: int) -> None:
        if (connection := self._pending.get(number)) is not None:
            self._native.finish(number, connection.narrow(mtu))

    def _finish(self, number: int) -> None:
        taken = self._native.take(number)
        connection = self._pending.get(number)
        if taken is None or connection is None:
            return
        fd, goodbye, goodbye_of_peer, rest, slot = taken
        channel = BootstrapSocket(fd, goodbye, goodbye_of_peer, rest)
        try:
            connection.begin(channel, slot)
        except Exception as error:  # the core has handed the client over: it neither counts a refusal nor hangs up
            self._native.count_refusal(f"{connection.peer_name} could not be connected: {error}")
            channel.hang_up()
            channel.close()
            return self._forget(number)
        del self._pending[number]  # the caller's alone, from here on
        with self._lock:
            if not self._over:
                self._waiting.append(connection)
                self._tell()
                return
        connection.close(0.0)

    def _forget(self, number: int) -> None:
        self._names.pop(number, None)
        if (connection := self._pending.pop(number, None)) is not None:
            _drop(connection)

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


def _drop(connection: Connection) -> None:
    with contextlib.suppress(MrcError, OSError, MemoryError):
        connection.close(0.0)


def _in_child() -> None:
    for acceptor in _acceptors:
        acceptor.abandon()


os.register_at_fork(after_in_child=_in_child)
