"""Random faults on all planes, never on all at once, for as long as you like.

    python -m softmrc_bench.soak SECONDS [SEED]

Two devices on loopback write to each other without a pause. Every message has its own bytes, checked on arrival; every
write must complete, every immediate must come, in order; memory must not grow. One seed gives one schedule of faults.
"""

from __future__ import annotations

import argparse
import random
import resource
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from softmrc.device import Device, QueuePair
from softmrc.errors import InternalError

PLANES = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")
SLOTS = 16
SLOT = 1 << 18


@dataclass
class SoakResult:
    """What a soak did and found."""

    seconds: float = 0.0
    seed: int = 0
    writes: int = 0
    bytes: int = 0
    faults: int = 0
    corrupt_bytes: int = 0
    lost_completions: int = 0
    grown_bytes: int = 0
    retransmitted: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not (self.corrupt_bytes or self.lost_completions or self.problems)

    def __str__(self) -> str:
        verdict = "fine" if self.ok else "NOT fine: " + "; ".join(self.problems or ["see the counts"])
        return (
            f"{self.seconds:,.0f} s, seed {self.seed}: {self.writes:,} writes, {self.bytes / 1e9:,.1f} GB, "
            f"{self.faults:,} faults, {self.retransmitted:,} packets retransmitted, "
            f"{self.corrupt_bytes} corrupt bytes, {self.lost_completions} lost completions, "
            f"memory grew by {self.grown_bytes / 1e6:,.1f} MB: {verdict}"
        )


def _draw(rng: random.Random) -> dict[str, Any]:
    """Faults for one plane."""
    kinds: dict[str, dict[str, Any]] = {
        "black_hole": {"black_hole": True},
        "drop": {"drop": rng.choice((0.001, 0.01, 0.1))},
        "corrupt": {"corrupt": rng.choice((0.001, 0.05))},
        "reorder": {"reorder": 0.2, "reorder_delay_us": rng.choice((200.0, 5000.0))},
        "delay": {"delay_us": rng.choice((500.0, 5000.0))},
        "duplicate": {"duplicate": 0.1},
        "trim": {"trim": 0.05},
        "mark": {"mark": 0.3},
        "all": {"drop": 0.02, "corrupt": 0.01, "reorder": 0.05, "duplicate": 0.02, "trim": 0.02, "mark": 0.05},
    }
    return kinds[rng.choice(sorted(kinds))]


class _Side:
    """One direction: writes into the other's slots, one slot after another, each with an immediate."""

    def __init__(self, qp: QueuePair, seed: int) -> None:
        self.qp = qp
        self.rng = np.random.default_rng(seed)
        self.source = np.zeros((SLOTS, SLOT), dtype=np.uint8)
        self.target = np.zeros((SLOTS, SLOT), dtype=np.uint8)
        self.mine = qp.device.register(self.source)
        self.open = qp.device.register(self.target, remote_write=True)
        self.posted = self.done = self.arrived = 0
        self.lengths: deque[int] = deque()

    def post(self, rkey: int) -> None:
        slot = self.posted % SLOTS
        length = int(self.rng.integers(1, SLOT + 1))
        self.source[slot, :length] = self.rng.integers(0, 256, length, dtype=np.uint8)
        at, number = slot * SLOT, self.posted
        self.qp.post_write(self.mine, at, length, remote_va=at, rkey=rkey, imm=number & 0xFFFFFFFF, wr_id=number)
        self.lengths.append(length)
        self.posted += 1


def _connect(rng: random.Random, devices: tuple[Device, Device]) -> tuple[_Side, _Side]:
    a, b = devices
    qps = tuple(d.create_qp(d.create_cq(), d.create_cq()) for d in devices)
    peers = a.add_peer(qps[1].reached_at), b.add_peer(qps[0].reached_at)
    for qp, other, peer in zip(qps, reversed(qps), peers, strict=True):
        qp.init()
        qp.rtr(peer, dest_qpn=other.qpn, first_psn=other.first_psn)
        qp.rts()
        qp.post_recv(count=SLOTS)
    return _Side(qps[0], rng.getrandbits(32)), _Side(qps[1], rng.getrandbits(32))


def _serve(side: _Side, other: _Side, report: SoakResult) -> bool:
    """Take what arrived at `side` from `other` and check it. True when something happened."""
    arrivals, completions = side.qp.recv_cq.poll(), other.qp.send_cq.poll()
    for completion in arrivals:
        slot = other.arrived % SLOTS
        length = other.lengths.popleft()
        if not completion.ok or completion.imm != other.arrived & 0xFFFFFFFF or completion.length != length:
            report.problems.append(f"message {other.arrived} arrived as {completion}")
        report.corrupt_bytes += int(np.count_nonzero(side.target[slot, :length] != other.source[slot, :length]))
        report.bytes += length
        other.arrived += 1
        if completion.ok:
            side.qp.post_recv()
    for completion in completions:
        if not completion.ok or completion.wr_id != other.done:
            report.problems.append(f"write {other.done} completed as {completion}")
        other.done += 1
    return bool(arrivals or completions)


def _refill(side: _Side, other: _Side) -> bool:
    """A slot is written again only when its last contents were checked and its write has completed."""
    posted = other.posted
    while other.posted - min(other.done, other.arrived) < SLOTS // 2:
        other.post(side.open.rkey)
    return other.posted > posted


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def soak(seconds: float, seed: int = 1) -> SoakResult:
    """Run it and report; stops at the first problem."""
    rng = random.Random(seed)
    report = SoakResult(seed=seed)
    with Device(PLANES, trimming=True) as a, Device(PLANES, trimming=True) as b:
        sides = _connect(rng, (a, b))
        start = time.monotonic()
        resident = 0
        next_fault = start
        while (now := time.monotonic()) - start < seconds and not report.problems:
            if now >= next_fault:
                # At least one plane stays fair.
                faulty = rng.sample(range(len(PLANES)), rng.randrange(len(PLANES)))
                for plane in range(len(PLANES)):
                    faults = _draw(rng) if plane in faulty else {}
                    for device in (a, b):
                        device.set_faults(plane, **faults)
                report.faults += len(faulty)
                next_fault = now + rng.uniform(0.05, 0.5)
            busy = [_serve(*pair, report) for pair in (sides, sides[::-1])]
            if not report.problems:
                busy += [_refill(*pair) for pair in (sides, sides[::-1])]
            if not any(busy):
                time.sleep(0.0005)
            if not resident and now - start > seconds / 3:
                resident = _resident_bytes()
        a.set_faults()
        b.set_faults()
        _finish(sides, report)
        report.seconds = time.monotonic() - start
        report.grown_bytes = max(_resident_bytes() - resident, 0) if resident else 0
        report.writes = sum(side.posted for side in sides)
        report.retransmitted = sum(side.qp.stats()["packets_retransmitted"] for side in sides)
        report.lost_completions = sum(2 * side.posted - side.done - side.arrived for side in sides)
    return report


def _finish(sides: tuple[_Side, _Side], report: SoakResult) -> None:
    """What is under way must arrive, now that there are no faults."""
    until = time.monotonic() + 20
    while any(s.done < s.posted or s.arrived < s.posted for s in sides) and time.monotonic() < until:
        for side, other in (sides, sides[::-1]):
            _serve(side, other, report)
        time.sleep(0.001)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m softmrc_bench.soak", description="Random faults on all planes.")
    parser.add_argument("seconds", type=float, nargs="?", default=60.0, help="how long; 60 without")
    parser.add_argument("seed", type=int, nargs="?", default=random.SystemRandom().getrandbits(32), help="which faults")
    wanted = parser.parse_args()
    print(f"soaking for {wanted.seconds:,.0f} s with seed {wanted.seed}", flush=True)
    report = soak(wanted.seconds, wanted.seed)
    print(report)
    if not report.ok:
        raise InternalError(f"the soak with seed {wanted.seed} failed: {report}")


if __name__ == "__main__":
    main()
