"""What goes wrong in a plan, and when it ends.

Every fault is a pair of moments. One in five never ends, where ending is not needed for a path to live.
"""

from __future__ import annotations

from random import Random

from .plan import Fault, Plan

# Beyond this share of lost packets the anchor no longer counts as a path that lives.
MILD_LOSS = 0.05


class FaultWriter:
    """Draws the faults of one plan, and keeps the books on what happened to the anchor."""

    def __init__(self, rng: Random, plan: Plan, trims: bool, horizon_us: float) -> None:
        self.rng = rng
        self.plan = plan
        self.trims = trims
        self.horizon_us = horizon_us

    def add(self, at_us: float, act: str, *args: object) -> None:
        self.plan.faults.append(Fault(at_us, act, args))

    def interval(self, may_last: bool) -> tuple[float, float | None]:
        start = self.rng.uniform(0, self.horizon_us)
        if may_last and self.rng.random() < 0.2:
            return start, None
        return start, start + self.rng.uniform(1, self.horizon_us)

    def is_anchor(self, plane: int, senders: tuple[int, ...] = (0, 1)) -> bool:
        return any(self.plan.anchors[sender] == plane for sender in senders)

    def interval_of(self, plane: int, senders: tuple[int, ...] = (0, 1)) -> tuple[float, float | None]:
        """When a plane is away in these directions: for good only where it is no anchor, and noted where it is."""
        hits_anchor = self.is_anchor(plane, senders)
        start, end = self.interval(may_last=not hits_anchor)
        if hits_anchor and end is not None:
            self.plan.outages_us.append((start, end))
        return start, end

    def any_plane(self) -> int:
        return self.rng.randrange(self.plan.planes)

    def directions(self) -> tuple[int, ...]:
        return self.rng.choice([(0,), (1,), (0, 1), (0, 1)])

    def weather(self) -> None:
        rng = self.rng
        everywhere = rng.random() < 0.6
        planes = range(self.plan.planes) if everywhere else (self.any_plane(),)
        start, end = self.interval(may_last=True)
        hits_anchor = any(self.is_anchor(plane) for plane in planes)
        knobs: dict[str, float | bool] = {}
        roll = rng.choice(["loss", "reorder", "duplicate", "corrupt", "trim", "mark", "jitter"])
        if roll == "loss":
            harsh = rng.random() < 0.2
            knobs["loss"] = rng.uniform(0.1, 0.5) if harsh else rng.choice([0.001, 0.01, MILD_LOSS])
            if harsh and hits_anchor:
                end = start + rng.uniform(1, self.horizon_us) if end is None else end
                self.plan.outages_us.append((start, end))
            knobs["spares_control"] = rng.random() < 0.3
        elif roll == "reorder":
            knobs["reorder"] = rng.choice([0.01, 0.2])
            knobs["reorder_delay_us"] = rng.choice([1.0, 10.0, 200.0])
        elif roll == "duplicate":
            knobs["duplicate"] = rng.choice([0.01, 0.3])
        elif roll == "corrupt":
            knobs["corrupt"] = rng.choice([0.001, MILD_LOSS])
            self.plan.flips_bits = True
        elif roll == "trim":
            knobs["trim"] = rng.choice([0.01, 0.1]) if self.trims else 0.0
        elif roll == "mark":
            knobs["mark"] = rng.choice([0.05, 0.5])
        else:
            knobs["path_jitter_us"] = rng.choice([0.25, 1.0, 4.0]) * self.plan.network.one_way_delay_us
        for plane in planes:
            for sender in self.directions():
                self.add(start, "weather", sender, plane, tuple(knobs.items()))
                if end is not None:
                    self.add(end, "weather", sender, plane, tuple((name, 0) for name in knobs))

    def black_hole(self) -> None:
        plane, senders = self.any_plane(), self.directions()
        start, end = self.interval_of(plane, senders)
        for sender in senders:
            self.add(start, "weather", sender, plane, (("black_hole", True),))
            if end is not None:
                self.add(end, "weather", sender, plane, (("black_hole", False),))

    def last_path(self) -> None:
        """Everything but the anchors is lost, silently and for good: the way out and the way back may differ."""
        at, _ = self.interval(may_last=False)
        self.plan.leaves_last_path = True
        for sender in (0, 1):
            for plane in range(self.plan.planes):
                if plane != self.plan.anchors[sender]:
                    self.add(at, "weather", sender, plane, (("black_hole", True),))

    def port(self) -> None:
        """A cable is cut; both ends notice, or one of them a little later, or only one."""
        plane = self.any_plane()
        start, end = self.interval_of(plane)
        noticing = self.rng.choice([(0, 1), (0, 1), (0,), (1,)])
        lag = self.rng.choice([0.0, 0.0, 50.0])
        for up, at in ((False, start), (True, end)):
            if at is None:
                continue
            for sender in (0, 1):
                self.add(at, "weather", sender, plane, (("black_hole", not up),))
            for i, side in enumerate(noticing):
                self.add(at + i * lag, "port", side, plane, up)

    def ev(self) -> None:
        """Single paths die or turn lossy; the anchor keeps at least half of its paths."""
        plan = self.plan
        per_plane = plan.ev_profile.count // plan.planes
        plane = self.any_plane()
        most = per_plane // 2 if self.is_anchor(plane) else per_plane
        if most == 0:
            return
        start, end = self.interval(may_last=True)
        sender = self.rng.randrange(2)
        loss = self.rng.choice([1.0, 1.0, 0.2])
        connection = self.rng.randrange(len(plan.connections))
        for nth in self.rng.sample(range(most), self.rng.randint(1, min(most, 4))):
            self.add(start, "ev_loss", sender, connection, plane, nth, loss)
            if end is not None:
                self.add(end, "ev_loss", sender, connection, plane, nth, 0.0)

    def controller(self) -> None:
        """The controller denies an EV for a while, or exchanges its value."""
        plan = self.plan
        per_plane = plan.ev_profile.count // plan.planes
        if per_plane < 2:
            return
        start, end = self.interval(may_last=True)
        side = self.rng.randrange(2)
        connection = self.rng.randrange(len(plan.connections))
        plane, nth = self.any_plane(), self.rng.randrange(per_plane // 2)
        if self.rng.random() < 0.5:
            self.add(start, "replace_ev", side, connection, plane, nth, self.rng.getrandbits(32))
            return
        self.add(start, "deny_ev", side, connection, plane, nth)
        if end is not None:
            self.add(end, "allow_ev", side, connection, plane, nth)

    def slow_plane(self) -> None:
        """Later, or narrower, but it loses nothing. The anchors keep their pace."""
        plane = self.any_plane()
        start, end = self.interval(may_last=True)
        if self.is_anchor(plane):
            return
        delay_us = self.rng.choice([3.0, 20.0, 200.0]) * self.plan.network.one_way_delay_us
        neck_bps = self.rng.choice([100_000_000, 1_000_000_000, 10_000_000_000])
        knob, value = self.rng.choice([("delay_us", min(delay_us, 20_000.0)), ("neck_bps", neck_bps)])
        for sender in self.directions():
            self.add(start, "weather", sender, plane, ((knob, value),))
            if end is not None:
                self.add(end, "weather", sender, plane, ((knob, 0),))

    def stall(self) -> None:
        at = self.rng.uniform(0, self.horizon_us)
        duration = self.rng.choice([5.0, 50.0, 500.0, 5_000.0])
        self.add(at, "stall", self.rng.randrange(2), duration)
        self.plan.outages_us.append((at, at + duration))

    def receiver(self) -> None:
        """The receiver asks for less, or offers another window."""
        at, end = self.interval(may_last=False)
        side = self.rng.randrange(2)
        connection = self.rng.randrange(len(self.plan.connections))
        if self.plan.dynamic_mpr and self.rng.random() < 0.5:
            self.add(at, "window", side, connection, self.rng.choice([8, 16, 200]))
            return
        self.add(at, "penalty", side, connection, self.rng.choice([1, 64, 127]))
        self.add(end or at, "penalty", side, connection, 0)


def draw_faults(rng: Random, plan: Plan, trims: bool, horizon_us: float) -> None:
    writer = FaultWriter(rng, plan, trims, horizon_us)
    kinds = [writer.weather] * 6 + [writer.black_hole] * 3 + [writer.port] * 3 + [writer.ev] * 2
    kinds += [writer.controller, writer.stall, writer.receiver, writer.last_path]
    for _ in range(rng.choice([1, 1, 2, 3, 5, 8])):
        rng.choice(kinds)()
    plan.faults.sort(key=lambda f: f.at_us)


def draw_slow_planes(rng: Random, plan: Plan, horizon_us: float) -> None:
    writer = FaultWriter(rng, plan, trims=False, horizon_us=horizon_us)
    for _ in range(rng.choice([1, 1, 2, 4])):
        writer.slow_plane()
    plan.faults.sort(key=lambda f: f.at_us)
