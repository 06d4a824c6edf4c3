"""All that the page shows, as one JSON object: bounded, whatever there is to show."""

from __future__ import annotations

import time
from typing import Any

from softmrc.errors import printable
from softmrc.ops.agent.collect import Collector, DeviceSample
from softmrc.ops.agent.metrics import peer_of
from softmrc.ops.agent.watch import FabricWatch

MAX_ROWS = 512  # of the map: peers
MAX_PATHS = 256  # of a row
SHOWN_EVENTS = 60
POINTS = 120
CODES = {"good": "g", "skip": "s", "assumed_bad": "b", "denied": "d"}


def state_of(collector: Collector, watch: FabricWatch | None) -> dict[str, Any]:
    """Everything, now."""
    seen = collector.look()
    return {
        "at": time.time(),
        "devices": [_device(one) for one in seen],
        "planes": _planes(seen, collector.rates()),
        "paths": _paths(seen),
        "events": [_event(one) for one in collector.recent_events()[-SHOWN_EVENTS:]],
        "fabric": None if watch is None else watch.verdict(),
    }


def _device(one: DeviceSample) -> dict[str, Any]:
    program = printable(str(one.info.get("program", "")))[:120]
    return {"name": one.name, "kind": str(one.info.get("kind", "")), "program": program, "pairs": len(one.queue_pairs)}


def _planes(
    seen: list[DeviceSample], rates: dict[tuple[str, int], list[tuple[float, float, float]]]
) -> list[dict[str, Any]]:
    found = []
    for one in seen:
        addresses = one.info.get("planes", [])
        for plane, row in enumerate(one.stats.get("planes", [])):
            points = rates.get((one.name, plane), [])[-POINTS:]
            address = addresses[plane].get("address", "") if plane < len(addresses) else ""
            found.append(
                {
                    "device": one.name,
                    "plane": plane,
                    "address": printable(str(address)),
                    "up": bool(row.get("is_up")),
                    "bps": round(points[-1][1] + points[-1][2]) if points else 0,
                    "points": [[round(at, 1), round(sent + received)] for at, sent, received in points],
                }
            )
    return found


def _paths(seen: list[DeviceSample]) -> list[dict[str, Any]]:
    """One row a queue pair's peer, one letter a path; the slowest peers first."""
    found = []
    for one in seen:
        for qp in one.queue_pairs:
            evs = sorted(qp.get("evs", []), key=lambda ev: (ev.get("plane", 0), ev.get("ev", 0)))[:MAX_PATHS]
            found.append(
                {
                    "device": one.name,
                    "peer": printable(peer_of(qp)),
                    "qpn": qp.get("qpn", 0),
                    "trip_us": round(float(qp.get("smoothed_rtt_us") or 0)),
                    "again": int(qp.get("stats", {}).get("packets_retransmitted", 0)),
                    "states": "".join(CODES.get(str(ev.get("state")), "?") for ev in evs),
                    "planes": [int(ev.get("plane", 0)) for ev in evs],
                }
            )
    return sorted(found, key=lambda row: (-_ill(row), -row["trip_us"]))[:MAX_ROWS]


def _ill(row: dict[str, Any]) -> int:
    return sum(letter != "g" for letter in row["states"])


def _event(one: dict[str, Any]) -> dict[str, Any]:
    return {
        "at": float(one.get("at", 0)),
        "device": one.get("device", ""),
        "type": printable(str(one.get("type", ""))),
        "text": printable(str(one.get("text", "")))[:200],
    }
