"""What happens to a plan because its endpoints are processes with peers that are no copies of themselves.

Drawn from a separate stream, after the rest of the plan, which stays what it is without any of this.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from random import Random

from softmrc.config import RETRY_FOREVER
from softmrc.engine.pair import ProcessConfig

from .faults import MILD_LOSS, FaultWriter
from .plan import Connection, Plan

PSN_SPACE = 1 << 24
ADDRESS_SPACE = 1 << 64

DrawConnection = Callable[[Random, int, int, bool, float], tuple[Connection, int]]


def draw_process(rng: Random, is_mild: bool, has_rate: bool) -> ProcessConfig:
    """A driver, from one that is hardly noticed to one that shares its core with the whole machine."""
    burst = rng.choice([1, 4, 16]) if has_rate else rng.choice([0, 0, 4])
    if is_mild:
        return ProcessConfig(
            most_received=rng.choice([2, 64]),
            most_sent=rng.choice([32, 256]),
            port_burst=burst,
            pace_us=rng.choice([0.0, 0.1]),
            hold_up=rng.choice([0.0, 0.001]),
            hold_up_us=rng.choice([20.0, 800.0]),
        )
    # A receiver that takes few packets at a time must be quick, or timers retransmit more than it can take in.
    is_slow = rng.random() < 0.4
    slow, quick = (
        [(0.001, 8_000.0), (0.001, 1_500.0), (0.02, 200.0)],
        [(0.0, 0.0), (0.0, 0.0), (0.001, 20.0), (0.001, 200.0)],
    )
    hold_up, hold_up_us = rng.choice(slow if is_slow else quick)
    return ProcessConfig(
        most_received=rng.choice([16, 64] if is_slow else [1, 2, 2, 8]),
        most_waiting=rng.choice([0, 0, 128, 4096]),
        most_sent=rng.choice([32, 256] if is_slow else [1, 4, 32, 256]),
        port_burst=burst,
        pace_us=rng.choice([0.1, 0.5, 2.0] if is_slow else [0.0, 0.1, 0.2]),
        hold_up=hold_up,
        hold_up_us=hold_up_us,
    )


class HappeningWriter(FaultWriter):
    """Draws what else happens; each method adds one thing."""

    def any_connection(self) -> int:
        return self.rng.randrange(len(self.plan.connections))

    def flap(self) -> None:
        """A port goes down and up again, several times, at one end or at both; the cable is whole."""
        plane = self.any_plane()
        at, _ = self.interval(may_last=False)
        gap_us = self.rng.choice([1.0, 30.0, 500.0, 3_000.0])
        start = at
        sides = self.rng.choice([(0,), (1,), (0, 1)])
        for _ in range(self.rng.randint(2, 6)):
            for up in (False, True):
                for side in sides:
                    self.add(at, "port", side, plane, up)
                at += self.rng.uniform(0, gap_us)
        if self.is_anchor(plane):
            self.plan.outages_us.append((start, at))

    def juggle_paths(self) -> None:
        """A controller that cannot leave paths alone, often where packets are being lost."""
        rng, plan = self.rng, self.plan
        for _ in range(rng.randint(0, 3)):
            self.controller()
        half = plan.ev_profile.count // plan.planes // 2
        if half == 0:
            return
        side, connection, plane = rng.randrange(2), self.any_connection(), self.any_plane()
        start, end = self.interval(may_last=False)
        if rng.random() < 0.5:
            for sender in (0, 1):
                self.add(start, "weather", sender, plane, (("loss", MILD_LOSS),))
                self.add(end or start, "weather", sender, plane, (("loss", 0.0),))
        chosen = rng.sample(range(half), rng.randint(1, min(half, 8)))
        for at in sorted(rng.uniform(start, end or start) for _ in range(rng.randint(1, 4))):
            act = rng.choice(["deny_ev", "allow_ev", "replace_ev", "replace_ev"])
            for nth in chosen:
                self.add(at, act, side, connection, plane, nth, *([rng.getrandbits(32)] if act == "replace_ev" else []))

    def breathe(self) -> None:
        """The receiver's window grows and shrinks, mostly while more packets are under way than its least allows."""
        if not self.plan.dynamic_mpr:
            return
        if self.rng.random() < 0.7:
            self.plan.mtu = 512
            algorithm = "fixed_window"
            self.plan.cc_profile = dataclasses.replace(self.plan.cc_profile, algorithm=algorithm, window_bytes=4 << 20)
        side, connection = self.rng.randrange(2), self.any_connection()
        for _ in range(self.rng.randint(1, 6)):
            at, _ = self.interval(may_last=False)
            self.add(at, "window", side, connection, self.rng.choice([8, 8, 16, 64, 255]))

    def starve(self) -> None:
        """A receiver without room for what arrives answers each packet with a NACK, for a while."""
        share = self.rng.choice([0.01, 0.1, 0.6])
        start, end = self.interval(may_last=False)
        senders = self.directions()
        for plane in range(self.plan.planes):
            for sender in senders:
                self.add(start, "weather", sender, plane, (("starve", share),))
                self.add(end or start, "weather", sender, plane, (("starve", 0.0),))
        if share > 0.1:
            self.plan.outages_us.append((start, end or start))

    def nacks(self) -> None:
        """NACKs that nothing caused."""
        at, _ = self.interval(may_last=False)
        for _ in range(self.rng.choice([1, 1, 4])):
            args = (self.rng.randrange(2), self.any_connection(), self.rng.choice([1, 5, 60]), self.rng.getrandbits(32))
            self.add(at, "nacks", *args)
            at += self.rng.uniform(0, 50)

    def strangers(self) -> None:
        """Packets of every kind for queue pairs in every state."""
        self.plan.has_victims = True
        at, _ = self.interval(may_last=False)
        for _ in range(self.rng.choice([1, 3])):
            self.add(at, "strangers", self.rng.randrange(2), self.rng.choice([3, 20]), self.rng.getrandbits(32))
            at += self.rng.uniform(0, 200)


def draw_restart(rng: Random, plan: Plan, horizon_us: float, draw_connection: DrawConnection, era: int) -> None:
    """A process dies and comes back; sooner or later its peer notices, and both start again with other queue pairs.

    The old numbers are far from the new ones: where a queue pair's number is used again, nothing else tells a packet of
    the one before from a packet of this one.
    """
    size = plan.memory_size
    reaches_top = plan.va[0] + size == ADDRESS_SPACE
    after = max([0.0, *(f.at_us for f in plan.faults if f.act == "reconnect")])
    at = after + rng.uniform(0, horizon_us)
    again = at + rng.choice([0.0, 50.0, 1_000.0, 20_000.0])
    side = rng.randrange(2)
    olds = [c for c in plan.connections if c.era == era - 1]
    for old in olds[: rng.randint(1, len(olds))]:
        connection, size = draw_connection(rng, size, 5, plan.dynamic_mpr, horizon_us)
        connection.era = era
        connection.first_psn = (far_from(rng, old.first_psn[0]), far_from(rng, old.first_psn[1]))
        for flow in connection.flows:
            flow.messages = [dataclasses.replace(m, at_us=m.at_us + again) for m in flow.messages]
        plan.connections.append(connection)
    plan.memory_size = size
    if reaches_top:
        plan.va = (ADDRESS_SPACE - size, plan.va[1])
    plan.restarts = True
    # As on sockets: a word of the one before, that was still under way, would otherwise be the last about its ports.
    plan.endpoint = dataclasses.replace(plan.endpoint, announces_ports=True)
    writer = FaultWriter(rng, plan, trims=False, horizon_us=horizon_us)
    writer.add(at, "restart", side, rng.getrandbits(32))
    writer.add(again, "reconnect", 1 - side, era, rng.choice(["error", "destroy", "keep"]))


def far_from(rng: Random, psn: int) -> int:
    return (psn + rng.randint(PSN_SPACE // 4, 3 * PSN_SPACE // 4)) % PSN_SPACE


def draw_happenings(rng: Random, plan: Plan, horizon_us: float, draw_connection: DrawConnection) -> None:
    is_mild = plan.retry_exponential != RETRY_FOREVER
    has_rate = plan.network.port_rate_bps > 0
    plan.processes = (draw_process(rng, is_mild, has_rate), draw_process(rng, is_mild, has_rate))
    floor_us = rng.choice([0.0, 0.0, 50.0, 2_000.0])
    if floor_us:
        plan.cc_profile = dataclasses.replace(
            plan.cc_profile, min_base_rtt_us=floor_us, min_reorder_window_us=floor_us, learn_base_rtt=True
        )
    if rng.random() < 0.7:
        add_happenings(rng, plan, horizon_us, draw_connection)
    if plan.cc_profile.algorithm == "fixed_window":
        # A window that never shrinks would overflow a short queue for ever, or be trimmed for ever.
        plan.network = dataclasses.replace(plan.network, trim_above_bytes=0)
        a, b = (dataclasses.replace(p, most_waiting=0) for p in plan.processes)
        plan.processes = (a, b)
    plan.faults.sort(key=lambda f: f.at_us)


def add_happenings(rng: Random, plan: Plan, horizon_us: float, draw_connection: DrawConnection) -> None:
    writer = HappeningWriter(rng, plan, trims=False, horizon_us=horizon_us)
    kinds = [writer.flap, writer.juggle_paths, writer.juggle_paths, writer.breathe, writer.starve, writer.nacks]
    kinds += [writer.breathe, writer.strangers]
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        rng.choice(kinds)()
    if rng.random() < 0.2:
        plan.reuses_numbers = rng.random() < 0.5
        for era in range(1, rng.choice([1, 1, 2]) + 1):
            draw_restart(rng, plan, horizon_us, draw_connection, era)
