"""How a run ended, in words: done, out of time, interrupted, or stuck, and then who is stuck and why."""

from __future__ import annotations

from typing import Any

import numpy as np

from softmrc.sim.fabric import Fabric
from softmrc.sim.faults import FaultAction
from softmrc.sim.result import FLOW, PS_PER_US, Verdict
from softmrc.sim.traffic import TrafficPlan

NAMED_FLOWS = 5


def complete(network: Any) -> Verdict:
    return Verdict("complete", f"every flow was delivered and confirmed by {network.now_ps / PS_PER_US:,.1f} µs")


def interrupted(network: Any, flows: int) -> Verdict:
    done = network.flows_completed
    return Verdict(
        "interrupted", f"stopped by hand at {network.now_ps / PS_PER_US:,.1f} µs with {done} of {flows} flows done"
    )


def time_is_up(network: Any, until_ms: float, flows: int) -> Verdict:
    done = network.flows_completed
    return Verdict("time is up", f"{done} of {flows} flows were done when run.until_ms = {until_ms:g} had passed")


def stuck(network: Any, fabric: Fabric, plan: TrafficPlan, actions: list[FaultAction], stall_ms: float) -> Verdict:
    rows = np.frombuffer(network.flow_rows(), dtype=FLOW)
    unfinished = np.array(network.stuck_flows(), dtype=int)
    under_way = unfinished[rows["start_ps"][unfinished] >= 0]
    waiting = len(unfinished) - len(under_way)
    broken = broken_links(fabric, actions)
    named = []
    for flow in under_way[:NAMED_FLOWS].tolist():
        source, destination = plan.source[flow], plan.destination[flow]
        why = missing_way(fabric, broken, source, destination) or missing_way(fabric, broken, destination, source)
        named.append(f"flow {flow} ({source} → {destination}){f', {why}' if why else ''}")
    more = f"; and {len(under_way) - len(named)} more" if len(under_way) > len(named) else ""
    behind = f"; {waiting} flows wait for them" if waiting else ""
    if errors := network.collective_errors():
        behind += f". A collective failed: {errors[0]}"
    elif broken_connections := network.counters()["broken_connections"]:
        behind += f". {broken_connections} connections gave up retrying"
    text = (
        f"nothing has arrived for {stall_ms:g} ms and nothing more is planned. Stuck: {'; '.join(named)}{more}{behind}"
    )
    return Verdict("stuck", text, tuple(under_way.tolist()))


def broken_links(fabric: Fabric, actions: list[FaultAction]) -> np.ndarray:
    """Which links carry nothing at the end of all faults."""
    broken = np.zeros(fabric.links, dtype=bool)
    for action in actions:
        if action.kind in ("down", "black_hole"):
            broken[action.links] = True
        elif action.kind == "heal":
            broken[action.links] = False
    return broken


def missing_way(fabric: Fabric, broken: np.ndarray, source: int, destination: int) -> str:
    """Why no packet can go from one host to another, or nothing if one can."""
    planes = range(fabric.planes)
    out = [p for p in planes if not broken[fabric.host_up(p, source)]]
    if not out:
        return f"host {source} can send on no plane"
    into = [p for p in planes if not broken[fabric.host_down(p, destination)]]
    if not into:
        return f"host {destination} can be reached on no plane"
    shared = [p for p in out if p in into]
    if not shared:
        return f"hosts {source} and {destination} have no plane in common"
    if any(_has_path(fabric, broken, p, fabric.leaf_of(source), fabric.leaf_of(destination)) for p in shared):
        return ""
    return f"no path is left from host {source} to host {destination}"


def _has_path(fabric: Fabric, broken: np.ndarray, plane: int, start: int, end: int) -> bool:
    if start == end:
        return True
    for spine in range(fabric.spines):
        if broken[fabric.leaf_up(plane, start, spine)] or broken[fabric.leaf_down(plane, end, spine)]:
            continue
        pods = fabric.pod_of_leaf(start), fabric.pod_of_leaf(end)
        if pods[0] == pods[1]:
            return True
        below, above = (pod * fabric.spines + spine for pod in pods)
        for up in range(fabric.cores_per_spine):
            if not broken[fabric.t1_up(plane, below, up)] and not broken[fabric.t1_down(plane, above, up)]:
                return True
    return False
