"""Probing selected paths: a batch of EV probes and their answers within a timeout."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from softmrc.errors import ConfigError
from softmrc.ops.control.client import DeviceClient

MAX_PROBES = 1024  # in a batch
_FIRST_TOKEN = 0x5000_0000


@dataclass(frozen=True)
class ProbeResult:
    """What became of one probe. `took_ns` of None: no answer within the time, or no probe was sent. `service_ns` is the
    part of it that the peer was busy with the answer; None where it does not tell."""

    ev: int
    asked: bool
    took_ns: int | None = None
    arrival_plane: int | None = None
    service_ns: int | None = None


def probe(
    node: DeviceClient, peer: int, plane: int, evs: Sequence[int], timeout_s: float = 1.0, dscp: int | None = None
) -> list[ProbeResult]:
    """Probe a peer's node over these EVs (values, not indices) of a plane, and wait for the answers. The first probe
    that cannot be sent ends the batch. `dscp` is that of the probes; answers have the DSCP of control packets."""
    if not 1 <= len(evs) <= MAX_PROBES:
        raise ConfigError("evs", len(evs), f"must be 1 to {MAX_PROBES} in a batch")
    if not 0 < timeout_s <= 60:
        raise ConfigError("timeout_s", timeout_s, "must be more than 0, and at most 60")
    node.events()  # what happened before is no answer
    first = _FIRST_TOKEN | time.monotonic_ns() >> 12 & 0xFFFF << 12
    sent = int(node.ask("probe", peer=peer, plane=plane, evs=list(evs), token=first, dscp=dscp)["asked"])
    found = [ProbeResult(ev, i < sent) for i, ev in enumerate(evs)]
    end = time.monotonic() + timeout_s
    while sent > sum(one.took_ns is not None for one in found) and time.monotonic() < end:
        for event in node.events(("probe_answer",)).events:
            i = int(event["psn"]) - first
            if 0 <= i < sent and found[i].took_ns is None:
                took, service = int(event["value"]) // 1000, int(event.get("took", 0))
                found[i] = ProbeResult(evs[i], True, took, int(event["plane"]), service or None)
        time.sleep(0.002)
    return found
