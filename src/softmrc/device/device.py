"""A node on real sockets: its planes, what belongs to it, what it tells."""

from __future__ import annotations

import errno
import functools
import json
import logging
import os
import resource
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import asdict, fields, replace
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from softmrc import _core
from softmrc._support.fork import ForkedStub, disown_in_child
from softmrc._support.units import ev_text, qpn_text, rate_text
from softmrc._support.weak_registry import WeakRegistry
from softmrc.config import (
    LONGEST_US,
    CcProfile,
    DeviceConfig,
    EndpointConfig,
    EvFormat,
    EvMode,
    EvProfile,
    RtrAttributes,
    RtsAttributes,
    quantity,
    to_native,
)
from softmrc.config import planes as plane_names
from softmrc.device import shutdown
from softmrc.device.checks import flag, instance, whole
from softmrc.device.completion import CompletionQueue, Readiness
from softmrc.device.memory import MemoryRegion, ProtectionDomain
from softmrc.device.narrow_paths import NarrowPaths
from softmrc.device.peer import A_PEER, Peer, PeerPlane, check_carrier, checked_planes
from softmrc.device.queue_pair import QueuePair
from softmrc.device.width import lanes_here
from softmrc.engine import EVENT, Endpoint, EventType, EvState, QpState, RefusedPacket
from softmrc.errors import ConfigError, DeviceError, UsageError, did_you_mean
from softmrc.fabric import denylist

log = logging.getLogger(__name__)

MAX_EVS = 1024  # of one queue pair
MAX_SOCKETS = 256  # of one plane
SHARES = ("drop", "duplicate", "reorder", "corrupt", "mark", "trim")
ANY_QPN = 3
DELAYS = ("delay_us", "reorder_delay_us")


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

    def __str__(self) -> str:
        """The same in words."""
        words = {
            EventType.qp_state: lambda: f"queue pair {qpn_text(self.qpn)} is {QpState(self.code).name}",
            EventType.ev_state: lambda: f"path {ev_text(self.ev)} of plane {self.plane} is {EvState(self.code).name}",
            EventType.port_state: lambda: f"plane {self.plane} is {'up' if self.code else 'down'}",
            EventType.peer_ports: lambda: f"peer {self.code} can use planes {_planes_in(self.value)}",
            EventType.probe_answer: lambda: (
                f"path {ev_text(self.ev)} answered on plane {self.plane} in {self.value / 1e6:,.0f} µs"
            ),
            EventType.packet_refused: lambda: f"a packet was refused: {_words(RefusedPacket(self.code).name)}",
        }.get(self.type, lambda: _words(self.type.name))()
        return f"{self.at_ps / 1e12:.6f} s: {words}"


def _words(name: str) -> str:
    return name.lower().replace("_", " ")


def _planes_in(mask: int) -> str:
    return ", ".join(str(plane) for plane in range(mask.bit_length()) if mask >> plane & 1) or "none"


def _config_of(config: DeviceConfig | None, more: dict[str, Any]) -> DeviceConfig:
    if config is not None and more:
        raise ConfigError("more", sorted(more), "either a DeviceConfig, or fields of one")
    for name in sorted(set(more) - {one.name for one in fields(DeviceConfig)} if more else ()):
        known = [one.name for one in fields(DeviceConfig)]
        raise ConfigError(name, more[name], f"a field of DeviceConfig{did_you_mean(name, known)}")
    made = DeviceConfig(**more) if config is None else config
    return instance("config", made, DeviceConfig, "a DeviceConfig, or None").checked()


@functools.lru_cache(8)
def _check_queue_pairs(config: DeviceConfig) -> None:
    """Have the engine look at what queue pairs will be given, now and not when the first peer comes; once for each
    configuration."""
    endpoint = Endpoint()
    endpoint.add_ev_profile(EvProfile(count=1))
    endpoint.add_cc_profile(config.cc_profile())
    endpoint.create_cq()
    qp = endpoint.create_qp(ANY_QPN)
    qp.init()
    qp.rtr(0, RtrAttributes(peer=endpoint.add_peer(), dest_qpn=ANY_QPN))
    qp.rts(0, RtsAttributes(**config.sending()))


def _remedy(error: OSError, sockets: int, why: str) -> str:
    """The end of a sentence about a device that the system did not let open: what would help."""
    if error.errno == errno.EMFILE:
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"; this device alone needs {sockets} sockets, and a process may have {most:,} files: raise `ulimit -n`"
    if error.errno == errno.EADDRINUSE:
        return "; leave `port` out and the system chooses one, so that several processes of a host each have their own"
    return f" ({why})" if why and error.errno == errno.EADDRNOTAVAIL else ""


@functools.lru_cache(8)
def _say_weather(faults: str) -> None:
    """Once, and aloud: a variable that somebody forgot must not be taken for a broken network."""
    log.warning("SOFTMRC_FAULTS breaks the planes of this process's devices, on purpose: %s", faults)


@functools.lru_cache(8)
def _in_json(config: DeviceConfig) -> str:
    return json.dumps(asdict(config))


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


def _file_name(path: str | os.PathLike[str]) -> str:
    try:
        name = os.fspath(path)
        if not isinstance(name, str) or not name or "\0" in name:
            raise TypeError
        name.encode()
    except (TypeError, UnicodeError):
        raise ConfigError("path", path, "the name of a file") from None
    return name


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
            raise ConfigError("routes", routes, "a function of a plane and an address, or None")
        self._routes = routes
        self._denied = denylist.at_start() if routes is not None else None
        self.config = _config_of(config, more)
        if not 1 <= whole("sockets_per_plane", self.config.sockets_per_plane, 32) <= MAX_SOCKETS:
            raise ConfigError("sockets_per_plane", self.config.sockets_per_plane, f"1 to {MAX_SOCKETS}")
        if isinstance(planes, str):
            planes = [planes]
        if not isinstance(planes, Sequence) or isinstance(planes, bytes) or not 1 <= len(planes) <= 16:
            raise ConfigError("planes", planes, "1 to 16 addresses or interfaces, in a list")
        self.local_planes = plane_names.resolve_all(planes, why)
        self.stays_here = all(plane.address.is_loopback for plane in self.local_planes)  # nothing of it passes a cable
        self.mtu: int = plane_names.chosen_mtu(self.local_planes, self.config.mtu, self.config.mtu_limit)
        _check_queue_pairs(self.config)
        self._regions: set[MemoryRegion] = set()
        self._capture: Capture | None = None  # the one that runs
        self._peers: dict[int, Peer] = {}  # by number, those that were added and not removed
        self.known_silent: set[int] = set()  # planes of which it was said that some peer does not answer there
        self.narrow_paths = NarrowPaths()
        self._told_of_end: WeakRegistry[Any] = WeakRegistry()
        self._groups: WeakRegistry[Any] = WeakRegistry()  # leave before this device does
        self._sleepers: set[int] = set()  # those of its users, by id, who want its threads to sleep at once
        if self.config.port:
            shutdown.release_port(self.config.port)
        plan = self._plan()
        try:
            self._native = _core.Device(plan)
        except DeviceError as error:
            sockets = plan.lanes * len(self.local_planes) * self.config.sockets_per_plane
            raise DeviceError(error.errno, f"{error.strerror}{_remedy(error, sockets, why)}") from None
        self.weather = _core.set_weather(self._native)  # that the environment asks for
        if self.weather:
            _say_weather(self.weather)
        try:
            self.control = self._open_control()
        except DeviceError:  # whoever keeps the exception would keep the device
            self._native.close()
            raise
        self._events_ready = Readiness()
        disown_in_child(self, "the device")
        shutdown.track_device(self)
        self._profiles: dict[int, tuple[int, int]] = {}
        self.domain = ProtectionDomain(self, 0)  # of whatever is given none of its own
        level = logging.INFO if why else logging.DEBUG
        if log.isEnabledFor(level):
            log.log(level, "%s", self._introduction(why))

    def _introduction(self, why: str) -> str:
        """Which planes, why these, and what follows from them."""
        names = ", ".join(f"{number} {plane}" for number, plane in enumerate(self.local_planes))
        reason = f" ({why})" if why else ""
        lanes = f"{self.lanes} lane{'s' * (self.lanes > 1)}"
        rate = rate_text(self._cc_profile().rate_bps)
        known = "" if self.config.rate_bps or all(plane.speed for plane in self.local_planes) else " assumed"
        return f"planes {names}{reason}; {lanes}, payload {self.mtu:,} B, {rate}b/s{known}"

    def _plan(self) -> Any:
        config = self.config
        plan = _core.DevicePlan()
        plan.engine = to_native(
            EndpointConfig(
                seed=secrets.randbits(63),
                secret=secrets.randbits(64),
                ports=len(self.local_planes),
                sack_threshold_bytes=config.sack_threshold_bytes,
                sack_gap_us=config.sack_gap_us,
                trim_nack=config.trimming,
                peer_trim_nack=config.trimming,
                announces_ports=True,
                proves_addresses=config.prove_addresses,
                probe_interval_us=config.probe_interval_us,
                answers_per_s=config.answers_per_s,
            )
        )
        plan.icrc, plan.gso, plan.ecn = config.icrc, config.gso, config.ecn
        plan.rekey_packets, plan.rekey_s = config.rekey_packets, config.rekey_s
        plan.watches_links = config.watch_links
        plan.spin_us = config.spin_us
        plan.lanes = whole("lanes", config.lanes, 32) or lanes_here(config.port)
        if config.send_buffer_bytes:
            plan.port_burst = max(1, config.send_buffer_bytes // self.mtu)
        for plane in self.local_planes:
            plan.add_plane(
                plane.address.packed,
                plane.scope_id,
                whole("port", config.port, 16),
                plane.interface,
                plane.link,
                config.sockets_per_plane,
                config.srv6,
                whole("buffer_bytes", config.buffer_bytes, 32),
                whole("send_buffer_bytes", config.send_buffer_bytes, 32),
            )
        return plan

    def _open_control(self) -> str:
        """Where this device can be asked and told (docs/control.md); empty where it cannot."""
        speeds = [plane.speed_bps for plane in self.local_planes]
        path, why = _core.open_control(self._native, "verbs", self.mtu, _in_json(self.config), speeds)
        if why:
            logging.getLogger("softmrc").info("no control socket: %s", why)
        return path

    def payload(self, is_sealed: bool) -> int:
        """Bytes of a full packet to peers with which packets are sealed, or are not."""
        return plane_names.sealed_mtu(self.local_planes, self.mtu) if is_sealed else self.mtu

    def ports_of(self, lane: int) -> list[tuple[int, ...]]:
        """The source ports of a lane's sockets, by plane; the first of each is also the one that it receives at."""
        return [tuple(ports) for ports in self._native.lane_ports(whole("lane", lane, 32))]

    def reached_at(self, lane: int) -> tuple[PeerPlane, ...]:
        """Where peers find the queue pairs of a lane."""
        places = zip(self.local_planes, self.ports_of(lane), strict=True)
        return tuple(PeerPlane(plane.address, ports[0], ports, plane.scope_id) for plane, ports in places)

    def _profiles_of(self, lane: int) -> tuple[int, int]:
        """What a queue pair is given that asks for nothing else: its paths (a path is a socket: its EV is the socket's
        source port), and its congestion control."""
        if lane not in self._profiles:
            ports = enumerate(self.ports_of(lane))
            evs = self._profile_of(tuple((port, plane) for plane, of_plane in ports for port in of_plane))
            self._profiles[lane] = self._add_ev_profile(lane, evs), self._add_cc_profile(lane, self._cc_profile())
        return self._profiles[lane]

    def _cc_profile(self) -> CcProfile:
        speeds = [plane.speed_bps for plane in self.local_planes]
        return self.config.cc_profile(speeds, self.stays_here)

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
        return self._paths_to(instance("peer", peer, Peer, A_PEER).planes)

    def _paths_to(self, planes: Sequence[PeerPlane]) -> EvProfile | None:
        rows = zip(*(plane.paths for plane in planes), strict=False)
        entries = tuple((path.packed, number) for row in rows for number, path in enumerate(row))
        return self._profile_of(entries, EvFormat.SRV6) if entries else None

    def _add_ev_profile(self, lane: int, profile: EvProfile) -> int:
        return self._native.add_ev_profile(lane, to_native(profile))

    def _add_cc_profile(self, lane: int, profile: CcProfile) -> int:
        return self._native.add_cc_profile(lane, to_native(profile))

    def check_ours(self) -> None:
        if isinstance(self._native, ForkedStub):
            raise UsageError(self._native.error)

    def check_open(self) -> None:
        self.check_ours()
        if self._native.is_closed:
            raise UsageError("the device is closed")

    @property
    def native(self) -> Any:
        """The device of the core, for the modules of this package."""
        return self._native

    @property
    def is_closed(self) -> bool:
        return self._native.is_closed

    def _tell_when_closed(self, dependent: Any) -> None:
        """Its `_on_device_closed` is called when this device is."""
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
            raise ConfigError("domain", given, "a domain of this device: device.create_domain()")
        return given

    def _queue(self, field: str, queue: CompletionQueue) -> CompletionQueue:
        if not isinstance(queue, CompletionQueue) or queue.device is not self:
            raise ConfigError(field, queue, "a completion queue of this device: device.create_cq()")
        queue._check_alive()
        return queue

    def _forget(self, region: MemoryRegion) -> None:
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
            raise ConfigError("lane", lane, f"below {lanes}")
        while True:
            qpn = (secrets.randbelow(0xFFFFFF // lanes - 4) + 4) * lanes + number
            try:
                self._native.create_qp(qpn)
            except UsageError:
                continue
            for queue in queues:
                queue._used_by.add(qpn)
            return QueuePair(self, qpn, *queues, inside)

    def _spin(self, who: object, *, is_wanted: bool) -> None:
        """Idle threads look once more for `spin_us` before they sleep, unless one of those who share the device does
        not want that."""
        (self._sleepers.discard if is_wanted else self._sleepers.add)(id(who))
        self._native.set_spin_us(0.0 if self._sleepers else self.config.spin_us)

    def _deny_listed(self, qp: QueuePair) -> None:
        """Keep a queue pair off what the node's denylist names: its paths have the numbers that the fabric knows."""
        if self._denied is None or qp.peer is None or qp._ev_profile is None or not qp._has_carriers:
            return
        denied = self._denied(qp.peer.planes[0].address)
        for index, number in enumerate(qp.evs()["value"].tolist()):
            if number in denied:
                qp.deny_ev(index)

    def _has_qp(self, qpn: int) -> bool:
        return self._native.has_qp(qpn)

    def add_peer(self, planes: Iterable[PeerPlane]) -> Peer:
        """Say where a peer is; packets from anywhere else are dropped and counted as strangers. Planes that were added
        before are the same peer, which is then to be removed as often."""
        self.check_open()
        known = self._located(planes)
        peer = Peer(self._native.add_peer(_native_planes(known)), known)
        self._peers[peer.id] = peer
        return peer

    def _expect_peer(self, lane: int, planes: Iterable[PeerPlane]) -> tuple[int, tuple[EvProfile | None, list[int]]]:
        """Say where somebody is who becomes a peer of this lane when the first packet comes or goes: by which number it
        is known until `_native.forget_peer`; and the paths to it, with those that the node's denylist names. `planes`
        are such as `softmrc.connection.validate` makes."""
        if self._routes is None:
            return self._native.expect_peer(lane, [plane.native() for plane in planes]), (None, [])
        self.check_open()
        known = self._located(planes)
        paths = self._paths_to(known)
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
            raise ConfigError("planes", len(known), f"as many planes as this device has: {len(self.local_planes)}")
        for plane in known:
            for path in plane.paths:
                check_carrier("paths", path.packed, plane)
        return known

    def remove_peer(self, peer: Peer) -> None:
        """The end of what `add_peer` began. When no queue pair goes there any more, nor answers for one that did, its
        packets are a stranger's."""
        self.check_ours()
        self._check_held(peer)
        self._native.remove_peer(peer.id)
        self._peers.pop(peer.id, None)

    def _check_held(self, peer: Peer) -> None:
        """Refuse one that was removed, or another device's, whose number may be somebody else's here."""
        instance("peer", peer, Peer, A_PEER)
        if self._peers.get(peer.id) is not peer:
            raise UsageError(f"peer {peer} was removed from this device, or is none of its own; add it again")

    def poll_events(self, most: int = 4096) -> list[Event]:
        """What happened to ports, paths and queue pairs since last asked, errors included."""
        records = np.frombuffer(self._native.poll_events(whole("most", most, 32)), dtype=EVENT)
        return [
            Event(EventType(kind), qpn, port, ev, psn, code, value, at_ps)
            for at_ps, value, qpn, psn, ev, code, kind, port, _, _ in records.tolist()
        ]

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
        self._check_held(peer)
        return self._native.probe(peer.id, self._plane(plane), whole("ev", ev, 32), whole("token", token, 32))

    def set_faults(self, plane: int | None = None, **faults: float | bool) -> None:
        """Weather for a plane (or all): drop, duplicate, reorder, corrupt, mark, trim (shares of packets), delay_us,
        reorder_delay_us, mtu (larger IP packets vanish), black_hole. What is not named is off; no names at all means
        fair weather."""
        self.check_open()
        native = _core.Faults()
        for name, value in faults.items():
            if name == "black_hole":
                native.black_hole = flag("black_hole", value)
            elif name == "mtu":
                native.mtu = whole("mtu", value, 16)
            elif name in SHARES:
                setattr(native, name, quantity(name, value, 1.0, "a share, from 0 to 1"))
            elif name in DELAYS:
                setattr(native, name, quantity(name, value, LONGEST_US, f"microseconds, from 0 to {LONGEST_US:,.0f}"))
            else:
                raise ConfigError("faults", name, ", ".join((*SHARES, *DELAYS, "mtu", "black_hole")))
        for number in range(len(self.local_planes)) if plane is None else [plane]:
            self._native.set_faults(self._plane(number), native)

    def fault_stats(self, plane: int) -> dict[str, int]:
        return self._native.fault_stats(self._plane(plane))

    def _plane(self, plane: int) -> int:
        if whole("plane", plane, 32) >= len(self.local_planes):
            raise ConfigError("plane", plane, f"below {len(self.local_planes)}")
        return plane

    def set_port(self, plane: int, up: bool) -> None:
        """Take a plane out of service, or put it back; the peers are told. It is up if its link is as well."""
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
        name = _file_name(path)
        self._native.start_capture(name, whole("most_bytes", most_bytes, 64))
        self._capture = Capture(self, name)
        return self._capture

    def close(self) -> None:
        """Stop; from here on memory is the caller's again. In the background the device goes on for a moment to answer
        peers: what they wrote is acknowledged, and what they write now fails at once as `PEER_ERROR`. Peers of its
        connections notice at once. Its groups leave first, as by their own `close`."""
        for group in list(self._groups):
            group.close()
        shutdown.linger(self._native)
        for region in list(self._regions):
            region._let_go()
        self._regions.clear()
        for one in self._dependents():
            one._on_device_closed()

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
            [p.speed] * bool(p.speed) + ["down"] * (not r["is_up"])
            for p, r in zip(self.local_planes, rows, strict=True)
        ]
        shown = ", ".join(
            f"{plane} ({', '.join(said)})" if said else str(plane)
            for plane, said in zip(self.local_planes, facts, strict=True)
        )
        sent, received = (sum(r[key] for r in rows) for key in ("packets_sent", "packets_received"))
        lanes = f"{self._native.open_lanes} of {self.lanes} lanes open, " if self.lanes > 1 else ""
        return f"<Device {shown}: {lanes}{sent:,} packets sent, {received:,} received, payload {self.mtu:,} B>"


class Capture:
    """A running capture; leaving it closes the file."""

    def __init__(self, device: Device, path: str) -> None:
        self.device = device
        self.path = path
        self.packets = 0
        self._is_running = True

    def stop(self) -> int:
        """End it; the number of packets captured."""
        if self._is_running:
            self._is_running = False
            self.device._capture = None
            self.packets = self.device.native.stop_capture()
        return self.packets

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
