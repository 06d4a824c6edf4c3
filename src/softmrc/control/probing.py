"""Signs of life over chosen paths: a batch of probes, and what answered within a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from softmrc.control.client import Node
from softmrc.errors import ConfigError

MOST = 1024  # in a batch
_FIRST_TOKEN = 0x5000_0000


@dataclass(frozen=True)
class Answer:
    """What became of one probe. `took_ns` of None: no answer within the time, or no probe was sent."""

    ev: int
    asked: bool
    took_ns: int | None = None
    arrival_plane: int | None = None


def probe(node: Node, peer: int, plane: int, evs: Sequence[int], timeout_s: float = 1.0) -> list[Answer]:
    """Ask a peer's node over these EVs (values, not indices) of a plane, and wait for the answers."""
    if not 1 <= len(evs) <= MOST:
        raise ConfigError("evs", len(evs), f"1 to {MOST} in a batch")
    if not 0 < timeout_s <= 60:
        raise ConfigError("timeout_s", timeout_s, "more than 0, and at most 60")
    node.events()  # what happened before is no answer
    first = _FIRST_TOKEN | time.monotonic_ns() >> 12 & 0xFFFF << 12
    tokens = {first + i: i for i in range(len(evs))}
    asked = [
        bool(node.ask("probe", peer=peer, plane=plane, ev=ev, token=first + i)["asked"]) for i, ev in enumerate(evs)
    ]
    found = [Answer(ev, was) for ev, was in zip(evs, asked, strict=True)]
    end = time.monotonic() + timeout_s
    while sum(asked) > sum(one.took_ns is not None for one in found) and time.monotonic() < end:
        for event in node.events(("probe_answer",)).events:
            i = tokens.get(int(event["psn"]))
            if i is not None and found[i].took_ns is None:
                found[i] = Answer(evs[i], True, int(event["value"]) // 1000, int(event["plane"]))
        time.sleep(0.002)
    return found
