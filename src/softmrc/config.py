"""Everything that can be set, as plain dataclasses.

The native core is the one place that decides which values are allowed; a refused one is a `ConfigError` that names the
field, the value and what would be right. Durations end in `_us` and are microseconds; rates are bits per second.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from softmrc import _core
from softmrc.errors import ConfigError
from softmrc.wire.entropy import EvField, layout

EvMode = _core.EvMode
EvFormat = _core.EvFormat
CcAlgorithm = _core.CcAlgorithm

RETRY_FOREVER = 25
LONGEST_US = 1e12
PAYLOAD_UNIT = 128  # full packets carry a multiple of it, so that no word of a message is split between two
TRAIN_BYTES = 65_480  # what the kernel takes in one send, to cut into packets itself
PACKET_OVERHEAD = 40  # headers and ICRC of a data packet


@dataclass(frozen=True)
class EndpointConfig:
    """One node."""

    seed: int = 1
    secret: int = field(default=0, repr=False)  # what proofs of addresses rest on; a device draws its own
    ports: int = 1
    sack_threshold_bytes: int = 16 * 1024
    sack_first_packet: bool = False
    timestamps: bool = True
    trim_nack: bool = True
    peer_trim_nack: bool = True
    announces_ports: bool = False  # tell every peer at first how our ports are: it may have known another process here
    proves_addresses: bool = False  # send data to a plane of a peer only after it has answered there
    probe_interval_us: float = 1_000.0
    probe_interval_max_us: float = 1_000_000.0
    revival_answers: int = 3
    answers_per_s: int = 0  # to requests of nodes, and a tenth of that to each peer besides; 0: any number
    max_events: int = 4096


@dataclass(frozen=True)
class EvProfile:
    """The paths of a queue pair: how many, and where their entropy values come from.

    An entry is (EV, port). An EV is a 32-bit number, or up to 32 bytes which `fields` and `widths` expand (without
    fields they are the value itself); in the SRV6 format the value is an outer destination and the segment behind it,
    and packets carry the number of the entry. GENERATED ones are drawn within the bounds of the fields, for each queue
    pair anew.
    """

    mode: Any = EvMode.AUTOMATIC
    count: int = 128
    spares: int = 0
    min_active: int = 0  # 0: a quarter of count
    value_bits: int = 32
    spray_quantum: int = 1
    skips_congested: bool = True  # False: oblivious spraying, which a mark or a trim does not steer
    leaves_slow_ports: bool = False  # steer by round trips, where nothing marks congestion
    format: Any = EvFormat.STEV
    widths: tuple[int, ...] = ()  # of the format's fields, in bits
    fields: tuple[EvField, ...] = ()
    entries: tuple[tuple[int | bytes, int], ...] = field(default=(), repr=False)  # (EV, port), for EXPLICIT


@dataclass(frozen=True)
class CcProfile:
    """Congestion control: NSCC, or a fixed window."""

    algorithm: Any = CcAlgorithm.NSCC
    rate_bps: int = 400_000_000_000
    base_rtt_us: float = 8.0
    learn_base_rtt: bool = False
    min_base_rtt_us: float = 0.0  # a shorter round trip counts as this long
    min_reorder_window_us: float = 0.0  # a packet is not lost before another sent so much later is acknowledged
    trimming: bool = True
    target_delay_us: float = 0.0  # 0: 0.75 base RTT with trimming, else 1.0
    window_bytes: int = 1 << 20
    max_window_bdp: float = 1.5
    shared_window_bdp: float = 2.0  # in flight from all queue pairs of an endpoint together; 0: no limit
    gamma: float = 0.8
    max_md_jump: float = 0.5
    qa_gate: int = 3


@dataclass(frozen=True)
class InitAttributes:
    """RESET → INIT."""

    ev_profile: int = 0
    cc_profile: int = 0
    send_cq: int = 0
    recv_cq: int = 0
    domain: int = 0  # whose memory the peer may write to
    hint_qps_per_peer: int = 1
    hint_send_peers: int = 1
    hint_receive_peers: int = 1


@dataclass(frozen=True)
class RtrAttributes:
    """INIT → RTR: what is needed to receive."""

    peer: int = 0
    dest_qpn: int = 0
    first_psn: int = 0
    mtu: int = 4096
    max_wimm_dest: int = 128
    mpr_dest: int = 8
    dynamic_mpr: bool = False
    port_key: int = 0  # what the peer's words about its ports must carry; 0: nothing
    peer_port_key: int = 0  # and what ours do


@dataclass(frozen=True)
class RtsAttributes:
    """RTR → RTS: what is needed to send."""

    first_psn: int = 0
    max_wimm: int = 128
    mpr: int = 8
    timeout: int = 8  # 1.024 µs · 2^timeout
    retry_linear: int = 7
    retry_exponential: int = RETRY_FOREVER
    max_send_wr: int = 4096


def quantity(name: str, value: Any, most: float, allowed: str) -> float:
    """A number from 0 to so many; neither infinite nor none at all."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise ConfigError(name, value, allowed)
    return value


def whole_payload(room_bytes: int) -> int:
    """The payload of a full packet where there is room for so many bytes."""
    return room_bytes // PAYLOAD_UNIT * PAYLOAD_UNIT


@dataclass(frozen=True)
class DeviceConfig:
    """A node on real sockets. The defaults are for software: coarser timers, and windows that hide scheduling."""

    port: int = 0  # the UDP port of every plane; further lanes have those that follow; 0: any free one
    lanes: int = 0  # threads that move packets, each with sockets of its own; 0: by cores, or one where there is a port
    sockets_per_plane: int = 4  # how many source ports, and so how many paths where the network hashes them
    quantum: int = 0  # packets in a row that may share a path; 0: as many as two of the kernel's trains hold
    mtu: int = 0  # payload bytes of a full packet; 0: what the links carry, up to mtu_limit
    mtu_limit: int = 16256  # four such packets fill a train
    icrc: bool = True
    gso: bool = True
    ecn: bool = True
    srv6: bool = False  # EVs are indices of SRv6 carriers, given with each peer
    trimming: bool = False  # the network trims and the peers understand it
    prove_addresses: bool = True  # send data only where a probe was answered; peers may say any address is theirs
    watch_links: bool = True
    leave_slow_planes: bool = True  # not use a plane whose round trips are three times the others'
    spin_us: float = 50.0
    buffer_bytes: int = 8 << 20
    send_buffer_bytes: int = 0  # of each socket; 0: an eighth of buffer_bytes. A short one chooses paths later
    rate_bps: int = 40_000_000_000  # of all planes together
    base_rtt_us: float = 2_000.0  # below this, a round trip says more about scheduling than about the network
    window_bytes: int = 2 << 20  # the congestion window never grows beyond it: what is in flight should stay in caches
    reorder_us: float = 2_000.0  # how much later another packet must have been sent for a missing one to be lost
    sack_threshold_bytes: int = 64 * 1024
    probe_interval_us: float = 1_000.0
    answers_per_s: int = 10_000  # to probes of all peers together, and a tenth of that to each besides; 0: any number
    mpr: int = 16
    max_wimm: int = 1024
    timeout: int = 16  # 1.024 µs · 2^16 = 67 ms
    retry_linear: int = 7
    retry_exponential: int = 5
    max_send_wr: int = 4096

    def checked(self) -> DeviceConfig:
        """Itself, if every field has its type; what else is wrong with a value the core says, which uses it."""
        for item in fields(self):
            value = getattr(self, item.name)
            if item.type == "bool" and not isinstance(value, bool):
                raise ConfigError(item.name, value, "true or false")
            if item.type == "float":
                quantity(item.name, value, LONGEST_US, f"microseconds, from 0 to {LONGEST_US:,.0f}")
            if item.type == "int" and (not hasattr(value, "__index__") or not 0 <= value < 1 << 62):
                raise ConfigError(item.name, value, "a whole number that is not negative")
        return self

    def sending(self) -> dict[str, int]:
        """What `RtsAttributes` takes from here."""
        names = ("mpr", "max_wimm", "timeout", "retry_linear", "retry_exponential", "max_send_wr")
        return {name: getattr(self, name) for name in names}

    def quantum_for(self, mtu: int) -> int:
        """The spray quantum with packets of this size."""
        return self.quantum or max(1, min(2 * (TRAIN_BYTES // (mtu + PACKET_OVERHEAD)), 64))

    def cc_profile(self) -> CcProfile:
        """Congestion control for this device: the window follows the rate, up to `window_bytes`."""
        bdp_bytes = self.rate_bps / 8 * self.base_rtt_us / 1e6
        return CcProfile(
            max_window_bdp=min(max(self.window_bytes / bdp_bytes, 0.1), 1.5) if bdp_bytes else 1.5,
            shared_window_bdp=0.0,  # the kernel's queues are no fabric's; a collective sends to all at once
            rate_bps=self.rate_bps,
            base_rtt_us=self.base_rtt_us,
            min_base_rtt_us=self.base_rtt_us,
            min_reorder_window_us=self.reorder_us,
            trimming=self.trimming,
        )


def to_native(config: Any, native: Any = None) -> Any:
    """The native twin of a configuration; a value that does not fit its type is refused by name."""
    if native is None:
        native = getattr(_core, type(config).__name__)()
    for item in fields(config):
        value = getattr(config, item.name)
        if item.name in ("entries", "fields", "widths") and not isinstance(value, tuple | list):
            raise ConfigError(item.name, value, "a tuple")
        if item.name == "entries":
            for entry in value:
                try:
                    native.add_entry(*entry)
                except TypeError:
                    allowed = "pairs of an EV, which is a 32-bit number or 1 to 32 bytes, and a port"
                    raise ConfigError("entries", entry, allowed) from None
            continue
        if item.name == "fields":
            native.set_layout(layout(config.widths, value))
        if item.name in ("fields", "widths"):
            continue
        try:
            setattr(native, item.name, value)
        except TypeError:
            kind = type(getattr(native, item.name)).__name__
            allowed = "a whole number that is not negative" if kind == "int" else f"a {kind}"
            raise ConfigError(item.name, value, allowed) from None
    return native
