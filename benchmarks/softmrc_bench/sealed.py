"""What encryption costs, and what attackers without a key can do.

Two processes on loopback, with encryption switched on explicitly. Encrypted and plain rounds alternate in one run; a
ratio is the median of the ratios of each round.
"""

from __future__ import annotations

import os
import statistics
from contextlib import ExitStack
from typing import Any

from softmrc import _core
from softmrc.errors import ConfigError
from softmrc_bench import attacker, handshake_flood, lanes, spoofed_flood
from softmrc_bench.figures import BenchFigure, Sampled, Versus, compared
from softmrc_bench.udp import HOT, LOOPBACK, Flow, mrc_latencies_us, sink

SECRET = "of the benchmark"
PLAIN = {"secret": SECRET, "seal": "off"}
SEALED = {"secret": SECRET, "seal": "on"}
ATTACKS = 1_000_000

TITLE = "Encrypted packets, two processes"
FIGURES = (
    BenchFigure("sealed_gbps", "goodput, encrypted: 4 planes on loopback, 1 MiB writes", "Gb/s", 0, True),
    BenchFigure(
        "ratio",
        "goodput, encrypted over plain, 1 lane",
        "",
        0.6,
        True,
        versus=Versus("without encryption", "sealed_gbps", "plain_gbps", "Gb/s"),
    ),
    BenchFigure(
        "ratio_4_lanes",
        f"goodput, encrypted over plain, 4 lanes (needs {lanes.CORES} cores)",
        "",
        0.75,
        True,
        versus=Versus("without encryption", "sealed_4_lanes_gbps", "plain_4_lanes_gbps", "Gb/s"),
    ),
    BenchFigure(
        "latency_ratio",
        "2-byte ping-pong, encrypted over plain",
        "",
        1.3,
        False,
        versus=Versus("without encryption", "latency_us_p50", "plain_latency_us_p50", "µs"),
    ),
    BenchFigure(
        "forged_ratio", "goodput of a plain connection under 100,000 forged packets/s, over none", "", 0.8, True
    ),
    BenchFigure("forged_sealed_ratio", "goodput of an encrypted connection under the same, over none", "", 0.8, True),
    BenchFigure("forged_condemned", "paths withdrawn by mistake at the end of a round of forged packets", "", 0, False),
    BenchFigure(
        "handshake_flood_ratio",
        "goodput under 10,000 unauthenticated handshakes/s, over the same at another listener",
        "",
        0.9,
        True,
    ),
    BenchFigure("placed_by_attacker", "bytes written to memory by an on-path attacker", "B", 0, False),
    BenchFigure("attacker_packets", "packets that the on-path attacker changed", "", 0, True),
)


def _goodput(rounds: int, seconds: float) -> dict[str, Any]:
    with sink() as one, sink() as two:
        plain = Flow(one, LOOPBACK[0], HOT, LOOPBACK, LOOPBACK, lanes=1, **PLAIN)
        sealed = Flow(two, LOOPBACK[0], HOT, LOOPBACK, LOOPBACK, lanes=1, **SEALED)
        rows = [(sealed.gbps(seconds), plain.gbps(seconds)) for _ in range(rounds)]
        plain.close()
        sealed.close()
    return {**compared(rows, "sealed_gbps", "plain_gbps"), "cipher": _core.faster_cipher().name}


def _lanes(rounds: int, seconds: float) -> dict[str, Any]:
    if len(os.sched_getaffinity(0)) < lanes.CORES:
        return {"ratio_4_lanes": None}
    with ExitStack() as stack:
        plain = lanes.Wide(stack.enter_context(sink()), lanes.WIDE, **PLAIN)
        sealed = lanes.Wide(stack.enter_context(sink()), lanes.WIDE, **SEALED)
        rows = [(sealed.gbps(seconds), plain.gbps(seconds)) for _ in range(rounds)]
        plain.close()
        sealed.close()
    return compared(rows, "sealed_4_lanes_gbps", "plain_4_lanes_gbps", "ratio_4_lanes")


def _latency(rounds: int, count: int) -> dict[str, Any]:
    rows = []
    with sink() as other:
        for _ in range(rounds):
            sealed, plain = (
                statistics.median(mrc_latencies_us(other, LOOPBACK[0], count, 2, LOOPBACK, **settings))
                for settings in (SEALED, PLAIN)
            )
            rows.append((sealed, plain))
    return compared(rows, "latency_us_p50", "plain_latency_us_p50", "latency_ratio")


def _forged(rounds: int, seconds: float) -> dict[str, Any]:
    """The worst kind of forged packets, from the peer's own addresses and ports."""
    found: dict[str, Any] = {"forged_condemned": 0}
    kinds = {"forged": (PLAIN, spoofed_flood.KINDS), "forged_sealed": (SEALED, (*spoofed_flood.KINDS, "sealed"))}
    for name, (settings, of_these) in kinds.items():
        with sink() as one:
            flow = Flow(one, LOOPBACK[0], HOT, LOOPBACK, LOOPBACK, **settings)
            figures = spoofed_flood.measure(flow, rounds, seconds, of_these)
            flow.close()
        if figures["flood_spoofed_ratio"] is None:
            return {f"{name}_ratio": None for name in kinds} | {"forged_refused": figures["flood_spoofed_refused"]}
        found[f"{name}_ratio"] = figures["flood_spoofed_ratio"]
        found[f"{name}_ratios"] = figures["flood_spoofed_ratios"]
        found["forged_condemned"] = max(found["forged_condemned"], figures["flood_spoofed_condemned"])
    return found


def _unauthenticated(rounds: int, seconds: float) -> dict[str, Any]:
    """At the listener of a process that receives, over the same at another's."""
    rows = []
    with sink() as one, sink() as two:
        flow = Flow(one, LOOPBACK[0], HOT, LOOPBACK, LOOPBACK, **SEALED)
        bystander = Flow(two, LOOPBACK[0], HOT, LOOPBACK, LOOPBACK, **SEALED)
        for _ in range(rounds):
            with handshake_flood.handshakes(bystander.port):
                elsewhere = flow.gbps(seconds)
            with handshake_flood.handshakes(flow.port):
                rows.append(flow.gbps(seconds) / elsewhere)
        told = flow.close()
        bystander.close()
    return {
        "handshake_flood_ratio": Sampled(rows),
        "handshake_flood_per_s": told["refused"] / (rounds * seconds),
        "handshake_flood_rss_growth_mib": told["rss_growth_mib"],
    }


def _attack(packets: int) -> dict[str, Any]:
    found = attacker.attack(packets)
    return {
        "placed_by_attacker": found.placed_bytes,
        "attacker_packets": found.mutated,
        "attacker_wrong_completions": found.wrong_completions,
        "survived_attacker": found.is_alive,
    }


def measure(quick: bool = False) -> dict[str, Any]:
    """All figures; `quick` for a look, not for the record."""
    if not _core.can_seal():
        raise ConfigError("seal", "on", "needs a build with libcrypto")
    rounds, seconds = (2, 0.4) if quick else (7, 1.0)
    figures = _goodput(rounds, seconds)
    figures |= _lanes(rounds, seconds)
    figures |= _latency(rounds, 500 if quick else 3000)
    figures |= _forged(rounds, seconds)
    figures |= _unauthenticated(rounds, seconds)
    figures |= _attack(20_000 if quick else ATTACKS)
    figures["rounds"] = rounds
    return figures
