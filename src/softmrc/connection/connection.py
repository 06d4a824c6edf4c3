"""One connection, once both sides know each other: writes, messages, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Self

from softmrc import _core
from softmrc._core import LocalPlane, PeerState
from softmrc._support.fork import disown_in_child
from softmrc.config import RtrAttributes, bounds, to_native, whole_payload
from softmrc.connection import keys as sealing
from softmrc.connection import path_check, validate
from softmrc.connection.handshake import BootstrapSocket, Session
from softmrc.connection.memory import OfferedMemory
from softmrc.connection.offer import Offer, RemoteRegion, offer_of
from softmrc.connection.path_mtu import MtuDiscovery
from softmrc.connection.validate import ProtocolError
from softmrc.device import (
    FOREVER_S,
    CompletionQueue,
    Device,
    MemoryRegion,
    Peer,
    PostStatus,
    QueuePair,
    new_port_key,
    shutdown,
    writable_memory,
)
from softmrc.device.checks import FOR_EVER, blame, instance, seconds, whole
from softmrc.engine import CompletionStatus, QpState
from softmrc.errors import ConfigError, HandshakeError, RemoteError, UsageError

IN_ERROR = "the connection is in error"
HAS_LEFT = "has left: it closed the connection, or its process ended"
ENDS_WITH_PEER = {CompletionStatus.RETRY_EXCEEDED, CompletionStatus.PEER_ERROR, CompletionStatus.FLUSHED}


def _end_gone(device: Device) -> bool:
    """End the queue pairs of this device whose peers are gone; whether there were any."""
    has_ended, has_unconfirmed = device.native.end_gone()
    if has_unconfirmed and not has_ended:
        raise HandshakeError(
            "came while it was not known who else had left", "another may have left; try again", busy=True
        )
    return has_ended


def _timeout(timeout_s: float | None) -> float:
    return FOREVER_S if timeout_s is None else seconds("timeout_s", timeout_s, or_else=FOR_EVER)


def _new_qp(device: Device, memory: OfferedMemory) -> QueuePair:
    """With its own queues, which are destroyed if it cannot be made."""
    queues: list[CompletionQueue] = []
    try:
        for _ in range(2):
            queues.append(device.create_cq())
        return device.create_qp(*queues, domain=memory.domain)
    except BaseException:
        for queue in queues:
            queue.retire()
        raise


class Message(NamedTuple):
    """A write with immediate of the peer has arrived, and everything before it."""

    imm: int
    length: int


class Connection:
    """One queue pair to one peer. Made by `connect` and `Listener.accept`."""

    def __init__(self, device: Device, session: Session, memory: OfferedMemory, owns_device: bool) -> None:
        self.device = device
        self._session = session
        self._channel: BootstrapSocket | None = None  # once the handshake is over
        self._slot: object = None  # for which a listener's limit counts it
        self._owns_device = owns_device
        self._closed = False
        self._added: Peer | None = None
        self.is_sealed: bool = sealing.is_wanted(device, session.exporter is not None)  # packets are encrypted
        self.qp = _new_qp(device, memory)
        self._memory = memory.hold()
        self._port_key = new_port_key()
        self.remote: tuple[RemoteRegion, ...] = ()
        self.peer_name = session.peer_name
        self._native = _core.CompletionTracker(
            device.native, self.qp.qpn, self.qp.send_cq.number, self.qp.recv_cq.number
        )
        self._payload = 0  # bytes of a full packet
        self._failure = ""  # what errors say of the peer since a write has failed, once it was determined
        disown_in_child(self, "the connection")
        shutdown.track_connection(self)
        device.tell_when_closed(self)

    # What the two ends of a handshake call.

    def begin(self, channel: BootstrapSocket, slot: object = None) -> None:
        # The handshake is over.
        self._channel, self._slot = channel, slot
        fd, queues = channel.socket.fileno(), [self.qp.send_cq.number, self.qp.recv_cq.number]
        self.device.native.watch_bootstrap(self.qp.qpn, fd, channel.goodbye_of_peer, channel.rest, queues)

    def offer(self) -> _core.Offer:
        return offer_of(self.device, self.qp, self._memory.regions, self._port_key, self.is_sealed)

    @property
    def known_as(self) -> str:
        """The name by which `known_peers` has the peer's key; empty where it proved itself by a secret, or not."""
        return self._session.known_as

    def accept(self, offer: Offer) -> None:
        # Connect to a peer that offers this.
        try:
            self._establish(offer)
        except ConfigError as error:  # not on our map, or what else only the device knows
            raise HandshakeError(
                f"sent an offer that makes no sense: {error}", f"your offer makes no sense: {error}"
            ) from None

    def _establish(self, offer: Offer) -> None:
        device, qp = self.device, self.qp
        try:
            peer = device.add_peer(offer.planes)
        except ConfigError:
            # Ports that are another peer's: one that was started again may have them back.
            if not _end_gone(device):
                raise
            peer = device.add_peer(offer.planes)
        self._added = qp.peer = peer
        qp.init(ev_profile=device.profile_for(peer))
        # The exporter is dropped here: keys that were replaced must not be derived from it again later.
        session, self._session = self._session, replace(self._session, exporter=None)
        self._payload = offer.native.connect(
            device.native, to_native(device.config), qp.qpn, qp.first_psn, self._port_key, peer.id,
            device.payload(self.is_sealed), session.is_connector, session.exporter if self.is_sealed else None,
        )  # fmt: skip
        device.deny_listed(qp)
        self.remote = offer.regions

    def narrow(self, mtu: int) -> bool:
        # The connector has found out which payload gets through; 0: it did not look. Returns whether that is less than
        # both had offered.
        if not mtu:
            return False
        try:
            payload = whole_payload(validate.whole("mtu", mtu, *bounds(RtrAttributes, "mtu")))
        except ProtocolError as error:
            nonsense = f"ready for what makes no sense: {error}"
            raise HandshakeError(f"is {nonsense}", f"you are {nonsense}") from None
        if payload >= self._payload:
            return False
        self.device.native.narrow(self.qp.qpn, payload)
        self._payload = payload
        return True

    def discover_mtu(self) -> MtuDiscovery:
        return MtuDiscovery(self.device, self.qp.lane, self.peer.planes, self._payload, self.is_sealed)

    @property
    def peer(self) -> Peer:
        if self.qp.peer is None:
            raise UsageError("the connection is not established")
        return self.qp.peer

    def _source(self, buffer: Any, remote: RemoteRegion, offset: int) -> Any:
        self._check_open()
        instance("remote", remote, RemoteRegion, "must be memory of the peer: one of connection.remote")
        whole("offset", offset, 64)
        source = buffer.buffer if isinstance(buffer, MemoryRegion) else _core.Buffer(writable_memory(buffer), False)
        if offset + source.size > remote.length:
            room = f"at most {max(remote.length - offset, 0):,} bytes from offset {offset}"
            raise ConfigError("buffer", f"{source.size:,} bytes", f"must be {room} of the peer's {remote.length:,}")
        return source

    def post(self, remote: RemoteRegion, offset: int, buffer: Any, imm: int | None = None) -> int:
        """Start a write and return its number for `wait`. The buffer must not change until then."""
        source = self._source(buffer, remote, offset)
        try:
            number, status = self._native.post(source, remote.va + offset, remote.rkey, imm)
        except TypeError:
            blame(imm=(0 if imm is None else imm, 32))
            raise
        except UsageError:
            self._check_open()
            raise
        if status != PostStatus.OK:
            self._check_open()
            self._check_alive(may_ask=False)
            self.qp.refuse(status)
        return number

    def wait(self, number: int, timeout_s: float | None = None) -> None:
        """Until that write is in the peer's memory; at once if it has been for long."""
        timeout = _timeout(timeout_s)
        if not 1 <= whole("number", number, 64) <= self._native.last_number:
            raise ConfigError("number", number, "must be what `post` returned")
        if not self._native.wait_for_write(number, timeout):
            self._check_open()
            raise TimeoutError(f"write {number} to {self.peer} is not complete after {timeout_s} s")
        self._check_ended_well(number)

    def write(self, remote: RemoteRegion, offset: int, buffer: Any, imm: int | None = None) -> None:
        """Put the buffer's bytes into the peer's memory; with `imm`, tell it so."""
        self.wait(self.post(remote, offset, buffer, imm))

    async def write_async(self, remote: RemoteRegion, offset: int, buffer: Any, imm: int | None = None) -> None:
        """`write` for asyncio."""
        number = self.post(remote, offset, buffer, imm)
        while not self._has_ended(number):
            self._check_open()
            await self.qp.send_cq.readable(unless=lambda: self._has_ended(number))
        await self._explain_async()
        self._check_ended_well(number)

    def _has_ended(self, number: int) -> bool:
        """Of tasks, which poll for each other as threads do in native code."""
        self._poll(self._native.poll_writes, self.qp.send_cq)
        return not self._native.is_pending(number)

    @staticmethod
    def _poll(poll: Callable[[], bool], queue: CompletionQueue) -> None:
        if poll():  # the queue's descriptor was readable, and no longer is for other waiters
            queue.wake()

    def _check_ended_well(self, number: int) -> None:
        if self._native.has_failed(number):
            self._check_open()
            raise RemoteError(f"write {number} failed: peer {self.peer} {self._why_failed()}")

    def _why_failed(self, may_ask: bool = True) -> str:
        """What errors say of the peer since a write has failed; empty if none has."""
        failed_with = self._failed_with
        if not self._failure and failed_with is not None:
            words = self.why(failed_with, may_ask)
            if not may_ask:
                return words
            self._failure = words
        return self._failure

    @property
    def _failed_with(self) -> CompletionStatus | None:
        """The status of the first write that failed, which knows the cause."""
        status = self._native.first_failure
        return None if status is None else CompletionStatus(status)

    async def _explain_async(self) -> None:
        """Ask in another thread, so that what is raised next does not ask while the event loop waits."""
        self._poll(self._native.poll_writes, self.qp.send_cq)
        if self._failed_with is not None and not self._failure:
            await asyncio.to_thread(self._why_failed)

    def why(self, status: CompletionStatus, may_ask: bool = True) -> str:
        """The explanation for a write that ended with this status. It may take a second, unless `may_ask` is False: a
        peer that stopped answering is probed for the packet sizes that reach it."""
        if status in ENDS_WITH_PEER and self.has_lost_peer():
            return HAS_LEFT
        if status == CompletionStatus.RETRY_EXCEEDED:
            if words := self._narrowed() or path_check.never_reached(self.qp, self.peer):
                return words
            lost = self.discover_mtu().lost_now() if may_ask else ""
            return f"stopped answering: {lost or path_check.tried(self.device, self.peer.planes)}"
        return {
            CompletionStatus.REMOTE_ACCESS: "refused the address or the key",
            CompletionStatus.REMOTE_INVALID: "could not make sense of the request",
            CompletionStatus.REMOTE_OPERATION: "had no receive posted: it does not call recv() fast enough",
            CompletionStatus.PEER_ERROR: "takes nothing any more: it closed its end, or is in error",
            CompletionStatus.FLUSHED: "was given up on before this write's turn",
        }.get(status, status.name.lower().replace("_", " "))

    def _narrowed(self) -> str:
        """Links that carried our packets when the device was made, and are too narrow for them now."""
        rows = zip(self.device.local_planes, self.device.planes(), strict=True)
        now = [LocalPlane(plane.address, plane.interface, plane.link, row["link_mtu"]) for plane, row in rows]
        around = _core.LONGEST_SEALED_OVERHEAD if self.is_sealed else _core.LONGEST_PACKET_OVERHEAD
        narrow = [
            f"{one.link} (MTU {one.link_mtu:,})"
            for one in now
            if one.link_mtu and one.payload_mtu_with(around) < self._payload
        ]
        if not narrow:
            return ""
        return f"was not reached: {self._payload:,} bytes a packet no longer fit {', '.join(narrow)}; make a new device"

    def recv(self, timeout_s: float | None = None) -> Message:
        """The next immediate from the peer, in the order it was sent.

        As many as `max_wimm` (1 024, a setting of the device) may arrive between two calls. One more ends the
        connection: the peer's write fails, and so does everything after it. Who sends many waits for answers, or
        writes without `imm`.
        """
        until = time.monotonic() + _timeout(timeout_s)
        taken: list[tuple[int, int]] = []
        try:
            while not taken:
                self._check_open()
                if not self._native.wait_for_message(taken, max(0.0, until - time.monotonic())):
                    self.check_alive()
                elif not taken:
                    raise TimeoutError(f"no message from {self.peer} within {timeout_s} s")
            return Message(*taken[0])
        except BaseException:
            for imm, length in taken:  # Ctrl-C came after it was taken
                self._native.put_back(imm, length)
            raise

    async def recv_async(self) -> Message:
        """`recv` for asyncio."""
        taken: list[tuple[int, int]] = []
        while True:
            self._check_open()
            self._poll(self._native.poll_messages, self.qp.recv_cq)
            if not self._native.wait_for_message(taken, 0.0):
                await self._explain_async()
                self.check_alive()
            elif taken:
                return Message(*taken[0])
            else:
                await self.qp.recv_cq.readable(unless=self._has_arrival)

    def _has_arrival(self) -> bool:
        self._poll(self._native.poll_messages, self.qp.recv_cq)
        return self._native.has_arrival

    def has_lost_peer(self) -> bool:
        # Whether the peer has closed the connection or its process has ended, as far as it is known now.
        return self.device.native.peer_state(self.qp.qpn) is PeerState.GONE

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the connection is closed")
        self.device.check_open()

    def on_device_closed(self) -> None:
        # The peer is notified as by `close`. The device completes what was in flight.
        if self._channel is not None:
            self._channel.hang_up()

    def check_alive(self) -> None:
        """Once it is over, raise why, each time as the first. The first time may take a second."""
        self._check_alive(may_ask=True)

    def _check_alive(self, may_ask: bool) -> None:
        self._check_open()
        self._poll(self._native.poll_writes, self.qp.send_cq)
        has_left = self.has_lost_peer()
        self._check_open()  # what this side has ended is not the peer's doing
        if why := self._why_failed(may_ask):
            raise RemoteError(f"the connection has failed: peer {self.peer} {why}")
        if has_left:
            raise RemoteError(f"peer {self.peer} {HAS_LEFT}")
        if self.qp.state == QpState.ERROR:
            raise RemoteError(f"peer {self.peer}: {IN_ERROR}")

    def close(self, flush_s: float = shutdown.FLUSH_S) -> None:
        """Let go of the peer; it notices at once. Writes that were posted and not waited for are given `flush_s` to
        arrive; what the peer has written is acknowledged, even if it asks a little later."""
        seconds("flush_s", flush_s)
        if self._closed:
            return
        self._closed = True
        try:
            with contextlib.suppress(UsageError):  # of a parent process, whose queue pair it is
                self._native.close()
                self.device.native.flush(self.qp.qpn, flush_s)
        finally:
            with contextlib.suppress(UsageError):
                self.qp.destroy()
                self._native.release_sources()
            if self._channel is not None:
                self._channel.hang_up()
                self._channel.close()
            self._slot = None
            for queue in {self.qp.send_cq, self.qp.recv_cq}:
                queue.retire()
            if self._added is not None:
                with contextlib.suppress(UsageError):  # of a parent process
                    self.device.remove_peer(self._added)
            self._memory.release()
            if self._owns_device:
                self.device.close()

    def abandon(self) -> None:
        # Close what was not established. The device may serve another try.
        self._owns_device = False
        self.close(0.0)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # half made, or of a device that is gone
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(shutdown.FLUSH_S if kind is None else 0.0)

    def __repr__(self) -> str:
        return "<Connection, closed>" if self._closed else f"<Connection over {self.qp!r}>"
