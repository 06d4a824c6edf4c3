"""MRC over real sockets, in the manner of verbs.

    with Device(["10.0.0.1%eth0", "10.0.1.1%eth1"]) as device:
        region = device.register(bytearray(1 << 20))
        cq = device.create_cq()
        qp = device.create_qp(cq)
        qp.init()
        qp.rtr(peer, dest_qpn=…, first_psn=…)
        qp.rts()
        qp.post_write(region, 0, 4096, remote_va=…, rkey=…, wr_id=7)
        for completion in cq.wait(timeout_s=1):
            …

One native thread per device moves the packets; nothing here runs per packet. A thread that waits for a completion
drives the device while it waits. `softmrc.connection` does the exchange of numbers for you.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from softmrc import _core, leaving, wire
from softmrc import planes as plane_names
from softmrc.config import (
    CcProfile,
    DeviceConfig,
    EndpointConfig,
    EvFormat,
    EvMode,
    EvProfile,
    InitAttributes,
    RtrAttributes,
    RtsAttributes,
    to_native,
)
from softmrc.engine import (
    COMPLETION,
    EV,
    EVENT,
    CompletionKind,
    CompletionStatus,
    EventType,
    PostStatus,
    QpState,
    ev_index,
    ev_value,
)
from softmrc.errors import ConfigError, UsageError
from softmrc.fork import leave_to_parent

FOREVER_S = 1e9
MAX_EVS = 1024  # of one queue pair


class Completion(NamedTuple):
    """The end of one work request."""

    wr_id: int
    qpn: int
    length: int
    imm: int
    status: CompletionStatus
    kind: CompletionKind

    @property
    def ok(self) -> bool:
        return self.status == CompletionStatus.SUCCESS


class Event(NamedTuple):
    """Something worth telling that belongs to no work request. What the numbers mean depends on `type`."""

    type: EventType
    qpn: int
    plane: int
    ev: int
    psn: int
    code: int
    value: int
    at_ps: int


@dataclass(frozen=True)
class PeerPlane:
    """Where one plane of a peer is."""

    address: Any
    port: int
    source_ports: tuple[int, ...] = ()  # of its sockets; empty: any
    scope_id: int = 0
    paths: tuple[Any, ...] = ()  # SRv6 carriers towards it


@dataclass(frozen=True)
class Peer:
    """A node that this device talks to."""

    id: int
    planes: tuple[PeerPlane, ...]

    def __str__(self) -> str:
        first = self.planes[0]
        more = f" and {len(self.planes) - 1} more planes" if len(self.planes) > 1 else ""
        return f"{first.address} port {first.port}{more}"


def check_carrier(name: str, value: bytes, plane: PeerPlane) -> None:
    """Refuse an SRv6 path that a datagram socket cannot send along to this plane.

    Switches shorten the carrier on the way and nobody rewrites the UDP checksum, so it has to sum up like the final
    address; and a socket writes no segment routing header.
    """
    path = wire.path_of(value)
    if path.srh is not None:
        raise ConfigError(name, str(path), "a path of one carrier: sockets write no segment routing header")
    if _core.address_sum(path.destination.packed) != _core.address_sum(plane.address.packed):
        allowed = f"a carrier that leaves the checksum towards {plane.address} as it is"
        raise ConfigError(name, str(path.destination), allowed)


ACCEPTED_MEMORY = "memory with the buffer protocol, or a CPU tensor"


def writable_memory(buffer: Any) -> Any:
    """What the buffer protocol can see of it: itself, or the same memory as an array (a torch tensor, for one)."""
    try:
        memoryview(buffer).release()
        return buffer
    except TypeError:
        pass
    try:
        array = np.asarray(buffer)
    except Exception as error:
        raise ConfigError("buffer", type(buffer).__name__, ACCEPTED_MEMORY) from error
    owner = getattr(buffer, "data_ptr", None)
    if array.dtype == object or owner is None or owner() != array.__array_interface__["data"][0]:
        raise ConfigError("buffer", type(buffer).__name__, ACCEPTED_MEMORY)
    return array


class MemoryRegion:
    """Memory that peers who know its key may write to, and that writes are taken from. It is used in place."""

    def __init__(self, device: Device, buffer: Any, rkey: int, va: int) -> None:
        try:
            self.buffer = _core.Buffer(writable_memory(buffer), True)
        except (BufferError, ValueError) as error:
            raise ConfigError("buffer", type(buffer).__name__, f"writable and contiguous ({error})") from None
        if self.buffer.size == 0:
            raise ConfigError("buffer", "0 bytes", "at least one byte")
        self.device = device
        self.rkey = rkey
        self.va = va
        self.length: int = self.buffer.size

    def deregister(self) -> None:
        """Take it back. Refused while a write still reads from it."""
        self.device._forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.rkey in self.device._regions:
            self.deregister()

    def __repr__(self) -> str:
        state = "" if self.rkey in self.device._regions else ", deregistered"
        return f"<MemoryRegion {self.length:,} bytes at va {self.va:#x}, rkey {self.rkey:#010x}{state}>"


class CompletionQueue:
    """Where work requests end. Iterate over `poll` or `wait`, or `async for` over the queue itself."""

    def __init__(self, device: Device, number: int) -> None:
        self.device = device
        self.number = number
        self._ready: asyncio.Event | None = None  # shared by all tasks that wait

    def poll_array(self, most: int = 256) -> np.ndarray:
        """What is there now, as records."""
        return np.frombuffer(self.device._native.poll(self.number, most), dtype=COMPLETION)

    def wait_array(self, timeout_s: float | None = None, most: int = 256) -> np.ndarray:
        """The same, after at least one has come or the time is up."""
        timeout = FOREVER_S if timeout_s is None else timeout_s
        return np.frombuffer(self.device._native.wait(self.number, most, timeout), dtype=COMPLETION)

    def poll(self, most: int = 256) -> list[Completion]:
        return _completions(self.poll_array(most))

    def wait(self, timeout_s: float | None = None, most: int = 256) -> list[Completion]:
        """Completions, as soon as there is one; an empty list when the time is up."""
        return _completions(self.wait_array(timeout_s, most))

    def fileno(self) -> int:
        """A descriptor for event loops: readable when `poll` has something. Poll until empty, then wait again."""
        return self.device._native.completion_fd(self.number)

    async def wait_async(self, most: int = 256) -> list[Completion]:
        """`wait` for asyncio: other tasks run meanwhile."""
        while not (found := self.poll(most)):
            self.device._check_open()
            await self.readable()
        return found

    async def readable(self) -> None:
        """Until the queue may hold something, or another task has just emptied it."""
        if self._ready is not None:
            await self._ready.wait()
            return
        self._ready = asyncio.Event()
        try:
            await _readable(self.fileno())
        finally:
            ready, self._ready = self._ready, None
            ready.set()

    async def __aiter__(self) -> AsyncIterator[Completion]:
        while True:
            for completion in await self.wait_async():
                yield completion

    def __repr__(self) -> str:
        return f"<CompletionQueue {self.number} of {self.device!r}>"


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)


def _completions(records: np.ndarray) -> list[Completion]:
    return [
        Completion(wr_id, qpn, length, imm, CompletionStatus(status), CompletionKind(kind))
        for wr_id, qpn, length, imm, status, kind, _ in records.tolist()
    ]


class QueuePair:
    """One connection. Created in RESET; `init`, `rtr` and `rts` take it to where it can send."""

    def __init__(self, device: Device, qpn: int, send_cq: CompletionQueue, recv_cq: CompletionQueue) -> None:
        self.device = device
        self.qpn = qpn
        self.send_cq = send_cq
        self.recv_cq = recv_cq
        self.first_psn = secrets.randbits(24)
        self.peer: Peer | None = None
        self._ev_profile: EvProfile | None = None

    def init(self, *, ev_profile: EvProfile | None = None, cc_profile: CcProfile | None = None) -> None:
        """RESET → INIT. Profiles default to the device's."""
        device = self.device
        if ev_profile is not None and ev_profile.format == EvFormat.SRV6 and not device.config.srv6:
            raise ConfigError("ev_profile.format", ev_profile.format.name, "UDP or STEV, or a device with srv6=True")
        self._ev_profile = ev_profile
        attributes = InitAttributes(
            ev_profile=device._add_ev_profile(ev_profile) if ev_profile else device._ev_profile,
            cc_profile=device._add_cc_profile(cc_profile) if cc_profile else device._cc_profile,
            send_cq=self.send_cq.number,
            recv_cq=self.recv_cq.number,
        )
        device._native.modify_init(self.qpn, to_native(attributes))

    def rtr(self, peer: Peer, *, dest_qpn: int, first_psn: int, mtu: int | None = None, **more: Any) -> None:
        """INIT → RTR: from here on the peer's writes are taken. `more` are fields of `RtrAttributes`."""
        config = self.device.config
        settings = {"mpr_dest": config.mpr, "max_wimm_dest": config.max_wimm, **more}
        attributes = RtrAttributes(
            peer=peer.id, dest_qpn=dest_qpn, first_psn=first_psn, mtu=mtu or self.device.mtu, **settings
        )
        if self._has_carriers:
            for value, port in zip(self.ev_values(), self.evs()["port"], strict=True):
                check_carrier("ev_profile.entries", value, peer.planes[port])
        self.device._native.modify_rtr(self.qpn, to_native(attributes))
        self.peer = peer

    def rts(self, **more: Any) -> None:
        """RTR → RTS: ready to send. `more` are fields of `RtsAttributes`."""
        config = self.device.config
        settings: dict[str, Any] = {
            "mpr": config.mpr,
            "max_wimm": config.max_wimm,
            "timeout": config.timeout,
            "retry_linear": config.retry_linear,
            "retry_exponential": config.retry_exponential,
            "max_send_wr": config.max_send_wr,
            **more,
        }
        self.device._native.modify_rts(self.qpn, to_native(RtsAttributes(first_psn=self.first_psn, **settings)))

    def modify(self, state: Any, **attributes: Any) -> None:
        """Go to `state` with the attributes that this transition needs: `init`, `rtr`, `rts` or `error` by name."""
        steps: dict[Any, Any] = {
            QpState.INIT: self.init,
            QpState.RTR: self.rtr,
            QpState.RTS: self.rts,
            QpState.ERROR: self.error,
        }
        if state not in steps:
            raise ConfigError("state", state, "INIT, RTR, RTS or ERROR")
        steps[state](**attributes)

    def error(self) -> None:
        """Give up: everything posted is flushed, and the peer is told when it next writes."""
        self.device._native.modify_error(self.qpn)

    def post_write(
        self,
        source: MemoryRegion,
        offset: int,
        length: int,
        *,
        remote_va: int,
        rkey: int,
        wr_id: int = 0,
        imm: int | None = None,
        signaled: bool = True,
    ) -> None:
        """Write bytes of `source` into the peer's memory. They must not change until the completion."""
        native = self.device._native
        status = native.post_write(self.qpn, wr_id, source.buffer, offset, length, remote_va, rkey, imm, signaled)
        if status != PostStatus.OK:
            self._refused(status)

    def post_write_imm(self, source: MemoryRegion, offset: int, length: int, imm: int, **more: Any) -> None:
        """The same, and complete one receive of the peer with 32 bits of `imm`, after everything written before."""
        self.post_write(source, offset, length, imm=imm, **more)

    def post_recv(self, wr_id: int = 0, count: int = 1) -> None:
        """Allow so many writes with immediate to complete here."""
        status = self.device._native.post_receive(self.qpn, wr_id, count)
        if status != PostStatus.OK:
            self._refused(status)

    def _refused(self, status: Any) -> None:
        if status == PostStatus.QUEUE_FULL:
            raise UsageError(f"cannot post to queue pair {self.qpn}: its send queue is full (max_send_wr)")
        raise UsageError(f"cannot post to queue pair {self.qpn}: it is in {self.state.name}")

    @property
    def state(self) -> Any:
        return self.query()["state"]

    def query(self) -> dict[str, Any]:
        """State, windows, sequence numbers and round-trip times, now."""
        return self.device._native.query_qp(self.qpn)

    def stats(self) -> dict[str, int]:
        return self.device._native.qp_stats(self.qpn)

    def evs(self) -> np.ndarray:
        """One record per path; `state` is an `EvState`, `value` the source port (or the number of an SRv6 path)."""
        rows = self.device._native.query_evs(self.qpn)
        return np.array([(v, p, s.value, d, damping, spare) for v, p, s, d, damping, spare in rows], dtype=EV)

    def ev_values(self) -> list[bytes]:
        """What the network reads of each EV, as `wire.expand` gives it; `wire.path_of` makes an SRv6 path of it."""
        return self.device._native.query_ev_values(self.qpn)

    @property
    def _has_carriers(self) -> bool:
        return self._ev_profile is not None and self._ev_profile.format == EvFormat.SRV6

    def deny_ev(self, index: int) -> None:
        """The controller's word: nothing takes this EV, not even an acknowledgement, until it is allowed again."""
        self.device._native.deny_ev(self.qpn, ev_index(index))

    def allow_ev(self, index: int) -> None:
        self.device._native.allow_ev(self.qpn, ev_index(index))

    def replace_ev(self, index: int, value: int | bytes) -> None:
        """Another path in this one's place, without its history; a DENIED one stays so. Bytes are expanded."""
        ports, checked, profile = self.evs()["port"], ev_value(value), self._ev_profile
        fits = self._has_carriers and ev_index(index) < len(ports)
        if fits and isinstance(checked, bytes) and profile is not None and self.peer is not None:
            expanded = wire.expand(checked, profile.fields, profile.widths) if profile.fields else checked
            check_carrier("value", expanded, self.peer.planes[ports[index]])
        self.device._native.replace_ev(self.qpn, ev_index(index), checked)

    def destroy(self) -> None:
        """Let go of it and of all memory it uses. What the peer has written is still acknowledged if it asks; whatever
        it writes from now on ends there as `PEER_ERROR`."""
        self.device._native.destroy_qp(self.qpn)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    def __repr__(self) -> str:
        try:
            q = self.query()
        except UsageError:
            return f"<QueuePair {self.qpn:#x}, destroyed>"
        text = f"<QueuePair {self.qpn:#x} {q['state'].name}"
        if self.peer is not None:
            text += (
                f" → {self.peer}, queue pair {q['dest_qpn']:#x}: {q['messages']} messages, "
                f"{q['packets_in_flight']} packets in flight, window {q['window_bytes']:,} B, "
                f"round trip {q['smoothed_rtt_us']:.0f} µs"
            )
        return text + ">"


class Device:
    """A node on real sockets: one plane per address or interface."""

    def __init__(
        self,
        planes: Sequence[str] = ("127.0.0.1",),
        config: DeviceConfig | None = None,
        *,
        routes: Callable[[int, Any], Sequence[Any]] | None = None,
        **more: Any,
    ) -> None:
        """`planes` as `softmrc.planes` describes them; `more` are fields of `DeviceConfig`. `routes(plane, address)`
        gives the SRv6 carriers to a peer that was added without any (`FabricHost.paths` does)."""
        self._routes = routes
        try:
            self.config = config or DeviceConfig(**more)
        except TypeError as error:
            raise ConfigError("more", sorted(more), f"fields of DeviceConfig ({error})") from None
        if isinstance(planes, str):
            planes = [planes]
        if not 1 <= len(planes) <= 16:
            raise ConfigError("planes", len(planes), "1 to 16")
        self.local_planes = [plane_names.resolve(text) for text in planes]
        self.mtu: int = plane_names.chosen_mtu(self.local_planes, self.config.mtu, self.config.mtu_limit)
        self._regions: dict[int, MemoryRegion] = {}
        if self.config.port:
            leaving.hurry(self.config.port)
        self._native = _core.Device(self._plan())
        leave_to_parent(self, "the device")
        leaving.expect(self)
        self.source_ports = [tuple(row["source_ports"]) for row in self._native.planes()]
        self._ev_profile = self._add_ev_profile(self._default_ev_profile())
        self._cc_profile = self._add_cc_profile(self.config.cc_profile())

    def _plan(self) -> Any:
        config = self.config
        plan = _core.DevicePlan()
        plan.engine = to_native(
            EndpointConfig(
                seed=secrets.randbits(63),
                ports=len(self.local_planes),
                sack_threshold_bytes=config.sack_threshold_bytes,
                trim_nack=True,
                peer_trim_nack=config.trimming,
                announces_ports=True,
                probe_interval_us=config.probe_interval_us,
            )
        )
        plan.icrc, plan.gso, plan.ecn = config.icrc, config.gso, config.ecn
        plan.watches_links = config.watch_links
        plan.spin_us = config.spin_us
        if config.send_buffer_bytes:
            plan.port_burst = max(1, config.send_buffer_bytes // self.mtu)
        for plane in self.local_planes:
            plan.add_plane(
                plane.address.packed,
                plane.scope_id,
                config.port,
                plane.interface,
                plane.link,
                config.sockets_per_plane,
                config.srv6,
                config.buffer_bytes,
                config.send_buffer_bytes,
            )
        return plan

    def _default_ev_profile(self) -> EvProfile:
        """A path is a socket: its EV is the socket's source port."""
        entries = [(port, plane) for plane, ports in enumerate(self.source_ports) for port in ports]
        return self._profile_of(tuple(entries))

    def _profile_of(self, entries: tuple[tuple[int | bytes, int], ...], format: Any = EvFormat.STEV) -> EvProfile:
        planes = len(self.local_planes)
        return EvProfile(
            mode=EvMode.EXPLICIT,
            format=format,
            count=min(len(entries), MAX_EVS) // planes * planes,
            spray_quantum=self.config.quantum_for(self.mtu),
            leaves_slow_ports=self.config.leave_slow_planes,
            entries=entries,
        )

    def profile_for(self, peer: Peer) -> EvProfile | None:
        """What `QueuePair.init` should be given for this peer: its SRv6 paths, or None, the device's own sockets.

        The first path of every plane, then the second: so an EV is the number that `softmrc.fabric` knows the path by.
        """
        rows = zip(*(plane.paths for plane in peer.planes), strict=False)
        entries = tuple((path.packed, number) for row in rows for number, path in enumerate(row))
        return self._profile_of(entries, EvFormat.SRV6) if entries else None

    def _add_ev_profile(self, profile: EvProfile) -> int:
        return self._native.add_ev_profile(to_native(profile))

    def _add_cc_profile(self, profile: CcProfile) -> int:
        return self._native.add_cc_profile(to_native(profile))

    def _check_open(self) -> None:
        if self._native.is_closed:
            raise UsageError("the device is closed")

    def register(self, buffer: Any) -> MemoryRegion:
        """Make memory reachable: any writable contiguous buffer, or a torch CPU tensor. It is used in place."""
        self._check_open()
        region = MemoryRegion(self, buffer, secrets.randbits(32), 0)
        while not self._native.add_region(region.rkey, region.va, region.buffer):
            region.rkey = secrets.randbits(32)
        self._regions[region.rkey] = region
        return region

    def _forget(self, region: MemoryRegion) -> None:
        if self._regions.get(region.rkey) is not region:
            raise UsageError(f"{region!r} is not registered")
        if self._native.reads_from(region.buffer):
            raise UsageError(f"{region!r} is still being sent from; wait for its completions first")
        self._native.remove_region(region.rkey)
        del self._regions[region.rkey]

    def create_cq(self) -> CompletionQueue:
        self._check_open()
        return CompletionQueue(self, self._native.create_cq())

    def create_qp(self, send_cq: CompletionQueue, recv_cq: CompletionQueue | None = None) -> QueuePair:
        """A queue pair in RESET, with a number of the system's randomness."""
        self._check_open()
        while True:
            qpn = secrets.randbelow(0xFFFFFF - 3) + 3
            try:
                self._native.create_qp(qpn)
            except UsageError:
                continue
            return QueuePair(self, qpn, send_cq, recv_cq or send_cq)

    def add_peer(self, planes: Iterable[PeerPlane]) -> Peer:
        """Say where a peer is; packets from anywhere else are dropped and counted as strangers."""
        self._check_open()
        known = tuple(planes)
        if self._routes is not None:
            known = tuple(
                plane if plane.paths else replace(plane, paths=tuple(self._routes(number, plane.address)))
                for number, plane in enumerate(known)
            )
        if len(known) != len(self.local_planes):
            raise ConfigError("planes", len(known), f"as many planes as this device has: {len(self.local_planes)}")
        for plane in known:
            for path in plane.paths:
                check_carrier("paths", path.packed, plane)
        native = [_core.PeerPlane(p.address.packed, p.scope_id, p.port, list(p.source_ports)) for p in known]
        return Peer(self._native.add_peer(native), known)

    def poll_events(self, most: int = 4096) -> list[Event]:
        """What happened to ports, paths and queue pairs since last asked, errors included."""
        records = np.frombuffer(self._native.poll_events(most), dtype=EVENT)
        return [
            Event(EventType(kind), qpn, port, ev, psn, code, value, at_ps)
            for at_ps, value, qpn, psn, ev, code, kind, port, _, _ in records.tolist()
        ]

    async def events(self) -> AsyncIterator[Event]:
        """The same as they come, for asyncio."""
        fd = self._native.event_fd()
        while True:
            for event in self.poll_events():
                yield event
            await _readable(fd)

    def probe(self, peer: Peer, plane: int, ev: int, token: int) -> bool:
        """Ask the peer's node for a sign of life over one path; the answer is a `probe_answer` event (psn = token).
        False when there will be none, because the plane is down or too many probes wait for it already."""
        return self._native.probe(peer.id, plane, ev, token)

    def set_faults(self, plane: int | None = None, **faults: float | bool) -> None:
        """Weather for a plane (or all): drop, duplicate, reorder, corrupt, mark, trim (shares of packets), delay_us,
        reorder_delay_us, black_hole. What is not named is off; no names at all means fair weather."""
        native = _core.Faults()
        for name, value in faults.items():
            if not hasattr(native, name):
                raise ConfigError("faults", name, "drop, duplicate, reorder, corrupt, mark, trim, delay_us, black_hole")
            setattr(native, name, value)
        for number in range(len(self.local_planes)) if plane is None else [plane]:
            self._native.set_faults(number, native)

    def fault_stats(self, plane: int) -> dict[str, int]:
        return self._native.fault_stats(plane)

    def set_port(self, plane: int, up: bool) -> None:
        """Take a plane out of service, or put it back; the peers are told. It is up if its link is as well."""
        self._native.set_port(plane, up)

    def planes(self) -> list[dict[str, Any]]:
        """Counters and settings of each plane."""
        return self._native.planes()

    def stats(self) -> dict[str, int]:
        return self._native.stats()

    def capture(self, path: str, most_bytes: int = 1 << 30) -> Capture:
        """Write what is sent and received to a pcapng file, until the returned context ends."""
        self._native.start_capture(str(path), most_bytes)
        return Capture(self)

    def close(self) -> None:
        """Stop; from here on memory is the caller's again. In the background the device goes on for a moment to answer
        peers: what they wrote is acknowledged, and what they write now fails at once as `PEER_ERROR`."""
        leaving.let_go(self._native)
        self._regions.clear()

    def __del__(self) -> None:
        if hasattr(self, "_native"):
            leaving.let_go(self._native)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._native.is_closed:
            return "<Device, closed>"
        rows = self.planes()
        shown = ", ".join(f"{p}{'' if r['is_up'] else ' (down)'}" for p, r in zip(self.local_planes, rows, strict=True))
        sent, received = (sum(r[key] for r in rows) for key in ("packets_sent", "packets_received"))
        return f"<Device {shown}: {sent:,} packets sent, {received:,} received, payload {self.mtu:,} B>"


class Capture:
    """A running capture; leaving it closes the file."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.packets = 0

    def stop(self) -> int:
        """End it; the number of packets captured."""
        self.packets = self.device._native.stop_capture() or self.packets
        return self.packets

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def iterate(queue: CompletionQueue, timeout_s: float | None = None) -> Iterator[Completion]:
    """Completions one by one, for ever or until none comes for `timeout_s`."""
    while found := queue.wait(timeout_s):
        yield from found
