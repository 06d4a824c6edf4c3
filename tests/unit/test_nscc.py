"""NSCC against a plain restatement of its rules: every row of the table by itself, then long random histories."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import parts
from softmrc.config import CcProfile, to_native

US = 1_000_000
MTU = 4096 + 92
R = 8 * US


@dataclass
class Model:
    """One byte window; all quantities are bytes and picoseconds."""

    rate_bps: float = 400e9
    base: float = R
    trimming: bool = True
    gate: int = 3
    window: float = field(init=False)

    def __post_init__(self) -> None:
        self.saved = self.gathered = self.average = self.since_adjust = 0.0
        self.calm_bytes = self.achieved = self.ignore = 0.0
        self.adjusted_at = self.decreased_at = -(10**18)
        self.period_end: float | None = None
        self.fast = self.armed = False
        self.scale(self.base)
        self.window = self.most

    def scale(self, base: float) -> None:
        self.base = base
        bdp = self.rate_bps / 8e12 * base
        a = bdp / 150_000
        self.target = base * (0.75 if self.trimming else 1.0)
        self.most = max(1.5 * bdp, MTU)
        self.alpha = 4 * MTU * a * (self.target / 12e6) / self.target
        self.fair, self.eta, self.fast_scale = 5 * MTU * a, 0.15 * MTU * a, 0.25 * a
        self.near_zero = max(1e6, base / 12)

    def clamp(self) -> None:
        self.window = min(max(self.window, MTU), max(self.most, MTU))

    def quick_adapt(self, now: int, urgent: bool, in_flight: int) -> bool:
        self.armed |= urgent
        if now <= (self.period_end or 0):
            return False
        adapts = (
            self.period_end is not None
            and self.armed
            and self.achieved < self.most / 2**self.gate
            and self.achieved < self.window
        )
        if adapts:
            self.window = max(self.achieved, MTU)
            self.ignore = in_flight
            self.gathered, self.fast, self.calm_bytes = 0.0, False, 0.0
        self.armed, self.achieved = False, 0.0
        self.period_end = now + int(self.base + self.target)
        return adapts

    def on_ack(self, now: int, n: int, marked: bool, delay: int | None, in_flight: int, penalty: int = 0,
               restore: bool = False) -> None:  # fmt: skip
        self.achieved += n
        self.since_adjust += n
        if delay is not None:
            sample = 0.25 * self.base if delay > self.target and not marked else delay
            self.average += 0.0125 * (sample - self.average)
        if restore and self.saved:
            self.window, self.saved = max(self.window, self.saved), 0.0
        if penalty:
            self.saved = self.saved or self.window
            self.window = min(self.window, in_flight) - penalty * n / 128
            return self.clamp()
        late = not self.trimming and delay is not None and delay > 4 * self.target
        if self.quick_adapt(now, late, in_flight):
            return self.clamp()
        ignored = self.ignore > 0
        self.ignore = max(0.0, self.ignore - n)
        if ignored and marked:
            return None
        if delay is not None:
            self._feedback(now, n, marked, delay)
        self._pay_out(now)
        return self.clamp()

    def _feedback(self, now: int, n: int, marked: bool, d: int) -> None:
        if marked and d < self.target:
            return
        if marked:
            self.fast, self.calm_bytes = False, 0.0
            if self.average > self.target and now - self.decreased_at >= self.base:
                self.window *= max(1 - 0.8 * (self.average - self.target) / self.average, 0.5)
                self.decreased_at = now
            return
        if d >= self.target:
            self.fast, self.calm_bytes = False, 0.0
            self.gathered += self.fair * n
            return
        if d < self.near_zero:
            self.calm_bytes += n
            self.fast |= self.calm_bytes > self.window
        else:
            self.fast, self.calm_bytes = False, 0.0
        if self.fast:
            self.window += self.fast_scale * n
        else:
            self.gathered += self.alpha * n * (self.target - d)

    def _pay_out(self, now: int) -> None:
        period_over = now - self.adjusted_at >= self.base
        if self.since_adjust < 8 * MTU and not period_over:
            return
        self.window += self.gathered / self.window
        if period_over:
            self.window += self.eta
            self.adjusted_at = now
        self.gathered = self.since_adjust = 0.0

    def on_trim(self, now: int, size: int, in_flight: int) -> None:
        self.average += 0.0125 * (self.base - self.average)
        self.fast, self.calm_bytes = False, 0.0
        if not self.quick_adapt(now, True, in_flight):
            if self.ignore > 0:
                self.ignore = max(0.0, self.ignore - size)
            else:
                self.window -= size
        self.clamp()

    def on_loss(self, now: int, size: int, in_flight: int) -> None:
        self.fast, self.calm_bytes = False, 0.0
        if not self.quick_adapt(now, True, in_flight):
            self.window -= size
        self.clamp()


class Both:
    """The engine's controller and the model, fed the same facts."""

    def __init__(self, **profile: Any) -> None:
        self.real = parts.Controller(to_native(CcProfile(**profile)), MTU)
        self.model = Model(trimming=profile.get("trimming", True), gate=profile.get("qa_gate", 3))
        self.now = 0

    def check(self) -> float:
        assert self.real.window == pytest.approx(self.model.window, rel=1e-9)
        return self.real.window

    def ack(
        self,
        n: int = MTU,
        *,
        marked: bool = False,
        delay: int | None = 0,
        step: int = US,
        in_flight: int = 10 * MTU,
        penalty: int = 0,
        restore: bool = False,
    ) -> float:
        self.now += step
        self.real.on_ack(self.now, R, n, marked, delay, in_flight, penalty, restore)
        self.model.on_ack(self.now, n, marked, delay, in_flight, penalty, restore)
        return self.check()

    def shrink_to(self, size: float) -> float:
        """Losses, one packet each, until the window is small."""
        while self.real.window > size:
            self.real.on_loss(self.now, MTU, 0)
            self.model.on_loss(self.now, MTU, 0)
        return self.check()


# spec: nscc-scaling
def test_the_first_window_is_one_and_a_half_bdp() -> None:
    assert Both().check() == pytest.approx(1.5 * 400e9 / 8 * 8e-6)


# spec: nscc-increase
def test_unmarked_with_slack_grows_in_proportion_to_the_slack() -> None:
    growth = []
    for delay in (3 * US, 5 * US):
        both = Both()
        before = both.shrink_to(20 * MTU)
        for _ in range(8):
            after = both.ack(delay=delay)
        growth.append(after - before)
    assert growth[0] > growth[1] > 0


# spec: nscc-fast
def test_a_whole_window_without_delay_starts_the_fast_mode_and_delay_ends_it() -> None:
    both = Both()
    both.shrink_to(20 * MTU)
    while not both.model.fast:
        both.ack(delay=0)
    before = both.check()
    assert both.ack(delay=0, n=MTU) - before >= both.model.fast_scale * MTU
    both.ack(delay=2 * US)
    assert not both.model.fast


def test_marked_with_slack_does_nothing() -> None:
    both = Both()
    before = both.shrink_to(20 * MTU)
    after = both.ack(marked=True, delay=2 * US, step=1)
    assert after - before == pytest.approx(both.model.eta), "only the periodic addition"


# spec: nscc-decrease
def test_marked_beyond_the_target_shrinks_once_a_round_trip_when_the_average_agrees() -> None:
    both = Both()
    for _ in range(400):
        both.ack(marked=True, delay=20 * US, step=1)
    assert both.model.average > both.model.target
    before = both.check()
    assert both.ack(marked=True, delay=20 * US, step=R) < 0.9 * before
    again = both.check()
    assert both.ack(marked=True, delay=20 * US, step=1) >= again


# spec: nscc-quick-adapt
def test_quick_adapt_sets_the_window_to_what_arrived() -> None:
    both = Both()
    both.ack(n=1000)
    both.ack(n=3 * MTU, step=1)
    both.now += 20 * US
    both.real.on_trim(both.now, MTU, 50 * MTU)
    both.model.on_trim(both.now, MTU, 50 * MTU)
    assert both.check() == max(3 * MTU, MTU)
    ignoring = both.check()
    assert both.ack(marked=True, delay=30 * US, n=MTU) == ignoring, "marks of what was in flight say nothing new"


def test_a_late_packet_arms_quick_adapt_only_without_trimming() -> None:
    for trimming, adapts in ((True, False), (False, True)):
        both = Both(trimming=trimming)
        both.ack(n=100)
        both.ack(n=100, delay=40 * US, step=1)
        after = both.ack(n=100, delay=40 * US, step=20 * US)
        assert (after == MTU) is adapts


# spec: nscc-trim-loss
def test_a_loss_costs_one_packet_and_the_floor_is_one_packet() -> None:
    both = Both()
    before = both.check()
    both.real.on_loss(0, MTU, 0)
    both.model.on_loss(0, MTU, 0)
    assert before - both.check() == MTU
    assert both.shrink_to(MTU) == MTU


# spec: nscc-penalty
def test_the_receivers_penalty_takes_and_restore_gives_back() -> None:
    both = Both()
    before = both.check()
    both.ack(penalty=127, in_flight=30 * MTU)
    assert both.check() == pytest.approx(30 * MTU - 127 / 128 * MTU)
    both.ack(penalty=64, in_flight=20 * MTU)
    assert both.ack(restore=True, delay=None) == pytest.approx(before)


def test_the_window_follows_the_smallest_round_trip() -> None:
    real = parts.Controller(to_native(CcProfile()), MTU)
    real.on_ack(US, R // 2, MTU, False, 0, 0)
    assert real.window == pytest.approx(1.5 * 400e9 / 8 * 4e-6)


FACT = st.tuples(
    st.sampled_from(["ack", "ack", "ack", "ack", "trim", "loss"]),
    st.integers(1, 4 * US),
    st.integers(0, 16) .map(lambda k: k * 1024),
    st.booleans(),
    st.none() | st.integers(0, 60 * US),
    st.integers(0, 400_000),
    st.sampled_from([0, 0, 0, 0, 1, 64, 127]),
    st.booleans(),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(facts=st.lists(FACT, max_size=120), trimming=st.booleans(), gate=st.integers(0, 4))
def test_any_history_gives_the_same_window(facts: list[tuple[Any, ...]], trimming: bool, gate: int) -> None:
    both = Both(trimming=trimming, qa_gate=gate)
    for kind, step, size, marked, delay, in_flight, penalty, restore in facts:
        if kind == "ack":
            both.ack(size, marked=marked, delay=delay, step=step, in_flight=in_flight, penalty=penalty, restore=restore)
            continue
        both.now += step
        for controller in (both.real, both.model):
            (controller.on_trim if kind == "trim" else controller.on_loss)(both.now, size, in_flight)
        window = both.check()
        assert MTU <= window <= both.model.most
