"""What a plan and a group's plan get besides from seeds of this family: what lies at an end of some range.

Each addition is drawn from a separate stream, after the rest, which stays what the seed so much lower draws.
"""

from __future__ import annotations

import dataclasses
from random import Random

from .faults import FaultWriter
from .group_plan import GroupPlan
from .plan import Plan

# From this seed on. The plan underneath is that of the seed so much lower, of whatever family that is.
EDGED = 100_000_000
# In ps. Where counts of time on the wire, in 32 bits, in doubles and in the core wrap or end. What has not
# happened yet is taken to have happened 2**61 before the beginning.
TICKS = 128_000 << 16
ENDS = [TICKS >> 1, TICKS, 2**32, 2**32 * 10**3, 2**48, 2**53, 2**32 * 10**6, 2**61, 2**62, 2**63 - 2**61]
# The end of all, less the time that a run may take.
LAST = 2**63 - 300 * 10**12


def draw_start(rng: Random, within_us: float) -> float:
    """When clocks begin, so that mostly a range ends while the run lasts."""
    roll = rng.random()
    if roll < 0.3:
        return 0.0
    if roll < 0.4:
        return LAST / 1e6
    return max(rng.choice(ENDS) / 1e6 - rng.uniform(0, within_us), 0.0)


class EdgeWriter(FaultWriter):
    """Draws what goes wrong; each method adds one thing."""

    def endless_trims(self) -> None:
        """A queue that trims nearly everything, for good where the plane is no anchor."""
        if not self.plan.endpoint.trim_nack or self.plan.cc_profile.algorithm == "fixed_window":
            return
        share = self.rng.choice([0.5, 0.9, 1.0])
        planes = range(self.plan.planes) if self.rng.random() < 0.3 else (self.any_plane(),)
        senders = self.directions()
        for plane in planes:
            start, end = self.interval_of(plane, senders)
            for sender in senders:
                self.add(start, "weather", sender, plane, (("trim", share),))
                if end is not None:
                    self.add(end, "weather", sender, plane, (("trim", 0.0),))

    def another_interface(self) -> None:
        """A port loses its carrier, and comes back as another: by paths that are not those from before."""
        plan, plane = self.plan, self.any_plane()
        side, start, _ = self.rng.randrange(2), *self.interval(may_last=False)
        end = start + self.rng.choice([1.0, 100.0, 3_000.0])
        if self.is_anchor(plane):
            plan.outages_us.append((start, end))
        self.add(start, "port", side, plane, False)
        for connection in range(len(plan.connections)):
            for nth in range(plan.ev_profile.count // plan.planes):
                self.add((start + end) / 2, "replace_ev", side, connection, plane, nth, self.rng.getrandbits(32))
        self.add(end, "port", side, plane, True)


def draw_edges(plan: Plan, seed: int, horizon_us: float) -> None:
    rng = Random(f"start {seed}")
    plan.network = dataclasses.replace(plan.network, starts_at_us=draw_start(rng, max(horizon_us, 10_000.0)))
    rng = Random(f"empty {seed}")
    share = rng.choice([0.0, 0.0, 0.5, 1.0])
    for connection in plan.connections:
        for flow in connection.flows:
            flow.messages = [dataclasses.replace(m, length=0) if rng.random() < share else m for m in flow.messages]
    rng = Random(f"trims {seed}")
    if rng.random() < 0.3:
        EdgeWriter(rng, plan, trims=True, horizon_us=horizon_us).endless_trims()
    rng = Random(f"interfaces {seed}")
    first = dataclasses.replace(plan, connections=[c for c in plan.connections if c.era == 0])
    if rng.random() < 0.3 and len(first.connections) == len(plan.connections):
        for _ in range(rng.choice([1, 1, 3])):
            EdgeWriter(rng, plan, trims=False, horizon_us=horizon_us).another_interface()
    plan.faults.sort(key=lambda f: f.at_us)


def draw_group_edges(plan: GroupPlan, seed: int, most_pause_us: float) -> None:
    plan.network = dataclasses.replace(plan.network, starts_at_us=draw_start(Random(f"group start {seed}"), 100_000.0))
    rng = Random(f"ahead {seed}")
    if plan.ranks > 1 and rng.random() < 0.5:
        run_ahead(rng, plan, most_pause_us)


def run_ahead(rng: Random, plan: GroupPlan, most_pause_us: float) -> None:
    """Some ranks call all they can at once, and the others follow much later."""
    leaders = set(rng.sample(range(plan.ranks), rng.choice([1, 1, plan.ranks - 1])))
    lag_us = rng.choice([2_000.0, 20_000.0, most_pause_us])
    for step in plan.steps:
        for rank, share in step.shares.items():
            at_us = plan.joins_us[rank] if rank in leaders else share.at_us + lag_us
            step.shares[rank] = dataclasses.replace(share, at_us=at_us)
