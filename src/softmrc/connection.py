"""The easy way: one connection over every plane, in a few lines.

    with listen("127.0.0.1", 7000, memory=bytearray(1 << 20)) as listener:      # one process
        connection = listener.accept()
        print(connection.recv())

    with connect("127.0.0.1", 7000) as connection:                              # another
        connection.write(connection.remote[0], 0, b"hello", imm=1)

`write` returns when the bytes are in the peer's memory; `recv` returns the next immediate. Each has a twin for asyncio
that ends in `_async`. Between machines, give both sides the same `secret`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from softmrc import _core, leaving
from softmrc.config import whole_payload
from softmrc.engine import CompletionStatus
from softmrc.errors import ConfigError, DeviceError, RemoteError, UsageError
from softmrc.fabric.host import FabricHost
from softmrc.handshake import Channel
from softmrc.verbs import Completion, Device, MemoryRegion, Peer, PeerPlane, QueuePair, writable_memory

HANDSHAKE_S = 10.0
SLICE_S = 0.1  # how often who waits looks whether the peer is still there
LAST_WORDS_S = 1.0  # what a peer that has left did not acknowledge by then, it never will

HAS_LEFT = "has left: it closed the connection, or its process ended"
ENDS_WITH_PEER = {CompletionStatus.RETRY_EXCEEDED, CompletionStatus.PEER_ERROR, CompletionStatus.FLUSHED}


@dataclass(frozen=True)
class RemoteRegion:
    """Memory of the peer that this side may write to."""

    va: int
    length: int
    rkey: int

    def __repr__(self) -> str:
        return f"<RemoteRegion {self.length:,} bytes>"


class Message(NamedTuple):
    """A write with immediate of the peer has arrived, and everything before it."""

    imm: int
    length: int


def _without_zone(text: str) -> Any:
    """A peer's address. What follows a % names an interface of its machine, or is meant for our terminal."""
    return ipaddress.ip_address(str(text).partition("%")[0])


class Connection:
    """One queue pair to one peer. Made by `connect` and `Listener.accept`."""

    def __init__(self, device: Device, channel: Channel, regions: Sequence[MemoryRegion], owns_device: bool) -> None:
        self.device = device
        self._channel = channel
        self._owns_device = owns_device
        self._regions = tuple(regions)
        self.qp: QueuePair = device.create_qp(device.create_cq(), device.create_cq())
        self.remote: tuple[RemoteRegion, ...] = ()
        self.peer_name = channel.peer_name
        self._numbers = itertools.count(1)
        self._sources: dict[int, Any] = {}
        self._done: dict[int, Completion] = {}
        self._messages: list[Message] = []
        self._payload = 0  # bytes of a full packet
        self._left_at: float | None = None  # when it was noticed that the peer has left
        self._closed = False
        leaving.expect_connection(self)

    def _offer(self) -> dict[str, Any]:
        device = self.device
        planes = [
            {"address": str(plane.address), "port": ports[0], "source_ports": ports}
            for plane, ports in zip(device.local_planes, device.source_ports, strict=True)
        ]
        return {
            "planes": planes,
            "qpn": self.qp.qpn,
            "first_psn": self.qp.first_psn,
            "mtu": device.mtu,
            "icrc": device.config.icrc,
            "max_wimm": device.config.max_wimm,
            "mpr": device.config.mpr,
            "regions": [[region.va, region.length, region.rkey] for region in self._regions],
        }

    def _accept_offer(self, offer: dict[str, Any]) -> None:
        try:
            planes = [
                PeerPlane(_without_zone(p["address"]), int(p["port"]), tuple(int(n) for n in p["source_ports"]))
                for p in offer["planes"]
            ]
            numbers = {key: int(offer[key]) for key in ("qpn", "first_psn", "mtu", "max_wimm", "mpr")}
            self.remote = tuple(RemoteRegion(*(int(n) for n in region)) for region in offer["regions"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise RemoteError(f"{self.peer_name} sent an offer that makes no sense: {error}") from None
        self._check_match(offer, planes)
        try:
            self._establish(planes, numbers)
        except (ConfigError, TypeError) as error:  # numbers that no honest peer offers
            raise RemoteError(f"{self.peer_name} sent an offer that makes no sense: {error}") from None

    def _establish(self, planes: list[PeerPlane], numbers: dict[str, int]) -> None:
        config = self.device.config
        peer = self.device.add_peer(planes)
        self._payload = whole_payload(min(self.device.mtu, numbers["mtu"]))
        self.qp.init(ev_profile=self.device.profile_for(peer))
        self.qp.rtr(
            peer,
            dest_qpn=numbers["qpn"],
            first_psn=numbers["first_psn"],
            mtu=self._payload,
        )
        self.qp.rts(max_wimm=min(config.max_wimm, numbers["max_wimm"]), mpr=min(config.mpr, numbers["mpr"]))
        self.qp.post_recv(count=config.max_wimm)

    def _check_match(self, offer: dict[str, Any], planes: list[PeerPlane]) -> None:
        mine = self.device.local_planes
        if len(planes) != len(mine):
            self._channel.refuse(f"you have {len(planes)} planes, this side {len(mine)}")
            raise RemoteError(f"{self.peer_name} has {len(planes)} planes, this device {len(mine)}")
        if any(p.address.version != m.address.version for p, m in zip(planes, mine, strict=True)):
            self._channel.refuse("a plane is IPv4 on one side and IPv6 on the other")
            raise RemoteError(f"{self.peer_name}: a plane is IPv4 on one side and IPv6 on the other")
        if bool(offer.get("icrc")) != self.device.config.icrc:
            self._channel.refuse("ICRC is on at one side and off at the other")
            raise RemoteError(f"{self.peer_name}: ICRC is on at one side and off at the other; set icrc alike")

    @property
    def peer(self) -> Peer:
        if self.qp.peer is None:
            raise UsageError("the connection is not established")
        return self.qp.peer

    def _source(self, buffer: Any, remote: RemoteRegion, offset: int) -> Any:
        self._check_open()
        source = buffer.buffer if isinstance(buffer, MemoryRegion) else _core.Buffer(writable_memory(buffer), False)
        if offset < 0 or offset + source.size > remote.length:
            room = f"at most {max(remote.length - offset, 0):,} bytes from offset {offset}"
            raise ConfigError("buffer", f"{source.size:,} bytes", f"{room} of the peer's {remote.length:,}")
        return source

    def post(self, remote: RemoteRegion, offset: int, buffer: Any, imm: int | None = None) -> int:
        """Start a write and return its number for `wait`. The buffer must not change until then."""
        source = self._source(buffer, remote, offset)
        number = next(self._numbers)
        self._sources[number] = source
        status = self.device._native.post_write(
            self.qp.qpn, number, source, 0, source.size, remote.va + offset, remote.rkey, imm, True
        )
        if status != _core.PostStatus.OK:
            del self._sources[number]
            self._check_alive()
            self.qp._refused(status)
        return number

    def wait(self, number: int, timeout_s: float | None = None) -> None:
        """Until that write is in the peer's memory."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while number not in self._done:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"write {number} to {self.peer} is not complete after {timeout_s} s")
            found = self.qp.send_cq.wait(SLICE_S if left is None else min(SLICE_S, left))
            self._note(found)
            if not found:
                self._judge_silence()
        self._finish(number)

    def write(self, remote: RemoteRegion, offset: int, buffer: Any, imm: int | None = None) -> None:
        """Put the buffer's bytes into the peer's memory; with `imm`, tell it so."""
        self.wait(self.post(remote, offset, buffer, imm))

    async def write_async(self, remote: RemoteRegion, offset: int, buffer: Any, imm: int | None = None) -> None:
        """`write` for asyncio."""
        number = self.post(remote, offset, buffer, imm)
        while number not in self._done:
            # Other tasks may take this write's completion off the queue, so readiness is looked at by all of them.
            self._note(self.qp.send_cq.poll())
            if number in self._done:
                break
            try:
                await asyncio.wait_for(self.qp.send_cq.readable(), SLICE_S)
            except TimeoutError:
                self._judge_silence()
        self._finish(number)

    def _note(self, completions: list[Completion]) -> None:
        for completion in completions:
            self._sources.pop(completion.wr_id, None)
            self._done[completion.wr_id] = completion

    def _judge_silence(self) -> None:
        """A peer that leaves still acknowledges what it took, for a while. After that nothing will come."""
        if not self._sources or not self._channel.is_closed_by_peer():
            return
        if self._left_at is None:
            self._left_at = time.monotonic()
        elif time.monotonic() - self._left_at > LAST_WORDS_S:
            self.qp.error()

    def _finish(self, number: int) -> None:
        completion = self._done.pop(number)
        if completion.ok:
            return
        raise RemoteError(f"write {number} failed: peer {self.peer} {self._why(completion)}")

    def _why(self, completion: Completion) -> str:
        if completion.status in ENDS_WITH_PEER and self._channel.is_closed_by_peer():
            return HAS_LEFT
        if completion.status == CompletionStatus.RETRY_EXCEEDED:
            return self._narrowed() or "stopped answering"
        return {
            CompletionStatus.REMOTE_ACCESS: "refused the address or the key",
            CompletionStatus.REMOTE_INVALID: "could not make sense of the request",
            CompletionStatus.REMOTE_OPERATION: "had no receive posted: it does not call recv() fast enough",
            CompletionStatus.PEER_ERROR: "takes nothing any more: it closed its end, or is in error",
            CompletionStatus.FLUSHED: "was given up on before this write's turn",
        }.get(completion.status, completion.status.name.lower().replace("_", " "))

    def _narrowed(self) -> str:
        """Links that carried our packets when the device was made, and are too narrow for them now."""
        rows = zip(self.device.local_planes, self.device.planes(), strict=True)
        now = [replace(plane, link_mtu=row["link_mtu"]) for plane, row in rows]
        narrow = [
            f"{one.link} (MTU {one.link_mtu:,})" for one in now if one.link_mtu and one.payload_mtu < self._payload
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
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._messages:
            self._check_open()
            left = SLICE_S if until is None else min(SLICE_S, until - time.monotonic())
            if left <= 0:
                raise TimeoutError(f"no message from {self.peer} within {timeout_s} s")
            if not self._receive(self.qp.recv_cq.wait(left)):
                self._check_for_more()
        return self._messages.pop(0)

    async def recv_async(self) -> Message:
        """`recv` for asyncio."""
        while not self._messages:
            self._check_open()
            try:
                completions = await asyncio.wait_for(self.qp.recv_cq.wait_async(), SLICE_S)
            except TimeoutError:
                self._check_for_more()
                continue
            self._receive(completions)
        return self._messages.pop(0)

    def _receive(self, completions: list[Completion]) -> bool:
        fresh = [Message(c.imm, c.length) for c in completions if c.ok]
        self._messages += fresh
        if fresh:
            # Refused once the queue pair is in error; what came before that is still good.
            self.device._native.post_receive(self.qp.qpn, 0, len(fresh))
        if len(fresh) < len(completions) and not self._messages:
            self._check_alive()
            raise RemoteError(f"peer {self.peer}: the connection is in error")
        return bool(completions)

    def _check_for_more(self) -> None:
        """Who leaves first waits until its writes have arrived: once it has left, all there will be is here."""
        if self._channel.is_closed_by_peer() and not self._receive(self.qp.recv_cq.poll()):
            self._check_alive()

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the connection is closed")

    def _check_alive(self) -> None:
        if self._channel.is_closed_by_peer():
            raise RemoteError(f"peer {self.peer} {HAS_LEFT}")

    def close(self, flush_s: float = leaving.FLUSH_S) -> None:
        """Let go of the peer; it notices at once. Writes that were posted and not waited for are given `flush_s` to
        arrive; what the peer has written is acknowledged, even if it asks a little later."""
        if self._closed:
            return
        self._closed = True
        self.device._native.flush(self.qp.qpn, flush_s)
        self.qp.destroy()
        self._channel.close()
        self._sources.clear()
        if self._owns_device:
            self.device.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # half made, or of a device that is gone
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(leaving.FLUSH_S if kind is None else 0.0)

    def __repr__(self) -> str:
        return "<Connection, closed>" if self._closed else f"<Connection over {self.qp!r}>"


def _make_device(host: str, device: Device | None, planes: Sequence[str] | None, settings: dict[str, Any]) -> Device:
    if device is not None:
        if planes is not None or settings:
            raise ConfigError("device", device, "either a device, or planes and settings to make one")
        return device
    here = FabricHost.from_environment() if planes is None else None
    if here is not None and not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        return Device(here.planes, routes=here.paths, **here.settings(**settings))
    return Device(planes or [host], **settings)


def _resolve(host: str) -> str:
    """A name of a host of the fabric that this process runs on, or what was given."""
    here = FabricHost.from_environment()
    return here.resolve(host) if here else host


class Listener:
    """Waits for connectors."""

    def __init__(self, device: Device, owns_device: bool, sock: socket.socket, secret: Any, memory: Any) -> None:
        self.device = device
        self._owns_device = owns_device
        self._socket = sock
        self._secret = secret
        buffers = [] if memory is None else list(memory) if isinstance(memory, list | tuple) else [memory]
        self.regions = tuple(device.register(buffer) for buffer in buffers)

    @property
    def port(self) -> int:
        return self._socket.getsockname()[1]

    def accept(self, timeout_s: float | None = None) -> Connection:
        """The next peer that knows the secret. One that does not raises `RemoteError`; accept may be called again."""
        self._socket.settimeout(timeout_s)
        try:
            sock, _ = self._socket.accept()
        except TimeoutError:
            raise TimeoutError(f"nobody connected within {timeout_s} s") from None
        except OSError as error:
            raise UsageError(f"the listener is closed ({error})") from None
        sock.settimeout(HANDSHAKE_S)
        connection = None
        try:
            channel = Channel(sock, "listener", self._secret)
            channel.hello()
            offer = channel.receive_sealed()
            connection = Connection(self.device, channel, self.regions, owns_device=False)
            connection._accept_offer(offer)
            channel.send_sealed(connection._offer())
            channel.receive_sealed()
            sock.settimeout(None)
        except BaseException:
            sock.close()
            if connection is not None:
                connection.close()
            raise
        return connection

    async def accept_async(self) -> Connection:
        """`accept` for asyncio."""
        return await asyncio.to_thread(self.accept)

    def close(self) -> None:
        self._socket.close()
        if self._owns_device:
            self.device.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def listen(
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    memory: Any = None,
    secret: str | bytes | None = None,
    device: Device | None = None,
    planes: Sequence[str] | None = None,
    **settings: Any,
) -> Listener:
    """Be reachable. `memory` (a buffer or several) is what peers may write to, `settings` fields of `DeviceConfig`."""
    host = _resolve(host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen()
        if secret is None and not ipaddress.ip_address(sock.getsockname()[0]).is_loopback:
            raise ConfigError("secret", None, f"a shared secret, to listen on {host}; without one only loopback")
        made = _make_device(host, device, planes, settings)
    except OSError as error:
        sock.close()
        if isinstance(error, DeviceError):
            raise
        raise DeviceError(error.errno, f"cannot listen on {host} port {port}: {error.strerror}") from None
    except BaseException:
        sock.close()
        raise
    return Listener(made, device is None, sock, secret, memory)


def connect(
    host: str,
    port: int,
    *,
    memory: Any = None,
    secret: str | bytes | None = None,
    device: Device | None = None,
    planes: Sequence[str] | None = None,
    timeout_s: float = HANDSHAKE_S,
    **settings: Any,
) -> Connection:
    """Reach a listener. Without `planes`, one plane on the address that leads there; on a host of a fabric
    (`softmrc.fabric.host`), all its planes and every path."""
    host = _resolve(host)
    try:
        sock = socket.create_connection((host, port), timeout_s)
    except OSError as error:
        raise RemoteError(f"{host} port {port} does not answer: {error.strerror or error}") from None
    try:
        made = _make_device(sock.getsockname()[0], device, planes, settings)
    except BaseException:
        sock.close()
        raise
    try:
        channel = Channel(sock, "connector", secret)
        channel.hello()
        buffers = [] if memory is None else list(memory) if isinstance(memory, list | tuple) else [memory]
        connection = Connection(made, channel, [made.register(b) for b in buffers], owns_device=device is None)
        channel.send_sealed(connection._offer())
        connection._accept_offer(channel.receive_sealed())
        channel.send_sealed({"ready": True})
        sock.settimeout(None)
    except BaseException:
        sock.close()
        if device is None:
            made.close()
        raise
    return connection


async def connect_async(host: str, port: int, **settings: Any) -> Connection:
    """`connect` for asyncio."""
    return await asyncio.to_thread(connect, host, port, **settings)
