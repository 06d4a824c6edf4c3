"""One connection, once both sides know each other: writes, messages, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from itertools import islice
from typing import Any, NamedTuple, Self

from softmrc import _core
from softmrc._core import LocalPlane, SealKeys
from softmrc.config import RtrAttributes, bounds, whole_payload
from softmrc.connection import keys as sealing
from softmrc.connection import path_check, validate
from softmrc.connection.handshake import Authenticator, BootstrapSocket, HandshakeError
from softmrc.connection.keys import KeyShare
from softmrc.connection.liveness import LivenessCheck
from softmrc.connection.memory import OfferedMemory
from softmrc.connection.offer import Offer, RemoteRegion, offer_of
from softmrc.connection.path_mtu import MtuDiscovery
from softmrc.connection.shared_poller import SharedPoller
from softmrc.connection.validate import ProtocolError
from softmrc.device import (
    Completion,
    CompletionQueue,
    Device,
    MemoryRegion,
    Peer,
    QueuePair,
    new_port_key,
    port_keys,
    shutdown,
    writable_memory,
)
from softmrc.device.checks import FOR_EVER, instance, seconds, whole
from softmrc.engine import CompletionStatus, QpState
from softmrc.errors import ConfigError, RemoteError, UsageError

SLICE_S = 0.1  # how often who waits looks whether the peer is still there
LOOKS_EVERY = 64  # posts: so often is it noted which writes have ended, though nobody may ever wait for them
LAST_WORDS_S = 1.0  # what a peer that has left did not acknowledge by then, it never will

IN_ERROR = "the connection is in error"
HAS_LEFT = "has left: it closed the connection, or its process ended"
ENDS_WITH_PEER = {CompletionStatus.RETRY_EXCEEDED, CompletionStatus.PEER_ERROR, CompletionStatus.FLUSHED}


def _give_up_the_departed(device: Device) -> bool:
    """Whether there was a connection of this device whose peer had left."""
    ours = [one for one in device._dependents() if isinstance(one, Connection) and not one._closed]
    departed = [one for one in ours if one._has_lost_its_peer()]
    if not departed and any(one._channel.is_cut for one in ours):
        raise HandshakeError(
            "came while it was not known who else had left", "another may have left; try again", busy=True
        )
    for connection in departed:
        with contextlib.suppress(UsageError):  # closed meanwhile
            connection.qp.error()
    return bool(departed)


def _new_qp(device: Device, memory: OfferedMemory) -> QueuePair:
    """With queues of its own, which are let go of if it comes to nothing."""
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

    def __init__(
        self, device: Device, channel: BootstrapSocket, proof: Authenticator, memory: OfferedMemory, owns_device: bool
    ) -> None:
        self.device = device
        self._channel = channel
        self._owns_device = owns_device
        self._closed = False
        self._added: Peer | None = None
        self._proof = proof
        self._share = KeyShare() if sealing.is_wanted(device, proof.secret is not None) else None
        self.qp = _new_qp(device, memory)
        self._memory = memory.hold()
        self._port_key = new_port_key()
        self.remote: tuple[RemoteRegion, ...] = ()
        self.peer_name = channel.peer_name
        self._counting = threading.Lock()
        self._posted = 0  # the last number given; whatever is neither under way nor failed has ended well
        self._sources: dict[int, Any] = {}  # of the writes under way
        self._failed: set[int] = set()
        self._messages: deque[Message] = deque()
        self._received: object = None  # the last completions of receives that were noted
        self._receives_owed = 0  # one for each message
        self._endings, self._arrivals = SharedPoller(self.qp.send_cq), SharedPoller(self.qp.recv_cq)
        self._payload = 0  # bytes of a full packet
        self._failed_with: CompletionStatus | None = None  # of the first write that failed, which knows the cause
        self._failure = ""  # what is to be said of the peer since then, once somebody has asked
        self._left_at: float | None = None  # when it was noticed that the peer has left
        self._doubt = LivenessCheck(self.qp)
        shutdown.track_connection(self)
        device._tell_when_closed(self)

    def _begin(self) -> None:
        """The handshake is over."""
        if self.is_sealed:
            self._channel.believe_only(self._proof)

    def _offer(self) -> dict[str, Any]:
        return offer_of(self.device, self.qp, self._memory.regions, self._port_key, self._share)

    @property
    def is_sealed(self) -> bool:
        """Whether packets are hidden and authentic."""
        return self._share is not None

    @property
    def known_as(self) -> str:
        """The name by which `known_peers` has the peer's key; empty where it proved itself by a secret, or not."""
        return self._proof.peer

    def _keys(self, offer: Offer) -> SealKeys | None:
        if self._share is None or offer.seal is None:
            return None
        secret, salt = self._proof.secret or b"", self._proof.salt
        keys = self._share.keys(offer.seal, secret, salt, self._proof.is_connector, self.qp.qpn, offer.qpn)
        self._share.forget()
        return keys

    def _accept(self, offer: Offer) -> None:
        """Connect to a peer that offers this."""
        try:
            self._establish(offer)
        except (ConfigError, ProtocolError) as error:  # not on our map, or what else only the device knows
            raise HandshakeError(
                f"sent an offer that makes no sense: {error}", f"your offer makes no sense: {error}"
            ) from None

    def _establish(self, offer: Offer) -> None:
        config = self.device.config
        try:
            peer = self.device.add_peer(offer.planes)
        except ConfigError:
            # Ports that are another peer's: who has left and starts again may have them back.
            if not _give_up_the_departed(self.device):
                raise
            peer = self.device.add_peer(offer.planes)
        self._added = peer
        self._payload = whole_payload(min(self.device.payload(self.is_sealed), offer.mtu))
        self.qp.init(ev_profile=self.device.profile_for(peer))
        self.qp.rtr(
            peer,
            dest_qpn=offer.qpn,
            first_psn=offer.first_psn,
            mtu=self._payload,
            seal=self._keys(offer),
            **port_keys(self._port_key, offer.port_key),
        )
        self.qp.rts(max_wimm=min(config.max_wimm, offer.max_wimm), mpr=min(config.mpr, offer.mpr))
        self.qp.post_recv(count=config.max_wimm)
        self.remote = offer.regions

    def _narrow(self, mtu: object) -> bool:
        """The connector has found out which payload gets through; whether that is less than both had offered."""
        if mtu is None:
            return False
        try:
            payload = whole_payload(validate.whole("mtu", mtu, *bounds(RtrAttributes, "mtu")))
        except ProtocolError as error:
            nonsense = f"ready for what makes no sense: {error}"
            raise HandshakeError(f"is {nonsense}", f"you are {nonsense}") from None
        if payload >= self._payload:
            return False
        self.device._native.narrow(self.qp.qpn, payload)
        self._payload = payload
        return True

    def _survey(self) -> MtuDiscovery:
        """Of the peer, before anything is sent."""
        return MtuDiscovery(self.device, self.qp.lane, self.peer.planes, self._payload, self.is_sealed)

    @property
    def peer(self) -> Peer:
        if self.qp.peer is None:
            raise UsageError("the connection is not established")
        return self.qp.peer

    def _source(self, buffer: Any, remote: RemoteRegion, offset: int) -> Any:
        self._check_open()
        instance("remote", remote, RemoteRegion, "memory of the peer: one of connection.remote")
        whole("offset", offset, 64)
        source = buffer.buffer if isinstance(buffer, MemoryRegion) else _core.Buffer(writable_memory(buffer), False)
        if offset + source.size > remote.length:
            room = f"at most {max(remote.length - offset, 0):,} bytes from offset {offset}"
            raise ConfigError("buffer", f"{source.size:,} bytes", f"{room} of the peer's {remote.length:,}")
        return source

    def post(self, remote: RemoteRegion, offset: int, buffer: Any, imm: int | None = None) -> int:
        """Start a write and return its number for `wait`. The buffer must not change until then."""
        source = self._source(buffer, remote, offset)
        with self._counting:
            self._posted += 1
            number = self._posted
            self._sources[number] = source
        try:
            if number % LOOKS_EVERY == 0:
                self._endings.look(self._note)
            self.qp._post(source, 0, source.size, remote.va + offset, remote.rkey, number, imm, True)
        except BaseException as error:
            self._sources.pop(number, None)
            if isinstance(error, UsageError):
                self._check_open()
                self._check_alive(may_ask=False)
            raise
        return number

    def wait(self, number: int, timeout_s: float | None = None) -> None:
        """Until that write is in the peer's memory; at once if it has been for long."""
        until = None if timeout_s is None else time.monotonic() + seconds("timeout_s", timeout_s, or_else=FOR_EVER)
        whole("number", number, 64)
        if not 1 <= number <= self._posted:
            raise ConfigError("number", number, "what `post` returned")
        while number in self._sources:
            self._check_open()
            left = SLICE_S if until is None else max(0.0, min(SLICE_S, until - time.monotonic()))
            if not self._endings.wait(lambda: number not in self._sources, self._note, left):
                self._judge_silence()
                if until is not None and time.monotonic() >= until and number in self._sources:
                    raise TimeoutError(f"write {number} to {self.peer} is not complete after {timeout_s} s")
        self._check_ended_well(number)

    def write(self, remote: RemoteRegion, offset: int, buffer: Any, imm: int | None = None) -> None:
        """Put the buffer's bytes into the peer's memory; with `imm`, tell it so."""
        self.wait(self.post(remote, offset, buffer, imm))

    async def write_async(self, remote: RemoteRegion, offset: int, buffer: Any, imm: int | None = None) -> None:
        """`write` for asyncio."""
        number = self.post(remote, offset, buffer, imm)
        while number in self._sources:
            self._check_open()
            if not await self._endings.wait_async(lambda: number not in self._sources, self._note, SLICE_S):
                self._judge_silence()
        await self._explain_async()
        self._check_ended_well(number)

    def _note(self, completions: list[Completion]) -> None:
        for completion in completions:
            if not completion.ok:
                self._failed_with = self._failed_with or completion.status
                self._failed.add(completion.wr_id)
            self._sources.pop(completion.wr_id, None)

    def _judge_silence(self) -> None:
        """A peer that leaves still acknowledges what it took, for a while. After that nothing will come."""
        if not self._sources or not self._peer_has_left():
            return
        self._check_open()  # or it was this side that hung up
        if self._left_at is None:
            self._left_at = time.monotonic()
        elif time.monotonic() - self._left_at > LAST_WORDS_S:
            self.qp.error()

    def _check_ended_well(self, number: int) -> None:
        if number in self._failed:
            self._check_open()
            raise RemoteError(f"write {number} failed: peer {self.peer} {self._why_failed()}")

    def _why_failed(self, may_ask: bool = True) -> str:
        """What is to be said of the peer since a write has failed; empty if none has."""
        if not self._failure and self._failed_with is not None:
            words = self.why(self._failed_with, may_ask)
            if not may_ask:
                return words
            self._failure = words
        return self._failure

    async def _explain_async(self) -> None:
        """Ask in another thread, so that what is raised next does not ask while the event loop waits."""
        self._endings.look(self._note)
        if self._failed_with is not None and not self._failure:
            await asyncio.to_thread(self._why_failed)

    def why(self, status: CompletionStatus, may_ask: bool = True) -> str:
        """What is to be said of the peer when a write ends with this status. It may take a second, unless `may_ask` is
        False: a peer that stopped answering is asked which packet sizes reach it."""
        if status in ENDS_WITH_PEER and self._peer_has_left():
            return HAS_LEFT
        if status == CompletionStatus.RETRY_EXCEEDED:
            if words := self._narrowed() or path_check.never_reached(self.qp, self.peer):
                return words
            lost = self._survey().lost_now() if may_ask else ""
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
        until = None if timeout_s is None else time.monotonic() + seconds("timeout_s", timeout_s, or_else=FOR_EVER)
        taken: list[Message] = []
        try:
            while not self._take_message(taken):
                self._check_open()
                left = SLICE_S if until is None else max(0.0, min(SLICE_S, until - time.monotonic()))
                self._arrivals.wait(self._has_message, self._receive, left)
                if not self._messages:
                    self._check_for_more()
                    if until is not None and time.monotonic() >= until and not self._messages:
                        raise TimeoutError(f"no message from {self.peer} within {timeout_s} s")
            return taken[0]
        except BaseException:
            self._messages.extendleft(taken)
            raise

    async def recv_async(self) -> Message:
        """`recv` for asyncio."""
        taken: list[Message] = []
        while not self._take_message(taken):
            self._check_open()
            await self._arrivals.wait_async(self._has_message, self._receive, SLICE_S)
            if not self._messages:
                await self._explain_async()
                self._check_for_more()
        return taken[0]

    def _has_message(self) -> bool:
        return bool(self._messages)

    def _take_message(self, taken: list[Message]) -> bool:
        """For whoever is the first to ask. Ctrl-C comes before the call of `extend` or after it, never between taking
        a message from one list and adding it to the other; `recv` puts it back if it does not get to return it."""
        with contextlib.suppress(IndexError):
            taken.extend(islice(iter(self._messages.popleft, None), 1))
        return bool(taken)

    def _receive(self, completions: list[Completion]) -> None:
        """Once, though it may be called again with completions that it was interrupted with: nothing comes between
        assignments and the call after them."""
        fresh = [Message(c.imm, c.length) for c in completions if c.ok]
        count, post, qpn = len(fresh), self.device._native.post_receive, self.qp.qpn
        if self._received is not completions:
            self._receives_owed += count
            self._received = completions
            self._messages.extend(fresh)
        owed = self._receives_owed
        if owed:
            self._receives_owed = 0
            # Refused once the queue pair is in error; what came before that is still good.
            post(qpn, 0, owed)

    def _check_for_more(self) -> None:
        """Who leaves first waits until its writes have arrived: once it has left, all there will be is here."""
        is_over = self._peer_has_left() or self.qp.state == QpState.ERROR
        self._check_open()
        if is_over and not self._arrivals.look(self._receive) and not self._messages:
            self.check_alive()

    def _has_lost_its_peer(self) -> bool:
        return not self._closed and self._peer_has_left()

    def _peer_has_left(self) -> bool:
        """Or this side has closed, which whoever asks has to tell apart."""
        if self._channel.is_closed_by_peer():
            return True
        if not self._channel.is_cut:
            return False
        try:
            self._check_open()
        except UsageError:
            return True
        return self._doubt.is_confirmed()

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the connection is closed")
        self.device._check_open()

    def _on_device_closed(self) -> None:
        """The peer is told as by `close`; what was on its way is the device's affair."""
        self._channel.hang_up()

    def check_alive(self) -> None:
        """Once it is over, raise why, each time as the first. The first time may take a second."""
        self._check_alive(may_ask=True)

    def _check_alive(self, may_ask: bool) -> None:
        self._endings.look(self._note)
        has_left = self._peer_has_left()
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
                self.device._native.flush(self.qp.qpn, flush_s)
                self.qp.destroy()
        finally:
            self._channel.hang_up()
            self._channel.close()
            self._sources = dict.fromkeys(self._sources)  # the memory is the caller's; that they ended is not known
            for queue in {self.qp.send_cq, self.qp.recv_cq}:
                queue.retire()
            if self._added is not None:
                with contextlib.suppress(UsageError):  # of a parent process
                    self.device.remove_peer(self._added)
            self._memory.release()
            if self._owns_device:
                self.device.close()

    def _abandon(self) -> None:
        """Close what came to nothing. The device may serve another try."""
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
