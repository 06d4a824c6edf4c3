"""What one seed decides, as plain data: the network, both endpoints, the queue pairs, the messages, the faults.

One plane in each direction, the anchor, is never lost for good and never badly lossy for good: "a path lives" is true
by construction. Mostly it is the same plane both ways. What a plan does to an anchor for a while is written down in
`outages_us`, for the checker that decides whether a queue pair had the right to give up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from softmrc.config import RETRY_FOREVER, CcProfile, EndpointConfig, EvProfile
from softmrc.engine.pair import PairConfig, ProcessConfig


@dataclass(frozen=True)
class Message:
    """One write: where it comes from and goes to, as offsets into the two sides' memory."""

    at_us: float
    length: int
    offset: int
    imm: int | None
    signaled: bool


@dataclass
class Flow:
    """One direction of one queue pair."""

    side: int
    messages: list[Message]


@dataclass
class Connection:
    first_psn: tuple[int, int]
    mpr: int
    mpr_dest: int
    max_wimm: int
    max_send_wr: int
    flows: tuple[Flow, Flow]
    era: int = 0  # how many restarts come before it


@dataclass(frozen=True)
class Fault:
    """Something that happens at a moment: the runner calls the method of that name with these arguments."""

    at_us: float
    act: str
    args: tuple[Any, ...]


@dataclass
class Plan:
    seed: int
    planes: int
    anchors: tuple[int, int]  # by the side that sends
    network: PairConfig
    endpoint: EndpointConfig
    ev_profile: EvProfile
    cc_profile: CcProfile
    mtu: int
    dynamic_mpr: bool
    timeout: int
    retry_linear: int
    retry_exponential: int
    connections: list[Connection]
    memory_size: int
    va: tuple[int, int]
    processes: tuple[ProcessConfig, ProcessConfig] | None = None  # None: all happens in the instant it can
    faults: list[Fault] = field(default_factory=list)
    outages_us: list[tuple[float, float]] = field(default_factory=list)
    flips_bits: bool = False
    leaves_last_path: bool = False
    restarts: bool = False
    reuses_numbers: bool = False  # a restarted process numbers its queue pairs as the one before it did
    has_keys: bool = False  # both ends gave each other keys, as ends of our own make do
    has_victims: bool = False  # queue pairs in every state, which are sent packets of every kind

    @property
    def is_calm(self) -> bool:
        """Nothing at all goes wrong, not even a queue that trims or a process that loses its core."""
        held_up = any(p.hold_up or p.most_waiting for p in self.processes or ())
        return not self.faults and not self.network.trim_above_bytes and not held_up

    @property
    def loses_packets(self) -> bool:
        """Some planes lose a share of them, or corrupt it."""
        return bool(self._knobs("loss", "corrupt"))

    def _knobs(self, *names: str) -> list[float]:
        return [
            value for f in self.faults if f.act == "weather" for name, value in f.args[2] if name in names and value
        ]

    @property
    def keeps_window_small(self) -> bool:
        """Marks come whatever is sent, or one window is for planes of which some take longer: a queue, as it seems."""
        cc = self.cc_profile
        is_misled = self._knobs("mark") or (self._knobs("delay_us") and not cc.each_port)
        return cc.algorithm == "queue_delay" and bool(is_misled)

    @property
    def takes_way_for_queue(self) -> bool:
        """NSCC has a base RTT so far below the real one that every answer seems to have met a long queue."""
        cc = self.cc_profile
        if cc.algorithm != "nscc" or cc.learn_base_rtt or cc.trimming:
            return False
        return cc.base_rtt_us + 4 * (cc.target_delay_us or cc.base_rtt_us) < self.rtt_us

    @property
    def narrowest_bps(self) -> float:
        """Of the planes that were narrowed; 0: none was."""
        return min(self._knobs("neck_bps"), default=0.0)

    @property
    def sends_one_by_one(self) -> bool:
        """The window has room for one full packet only."""
        return self.cc_profile.algorithm == "fixed_window" and self.cc_profile.window_bytes < 2 * self.mtu

    @property
    def turn_us(self) -> float:
        """How long a turn of the slower process takes, with its share of hold-ups."""
        step = max((p.pace_us + p.hold_up * p.hold_up_us for p in self.processes or ()), default=0.0)
        return step * (self.planes + 4)

    @property
    def rtt_us(self) -> float:
        return 2 * self.network.one_way_delay_us + 4 * self.turn_us

    @property
    def last_change_us(self) -> float:
        posts = [m.at_us for c in self.connections for f in c.flows for m in f.messages]
        return max([0.0, *posts, *(f.at_us for f in self.faults)])

    @property
    def rounds_of_messages(self) -> float:
        """How many times the messages of a flow fill its send queue."""
        return max((len(f.messages) / c.max_send_wr for c in self.connections for f in c.flows), default=0.0)

    @property
    def payload_bytes(self) -> int:
        return sum(m.length for c in self.connections for f in c.flows for m in f.messages)

    @property
    def ideal_us(self) -> float:
        """About how long the messages take when all are posted at once and nothing goes wrong."""
        rtt_us = self.rtt_us
        window = self.cc_profile.window_bytes
        if self.cc_profile.algorithm == "nscc":
            window = int(1.5 * self.cc_profile.rate_bps / 8e6 * min(rtt_us, self.cc_profile.base_rtt_us))
        elif self.cc_profile.algorithm == "queue_delay":
            window = self.queue_delay_window
        total = 0.0
        for connection in self.connections:
            for flow in connection.flows:
                overhead = 1 + 100 / self.mtu
                size = sum(max(m.length, 64) * overhead for m in flow.messages)
                rounds = size / max(min(window, connection.mpr * 128 * self.mtu), self.mtu)
                slots = len(flow.messages) / min(connection.max_send_wr, connection.max_wimm)
                total = max(total, (1 + rounds + slots) * rtt_us)
        packets = sum(1 + m.length // self.mtu for c in self.connections for f in c.flows for m in f.messages)
        bursts = [p.port_burst * self.planes or p.most_sent for p in self.processes or ()]
        at_a_time = min([min(p.most_received, p.most_sent) for p in self.processes or ()] + bursts, default=1)
        total += 2 * packets * self.turn_us / at_a_time
        if self.network.port_rate_bps:
            total += self.payload_bytes * 8e6 / self.network.port_rate_bps / self.planes
        return total

    @property
    def queue_delay_window(self) -> int:
        """About what is in flight where windows keep a queue: the most they may hold, or what is not marked.

        Nothing is paced. Each of the four SACKs of a window lets a quarter of it go at once, and what of that exceeds
        the queue that marks makes the window smaller, down to two packets.
        """
        one = self.cc_profile.most_bytes
        if self.network.mark_above_bytes:
            one = min(one, 4 * self.network.mark_above_bytes)
        return max(one, 2 * self.mtu) * (self.planes if self.cc_profile.each_port else 1)

    @property
    def patience_us(self) -> float:
        """The least time without any answer after which this plan's queue pairs may give up."""
        if self.retry_exponential == RETRY_FOREVER:
            return float("inf")
        once = 1.024 * 2**self.timeout
        return once * (self.retry_linear + sum(2**k for k in range(1, min(self.retry_exponential, 24) + 1)))
