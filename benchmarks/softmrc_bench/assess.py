"""Checks the closed forms of `softmrc assess` against Monte Carlo, for eight fabrics and eight random ones, both
transports and every policy; and the slow-down by a fault against packets on a simulated fabric."""

from __future__ import annotations

import multiprocessing
import os
import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace
from typing import Any

import numpy as np

from softmrc import sim
from softmrc._support.subprocesses import safe_spawning
from softmrc.fabric import Shape
from softmrc.fabric.description import Description, Failures, JobSettings
from softmrc.planner import closed_form, monte_carlo
from softmrc.planner.availability import POLICIES, TRANSPORTS
from softmrc_bench.figures import BenchFigure

TITLE = "The cost model, by three methods"
FIGURES = (
    BenchFigure("worst_disagreement", "lost time, closed form and Monte Carlo: largest difference", "", 0.02, False),
    BenchFigure("mean_disagreement", "lost time, closed form and Monte Carlo: mean difference", "", 0.01, False),
    BenchFigure("worst_drawn_disagreement", "lost time, eight random fabrics: largest difference", "", 0.02, False),
    BenchFigure(
        "worst_packet_disagreement",
        "slow-down by a fault, closed form and simulated packets: largest difference",
        "",
        0.1,
        False,
    ),
)
MONTHS_H = 720.0
EVENTS = 60_000  # of each stretch that is drawn
LONGER = {"few spares, 2,048": 8.0}  # times as many, where what matters is rare: to be without a spare

CALM = 0.02  # flaps a link and year
FABRICS: dict[str, Description] = {
    "one plane, 1,024": Description(
        fabric=Shape(planes=1, hosts=1024, hosts_per_leaf=32, spines=32), failures=Failures(flap_per_link_year=CALM)
    ),
    "two planes, 4,096": Description(
        fabric=Shape(planes=2, hosts=4096, hosts_per_leaf=64, spines=64), failures=Failures(flap_per_link_year=CALM)
    ),
    "four planes, 8,192": Description(
        fabric=Shape(planes=4, hosts=8192, hosts_per_leaf=128, spines=128), failures=Failures(flap_per_link_year=CALM)
    ),
    "eight planes, 131,072, calm hosts": Description(
        fabric=Shape(planes=8, hosts=131072, hosts_per_leaf=256, spines=256),
        failures=Failures(gpu_per_year=0.02, maintenance_days=1.0, flap_per_link_year=CALM),
        job=JobSettings(checkpoint_every_min=10),
    ),
    "three tiers, 4,096": Description(
        fabric=Shape(planes=2, hosts=4096, hosts_per_leaf=16, spines=16, pods=16, cores_per_spine=16),
        failures=Failures(flap_per_link_year=CALM),
    ),
    "twelve crews, 16,384": Description(
        fabric=Shape(planes=4, hosts=16384, hosts_per_leaf=128, spines=128),
        failures=Failures(crews=12, flap_per_link_year=CALM),
        job=JobSettings(spare_share=0.02),
    ),
    "few spares, 2,048": Description(
        fabric=Shape(planes=4, hosts=2048, hosts_per_leaf=64, spines=64),
        failures=Failures(flap_per_link_year=0.002),
        job=JobSettings(spare_share=2 / 2048),
    ),
    "one cable for eight planes, flaps": Description(
        fabric=Shape(planes=8, hosts=32768, hosts_per_leaf=256, spines=256),
        failures=Failures(planes_per_cable=8, gpu_per_year=0.05, flap_per_link_year=0.1, maintenance_days=2.0),
        job=JobSettings(checkpoint_every_min=15),
    ),
}  # fmt: skip


DRAWN_SEED = 20


def drawn(seed: int) -> dict[str, Description]:
    """Eight fabrics that nothing was fitted to; rates, repairs and waits between half and twice the usual."""
    draw = random.Random(f"fabrics {seed}")

    def around(value: float) -> float:
        return value * 2 ** draw.uniform(-1, 1)

    found = {}
    for number in range(8):
        planes, leaf, leaves = draw.choice([1, 2, 4, 8]), draw.choice([16, 32, 64, 128]), draw.choice([8, 16, 32, 64])
        pods = draw.choice([0, 0, 4])
        shape = Shape(
            planes=planes, hosts=leaf * leaves, hosts_per_leaf=leaf, spines=draw.choice([leaf // 2, leaf]), pods=pods,
            cores_per_spine=draw.choice([4, 8]) if pods else 0,
        )  # fmt: skip
        usual = Failures()
        ends = ("_per_year", "_repair_h", "dispatch_h")
        moved: dict[str, Any] = {
            one.name: around(getattr(usual, one.name)) for one in fields(usual) if one.name.endswith(ends)
        }
        failures = replace(
            usual, **moved,
            flap_per_link_year=draw.choice([0.0, 0.002, CALM]), flap_s=around(usual.flap_s),
            maintenance_days=draw.choice([1.0, 3.0, 7.0]), links_per_optic=draw.choice([1, 2, 4]),
            planes_per_cable=draw.choice([1, 1, planes]),
        )  # fmt: skip
        job = JobSettings(
            communication_share=draw.uniform(0.1, 0.5), checkpoint_every_min=draw.choice([10.0, 20.0, 30.0, 60.0]),
            detect_min=around(3.0), restart_min=around(10.0), warmup_min=around(5.0),
            spare_share=draw.choice([0.005, 0.01, 0.02]),
        )  # fmt: skip
        found[f"drawn {number + 1}: {planes} × {shape.hosts:,}"] = Description(fabric=shape, failures=failures, job=job)
    return found


def _compare(
    name: str, d: Description, transport: str, policy: str, events: float
) -> tuple[str, str, str, float, float]:
    hours = MONTHS_H * max(1.0, events * LONGER.get(name, 1.0) / monte_carlo.events_a_month(d))
    closed = closed_form.losses(d, transport, policy).lost
    return name, transport, policy, closed, monte_carlo.draw_long(d, transport, policy, hours).lost


def disagreements(fabrics: dict[str, Description], events: float = EVENTS) -> list[dict[str, Any]]:
    """One row for each fabric, transport and policy: what is lost by either way, and how far apart that is."""
    cases = [(n, d, t, p, events) for n, d in fabrics.items() for t in TRANSPORTS for p in POLICIES]
    context = multiprocessing.get_context("spawn")
    with safe_spawning(), ProcessPoolExecutor(os.cpu_count() or 1, mp_context=context) as pool:
        found = list(pool.map(_compare, *zip(*cases, strict=True)))
    return [
        {"fabric": n, "transport": t, "policy": p, "closed_form": a, "drawn": b, "disagreement": abs(a - b) / b}
        for n, t, p, a, b in found
    ]


# A fault, its table in a scenario, and what it leaves the slowest host in the arithmetic of `assess`.
PLANES, SPINES = 4, 4
FAULTS: dict[str, tuple[dict[str, Any], float]] = {
    "NIC port": ({"port": {"plane": 0, "host": 5}}, 1 - 1 / PLANES),
    "leaf": ({"switch": {"plane": 0, "tier": "t0", "index": 1}}, 1 - 1 / PLANES),
    "leaf's optic": ({"transceiver": {"plane": 0, "leaf": 1, "hosts": [4, 5]}}, 1 - 1 / PLANES),
    "spine": ({"switch": {"plane": 0, "tier": "t1", "index": 2}}, 1 - 1 / (PLANES * SPINES)),
    "leaf–spine cable": ({"link": {"plane": 0, "leaf": 1, "spine": 2}}, 1 - 1 / (PLANES * SPINES)),
}


def _slowest_flow_us(events: list[dict[str, Any]], nbytes: int, seed: int) -> float:
    scenario = sim.parse(
        {
            "question": "How much does a fault slow the slowest host down?",
            "fabric": {"planes": PLANES, "hosts": 16, "hosts_per_leaf": 4, "spines": SPINES},
            "workload": {"kind": "permutation", "pattern": "across_leaves", "message_bytes": nbytes},
            "faults": {"events": events},
        }
    )
    return float(np.nanmax(sim.run(scenario, seed).fct_us))


def packet_slowdowns(nbytes: int = 64_000_000, seeds: int = 2) -> dict[str, dict[str, float]]:
    """By fault: how many times as long the slowest flow takes, in the arithmetic and with packets."""
    found = {}
    for what, (where, left) in FAULTS.items():
        ratios = []
        for seed in range(1, seeds + 1):
            event = {"kind": "down", "at_us": 0, "label": what} | where
            ratios.append(_slowest_flow_us([event], nbytes, seed) / _slowest_flow_us([], nbytes, seed))
        found[what] = {"arithmetic": 1 / left, "packets": float(np.median(ratios))}
    return found


def measure(quick: bool = False) -> dict[str, Any]:
    rows = disagreements(FABRICS, EVENTS / 10 if quick else EVENTS)
    others = disagreements(drawn(DRAWN_SEED), EVENTS / 10 if quick else EVENTS)
    packets = packet_slowdowns(4_000_000 if quick else 64_000_000, 1 if quick else 2)
    return {
        "worst_disagreement": max(row["disagreement"] for row in rows),
        "mean_disagreement": float(np.mean([row["disagreement"] for row in rows])),
        "worst_packet_disagreement": max(abs(one["packets"] / one["arithmetic"] - 1) for one in packets.values()),
        "worst_drawn_disagreement": max(row["disagreement"] for row in others),
        "fabrics": rows,
        "drawn": others,
        "packets": packets,
    }
