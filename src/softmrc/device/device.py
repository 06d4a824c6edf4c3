"""A node on real sockets: its planes, what belongs to it, what it tells."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from softmrc import _core
from softmrc._support.fork import ForkedStub, disown_in_child
from softmrc._support.units import rate_text
from softmrc._support.weak_registry import WeakRegistry
from softmrc.config import CcProfile, DeviceConfig, EvProfile, to_native
from softmrc.config import planes as plane_names
from softmrc.device import shutdown
from softmrc.device.checks import flag, instance, whole
from softmrc.device.completion import CompletionQueue, Readiness
from softmrc.device.creation import checked_config, open_device
from softmrc.device.default_profiles import DefaultProfiles
from softmrc.device.diagnostics import Capture, file_name, native_faults
from softmrc.device.event import Event, events_of
from softmrc.device.memory import MemoryRegion, ProtectionDomain
from softmrc.device.narrow_paths import NarrowPaths
from softmrc.device.peer import A_PEER, Peer, PeerPlane, check_carrier, checked_planes
from softmrc.device.queue_pair import QueuePair
from softmrc.errors import ConfigError, UsageError
from softmrc.fabric import denylist

log = logging.getLogger(__name__)


def _native_planes(planes: Iterable[PeerPlane]) -> list[Any]:
    return [
        _core.PeerPlane(
            plane.address.packed,
            whole("scope_id", plane.scope_id, 32),
            whole("port", plane.port, 16),
            [whole("source_ports", port, 16) for port in plane.source_ports],
        )
        for plane in planes
    ]


class Device:
    """A node on real sockets: one plane per address or interface."""

    def __init__(
        self,
        planes: Sequence[str | plane_names.LocalPlane] = ("127.0.0.1",),
        config: DeviceConfig | None = None,
        *,
        routes: Callable[[int, Any], Sequence[Any]] | None = None,
        why: str = "",
        **more: Any,
    ) -> None:
        """`planes` as `softmrc.config.planes` describes or resolved them; `more` are fields of `DeviceConfig`.
        `routes(plane, address)` gives the SRv6 carriers to a peer that was added without any (`FabricHost.paths`
        does). `why` says where planes come from that the caller did not choose, for the log and for what is said of
        them."""
        if routes is not None and not callable(routes):
            raise ConfigError("routes", routes, "must be a function of a plane and an address, or None")
        self._routes = routes
        self._denied = denylist.at_start() if routes is not None else None
        self.config = checked_config(config, more)
        if isinstance(planes, str):
            planes = [planes]
        if not isinstance(planes, Sequence) or isinstance(planes, bytes) or not 1 <= len(planes) <= 16:
            raise ConfigError("planes", planes, "must be 1 to 16 addresses or interfaces, in a list")
        self.local_planes = plane_names.resolve_all(planes, why)
        self.stays_here = all(plane.address.is_loopback for plane in self.local_planes)  # nothing of it passes a cable
        self.mtu: int = plane_names.choose_mtu(self.local_planes, self.config.mtu, self.config.mtu_limit)
        self._regions: set[MemoryRegion] = set()
        self._capture: Capture | None = None  # the one that runs
        self._peers: dict[int, Peer] = {}  # by number, those that were added and not removed
        self.known_silent: set[int] = set()  # planes of which it was said that some peer does not answer there
        self.narrow_paths = NarrowPaths()
        self._told_of_end: WeakRegistry[Any] = WeakRegistry()
        self.groups: WeakRegistry[Any] = WeakRegistry()  # leave before this device does
        self._sleepers: set[int] = set()  # those of its users, by id, who want its threads to sleep at once
        if self.config.port:
            shutdown.release_port(self.config.port)
        self._native, self.env_faults, self.control = open_device(self.config, self.local_planes, self.mtu, why)
        self._events_ready = Readiness()
        disown_in_child(self, "the device")
        shutdown.track_device(self)
        self._profiles = DefaultProfiles(self.config, self.local_planes, self.mtu, self.stays_here)
        self._profile_numbers: dict[int, tuple[int, int]] = {}  # by lane
        self.domain = ProtectionDomain(self, 0)  # of what is given no other
        level = logging.INFO if why else logging.DEBUG
        if log.isEnabledFor(level):
            log.log(level, "%s", self._introduction(why))

    def _introduction(self, why: str) -> str:
        """Which planes, why these, and what follows from them."""
        names = ", ".join(f"{number} {plane}" for number, plane in enumerate(self.local_planes))
        reason = f" ({why})" if why else ""
        lanes = f"{self.lanes} lane{'s' * (self.lanes > 1)}"
        rate = rate_text(self._profiles.cc_profile().rate_bps)
        known = "" if self.config.rate_bps or all(plane.speed_bps for plane in self.local_planes) else " assumed"
        return f"planes {names}{reason}; {lanes}, payload {self.mtu:,} B, {rate}b/s{known}"

    def payload(self, is_sealed: bool) -> int:
        """Bytes of a full packet to peers with which packets are encrypted, or are not."""
        return plane_names.sealed_mtu(self.local_planes, self.mtu) if is_sealed else self.mtu

    def ports_of(self, lane: int) -> list[tuple[int, ...]]:
        """The source ports of a lane's sockets, by plane; the first of each is also the one that it receives at."""
        return [tuple(ports) for ports in self._native.lane_ports(whole("lane", lane, 32))]

    def reached_at(self, lane: int) -> tuple[PeerPlane, ...]:
        """Where peers find the queue pairs of a lane."""
        places = zip(self.local_planes, self.ports_of(lane), strict=True)
        return tuple(PeerPlane(plane.address, ports[0], ports, plane.scope_id) for plane, ports in places)

    def profiles_of(self, lane: int) -> tuple[int, int]:
        # The numbers of the paths and the congestion control of queue pairs that ask for nothing else.
        if lane not in self._profile_numbers:
            evs = self.add_ev_profile(lane, self._profiles.of_sockets(self.ports_of(lane)))
            self._profile_numbers[lane] = evs, self.add_cc_profile(lane, self._profiles.cc_profile())
        return self._profile_numbers[lane]

    def profile_for(self, peer: Peer) -> EvProfile | None:
        """What `QueuePair.init` should be given for this peer: its SRv6 paths, or None, the device's own sockets.

        The first path of every plane, then the second: so an EV is the number that `softmrc.fabric` knows the path by.
        """
        return self._profiles.of_paths(instance("peer", peer, Peer, A_PEER).planes)

    def add_ev_profile(self, lane: int, profile: EvProfile) -> int:
        return self._native.add_ev_profile(lane, to_native(profile))

    def add_cc_profile(self, lane: int, profile: CcProfile) -> int:
        return self._native.add_cc_profile(lane, to_native(profile))

    def check_ours(self) -> None:
        if isinstance(self._native, ForkedStub):
            raise UsageError(self._native.error)

    def check_open(self) -> None:
        self.check_ours()
        if self._native.is_closed:
            raise UsageError("the device is closed")

    # For the modules of this package.

    @property
    def native(self) -> Any:
        return self._native

    @property
    def has_routes(self) -> bool:
        return self._routes is not None

    @property
    def is_closed(self) -> bool:
        return self._native.is_closed

    def tell_when_closed(self, dependent: Any) -> None:  # by its `on_device_closed`
        self._told_of_end.add(dependent)

    def _dependents(self) -> list[Any]:
        return list(self._told_of_end)

    def create_domain(self) -> ProtectionDomain:
        """Memory and queue pairs that have nothing to do with the device's others."""
        self.check_open()
        return ProtectionDomain(self, self._native.create_domain())

    def register(
        self, buffer: Any, *, remote_write: bool = False, domain: ProtectionDomain | None = None
    ) -> MemoryRegion:
        """Memory to send from: any contiguous buffer, or a torch CPU tensor. It is used in place. With `remote_write`
        it must be writable, and the peers of the queue pairs of `domain` (without one, the device's) may write to it
        if they know its key."""
        self.check_open()
        inside = self._domain(domain)
        region = MemoryRegion(self, buffer, inside if flag("remote_write", remote_write) else None)
        self._regions.add(region)
        return region

    def _domain(self, domain: ProtectionDomain | None) -> ProtectionDomain:
        given = self.domain if domain is None else domain
        if not isinstance(given, ProtectionDomain) or given.device is not self:
            raise ConfigError("domain", given, "must be a domain of this device: device.create_domain()")
        return given

    def _queue(self, field: str, queue: CompletionQueue) -> CompletionQueue:
        if not isinstance(queue, CompletionQueue) or queue.device is not self:
            raise ConfigError(field, queue, "must be a completion queue of this device: device.create_cq()")
        queue.check_alive()
        return queue

    def has_region(self, region: MemoryRegion) -> bool:
        return region in self._regions

    def deregister(self, region: MemoryRegion) -> None:
        if region not in self._regions:
            raise UsageError(f"{region!r} is not registered")
        if self._native.reads_from(region.buffer):
            raise UsageError(f"{region!r} is still being sent from; wait for its completions first")
        if region.domain is not None:
            self._native.remove_region(region.rkey)
        self._regions.remove(region)

    def create_cq(self) -> CompletionQueue:
        self.check_open()
        return CompletionQueue(self, self._native.create_cq())

    def create_qp(
        self,
        send_cq: CompletionQueue,
        recv_cq: CompletionQueue | None = None,
        *,
        domain: ProtectionDomain | None = None,
        lane: int | None = None,
    ) -> QueuePair:
        """A queue pair in RESET, with a number of the system's randomness. Its peer may write to the memory of
        `domain`, or of the device's where there is none. It lives in `lane`, or in the one with the fewest others."""
        self.check_open()
        queues = self._queue("send_cq", send_cq), self._queue("recv_cq", send_cq if recv_cq is None else recv_cq)
        inside = self._domain(domain)
        lanes = self.lanes
        number = self._native.emptiest_lane() if lane is None else whole("lane", lane, 32)
        if number >= lanes:
            raise ConfigError("lane", lane, f"must be below {lanes}")
        while True:
            qpn = (secrets.randbelow(0xFFFFFF // lanes - 4) + 4) * lanes + number
            try:
                self._native.create_qp(qpn)
            except UsageError:
                continue
            for queue in queues:
                queue.attach(qpn)
            return QueuePair(self, qpn, *queues, inside)

    def set_spinning(self, who: object, *, is_wanted: bool) -> None:
        # Idle threads look once more for `spin_us` before they sleep, unless one of those who share the device does
        # not want that.
        (self._sleepers.discard if is_wanted else self._sleepers.add)(id(who))
        self._native.set_spin_us(0.0 if self._sleepers else self.config.spin_us)

    def deny_listed(self, qp: QueuePair) -> None:
        # Keep it off what the node's denylist names: its paths have the numbers that the fabric knows.
        if self._denied is None or qp.peer is None or not qp.has_own_carriers:
            return
        denied = self._denied(qp.peer.planes[0].address)
        for index, number in enumerate(qp.evs()["value"].tolist()):
            if number in denied:
                qp.deny_ev(index)

    def add_peer(self, planes: Iterable[PeerPlane]) -> Peer:
        """Say where a peer is; packets from unknown addresses are dropped and counted. Planes that were added
        before are the same peer, which is then to be removed as often."""
        self.check_open()
        known = self._located(planes)
        peer = Peer(self._native.add_peer(_native_planes(known)), known)
        self._peers[peer.id] = peer
        return peer

    def expect_peer(self, lane: int, planes: Iterable[PeerPlane]) -> tuple[int, tuple[EvProfile | None, list[int]]]:
        # Register an address that becomes a peer of this lane with the first packet in either direction. Returns its
        # number, valid until `native.forget_peer`, and the paths to it, with those that the node's denylist names.
        # `planes` are such as `softmrc.connection.validate` makes.
        if self._routes is None:
            return self._native.expect_peer(lane, [plane.native() for plane in planes]), (None, [])
        self.check_open()
        known = self._located(planes)
        paths = self._profiles.of_paths(known)
        denied = self._denied(known[0].address) if paths is not None and self._denied is not None else ()
        listed = sorted(number for number in denied if paths is not None and number < paths.count)
        return self._native.expect_peer(lane, _native_planes(known)), (paths, listed)

    def _located(self, planes: Iterable[PeerPlane]) -> tuple[PeerPlane, ...]:
        """Where a peer is, with the paths to it."""
        known = checked_planes(planes)
        if self._routes is not None:
            known = tuple(
                plane if plane.paths else replace(plane, paths=tuple(self._routes(number, plane.address)))
                for number, plane in enumerate(known)
            )
        if len(known) != len(self.local_planes):
            raise ConfigError(
                "planes", len(known), f"must be as many planes as this device has: {len(self.local_planes)}"
            )
        for plane in known:
            for path in plane.paths:
                check_carrier("paths", path.packed, plane)
        return known

    def remove_peer(self, peer: Peer) -> None:
        """The end of what `add_peer` began. When no queue pair, nor one in time-wait, uses it any more, its packets
        come from an unknown address."""
        self.check_ours()
        self.check_held(peer)
        self._native.remove_peer(peer.id)
        self._peers.pop(peer.id, None)

    def check_held(self, peer: Peer) -> None:
        # The number of a removed peer, or of another device's, may belong to a different peer here.
        instance("peer", peer, Peer, A_PEER)
        if self._peers.get(peer.id) is not peer:
            raise UsageError(f"peer {peer} was removed from this device, or belongs to another; add it again")

    def poll_events(self, most: int = 4096) -> list[Event]:
        """What happened to ports, paths and queue pairs since last asked, errors included."""
        return events_of(self._native.poll_events(whole("most", most, 32)))

    async def events(self) -> AsyncIterator[Event]:
        """The same as they come, for asyncio."""
        while True:
            for event in self.poll_events():
                yield event
            self.check_open()
            await self._events_ready.wait(self._native.event_fd())

    def probe(self, peer: Peer, plane: int, ev: int, token: int) -> bool:
        """Ask the peer's node for a sign of life over one path; the answer is a `probe_answer` event (psn = token).
        False when there will be none, because the plane is down or too many probes wait for it already."""
        self.check_held(peer)
        return self._native.probe(peer.id, self._plane(plane), whole("ev", ev, 32), whole("token", token, 32))

    def set_faults(self, plane: int | None = None, **faults: float | bool) -> None:
        """Faults of a plane (or all): drop, duplicate, reorder, corrupt, mark, trim (shares of packets), delay_us,
        reorder_delay_us, mtu (larger IP packets vanish), black_hole. What is not named is off; no names at all end
        them."""
        self.check_open()
        native = native_faults(faults)
        for number in range(len(self.local_planes)) if plane is None else [plane]:
            self._native.set_faults(self._plane(number), native)

    def fault_stats(self, plane: int) -> dict[str, int]:
        return self._native.fault_stats(self._plane(plane))

    def _plane(self, plane: int) -> int:
        if whole("plane", plane, 32) >= len(self.local_planes):
            raise ConfigError("plane", plane, f"must be below {len(self.local_planes)}")
        return plane

    def set_port(self, plane: int, up: bool) -> None:
        """Take a plane out of service, or put it back; peers are notified. It is up if its link is as well."""
        self.check_open()
        self._native.set_port(self._plane(plane), flag("up", up))

    def planes(self) -> list[dict[str, Any]]:
        """Counters and settings of each plane."""
        return self._native.planes()

    @property
    def lanes(self) -> int:
        """How many there may be; one opens when the first queue pair comes to live there."""
        return self._native.lane_count

    def lane_stats(self) -> list[dict[str, int]]:
        """Counters of each lane that is open."""
        return self._native.lanes()

    def stats(self) -> dict[str, int]:
        """The same, of all together."""
        rows = self.lane_stats()
        return {name: sum(row[name] for row in rows) for name in rows[0]}

    def capture(self, path: str | os.PathLike[str], most_bytes: int = 1 << 30) -> Capture:
        """Write what is sent and received to a pcapng file, until the returned context ends. One at a time."""
        self.check_open()
        if self._capture is not None:
            raise UsageError(f"a capture to {self._capture.path} runs already; stop it first")
        name = file_name(path)
        self._native.start_capture(name, whole("most_bytes", most_bytes, 64))
        self._capture = Capture(name, self._stop_capture)
        return self._capture

    def _stop_capture(self) -> int:
        self._capture = None
        return self._native.stop_capture()

    def close(self) -> None:
        """Stop; from here on memory is the caller's again. In the background the device goes on for a moment to answer
        peers: what they wrote is acknowledged, and what they write now fails at once as `PEER_ERROR`. Peers of its
        connections notice at once. Its groups leave first, as by their own `close`."""
        for group in list(self.groups):
            group.close()
        shutdown.linger(self._native)
        for region in list(self._regions):
            region.let_go()
        self._regions.clear()
        for one in self._dependents():
            one.on_device_closed()

    def __del__(self) -> None:
        if hasattr(self, "_native"):
            shutdown.linger(self._native)

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
        facts = [
            [plane_names.speed_text(p)] * bool(p.speed_bps) + ["down"] * (not r["is_up"])
            for p, r in zip(self.local_planes, rows, strict=True)
        ]
        shown = ", ".join(
            f"{plane} ({', '.join(said)})" if said else str(plane)
            for plane, said in zip(self.local_planes, facts, strict=True)
        )
        sent, received = (sum(r[key] for r in rows) for key in ("packets_sent", "packets_received"))
        lanes = f"{self._native.open_lanes} of {self.lanes} lanes open, " if self.lanes > 1 else ""
        return f"<Device {shown}: {lanes}{sent:,} packets sent, {received:,} received, payload {self.mtu:,} B>"
