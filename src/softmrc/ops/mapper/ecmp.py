"""A mapper for fabrics that choose paths by a hash: probes of running devices over each of their source ports.

The cables that a source port's packets take are unknown, but are the same each time. So it distinguishes only:

    plane    nothing that anybody sends over it comes back well
    port     nothing to or from one host over one plane does
    pair     nothing between two hosts over one plane does, and neither's other peers show it
    path     some source ports between two hosts lose packets, while others do not

A component is blamed where it explains what was lost better than its parts do, as in `inference`: it costs as much to
name one component as it gains to explain a few losses.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from softmrc._support.files import read_text
from softmrc._support.units import share_text
from softmrc.errors import ConfigError
from softmrc.ops import control
from softmrc.ops.mapper.inference import State

FLOOR = 1e-4  # what a healthy path loses
PRICE = 6.0  # of naming one component, in units of log-likelihood
LEAST = 10.0  # by so much its losses must be unlikely
DEAD = 0.999
PROBES_PER_S = 500  # to a peer, half of what it answers one


@dataclass(frozen=True)
class EcmpSample:
    """What became of the probes from one host to another over a plane and a source port."""

    source: str
    destination: str
    plane: int
    source_port: int
    sent: int
    lost: int


@dataclass(frozen=True)
class EcmpFinding:
    """One component that is broken, as far as it can be named."""

    kind: str  # plane, port, pair or path
    plane: int
    source: str  # of a port its host, of a plane empty
    destination: str
    source_ports: tuple[int, ...]  # of a path
    state: State
    share: float
    sent: int
    lost: int

    @property
    def name(self) -> str:
        where = {
            "plane": "",
            "port": f" at {self.source}",
            "pair": f" from {self.source} to {self.destination}",
            "path": f" from {self.source} to {self.destination}, source port "
            + ", ".join(str(port) for port in self.source_ports),
        }[self.kind]
        return f"plane {self.plane}{where}"

    @property
    def how(self) -> str:
        return "dead" if self.state is State.DEAD else f"loses {share_text(self.share)}"


def judge(cells: Iterable[EcmpSample]) -> list[EcmpFinding]:
    """What is broken, the heaviest first. Cells of several hosts together tell more than those of one."""
    left = {(one.source, one.destination, one.plane, one.source_port): one for one in _summed(cells)}
    found = []
    while best := max(_candidates(list(left.values())), key=lambda guess: _gain(guess.sent, guess.lost), default=None):
        found.append(best)
        left = {key: one for key, one in left.items() if not _is_of(best, one)}
    return found


def _summed(cells: Iterable[EcmpSample]) -> list[EcmpSample]:
    sums: dict[tuple[str, str, int, int], tuple[int, int]] = {}
    for one in cells:
        key = (one.source, one.destination, one.plane, one.source_port)
        sent, lost = sums.get(key, (0, 0))
        sums[key] = (sent + one.sent, lost + one.lost)
    return [EcmpSample(*key, sent, lost) for key, (sent, lost) in sums.items() if sent]


def _gain(sent: int, lost: int) -> float:
    """How much better "it loses this share" explains what was lost than bad luck does."""
    share = lost / sent
    if share <= FLOOR:
        return 0.0
    kept = (sent - lost) * math.log((1 - share) / (1 - FLOOR)) if lost < sent else 0.0
    return lost * math.log(share / FLOOR) + kept


def _candidates(cells: Sequence[EcmpSample]) -> list[EcmpFinding]:
    """Components that explain their cells at least as well as their cells alone do."""
    groups: dict[tuple[str, int, str, str, tuple[int, ...]], list[EcmpSample]] = {}
    for one in cells:
        names = [
            ("plane", one.plane, "", "", ()),
            ("port", one.plane, one.source, "", ()),
            ("port", one.plane, one.destination, "", ()),
            ("pair", one.plane, one.source, one.destination, ()),
            ("path", one.plane, one.source, one.destination, (one.source_port,)),
        ]
        for name in names:
            groups.setdefault(name, []).append(one)
    found = []
    for (kind, plane, source, destination, ports), inside in groups.items():
        sent, lost = sum(one.sent for one in inside), sum(one.lost for one in inside)
        alone = sum(max(0.0, _gain(one.sent, one.lost) - PRICE) for one in inside)
        gain = _gain(sent, lost)
        if gain < LEAST or (kind != "path" and (len(inside) < 2 or gain - PRICE < alone)):
            continue
        if kind in ("plane", "port") and not _is_seen_by_others(kind, source, inside):
            continue
        state = State.DEAD if lost >= DEAD * sent else State.LOSSY
        found.append(EcmpFinding(kind, plane, source, destination, ports, state, lost / sent, sent, lost))
    return found


def _is_seen_by_others(kind: str, host: str, inside: Sequence[EcmpSample]) -> bool:
    """A second peer of the host distinguishes its port from a pair; cells without a common host distinguish a plane
    from a port."""
    ends = [{one.source, one.destination} for one in inside]
    if kind == "port":
        return len(set().union(*ends) - {host}) >= 2
    return not set.intersection(*ends)


def _is_of(guess: EcmpFinding, cell: EcmpSample) -> bool:
    if guess.plane != cell.plane or guess.kind == "plane":
        return guess.plane == cell.plane
    if guess.kind == "port":
        return guess.source in (cell.source, cell.destination)
    is_pair = (guess.source, guess.destination) == (cell.source, cell.destination)
    return is_pair and (guess.kind == "pair" or cell.source_port in guess.source_ports)


# How cells are come by.


def probe_all(node: control.DeviceClient, rounds: int, timeout_s: float = 1.0) -> list[EcmpSample]:
    """A device's probes to all of its peers, over every plane and source port, so many times each."""
    if not 1 <= rounds <= 100_000:
        raise ConfigError("rounds", rounds, "must be 1 to 100000")
    own = node.info()["planes"][0]["address"]
    ports = [tuple(sorted(set(plane["source_ports"]))) for plane in node.stats()["planes"]]
    peers = {qp["peer"]["number"]: qp["peer"]["planes"] for qp in node.queue_pairs(evs=False) if qp.get("peer")}
    lost: dict[tuple[int, int, int], int] = {}
    sent: dict[tuple[int, int, int], int] = {}
    for _ in range(rounds):
        for peer in peers:
            for plane, of_plane in enumerate(ports):
                begun = time.monotonic()
                for one in control.probe(node, peer, plane, of_plane[: control.MAX_PROBES], timeout_s):
                    key = (peer, plane, one.ev)
                    sent[key] = sent.get(key, 0) + one.asked
                    lost[key] = lost.get(key, 0) + (one.asked and one.took_ns is None)
                time.sleep(max(0.0, len(of_plane) / PROBES_PER_S - (time.monotonic() - begun)))
    return [
        EcmpSample(own, peers[peer][0].rpartition(":")[0].strip("[]"), plane, port, sent[key], lost[key])
        for key in sent
        for peer, plane, port in [key]
    ]


def save(path: Path, cells: Sequence[EcmpSample]) -> None:
    """For another host to judge with its own."""
    path.write_text(json.dumps({"cells": [asdict(one) for one in cells]}) + "\n")


def load(path: Path) -> list[EcmpSample]:
    text = read_text(path, "others")
    try:
        rows = json.loads(text)["cells"]
        return [_cell_of(row) for row in rows]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ConfigError("others", str(path), "must be a file as `softmrc mapper ecmp --output` writes it") from None


def _cell_of(row: Any) -> EcmpSample:
    numbers = [row[key] for key in ("plane", "source_port", "sent", "lost")]
    if not all(isinstance(one, int) and 0 <= one < 1 << 48 for one in numbers) or numbers[3] > numbers[2]:
        raise ValueError("no cell")
    return EcmpSample(str(row["source"]), str(row["destination"]), *numbers)
