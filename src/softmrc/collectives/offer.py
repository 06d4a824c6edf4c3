"""What a rank may say of itself in the store. Whoever can write there is trusted, but may be mistaken: entries of
another version, of another group or another rank are refused in words, before anything is made of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from softmrc import said
from softmrc.config import RtrAttributes, RtsAttributes, bounds
from softmrc.said import Nonsense
from softmrc.verbs import PeerPlane

Offer = dict[str, Any]
LIMITS = {
    "mtu": bounds(RtrAttributes, "mtu"),
    "max_wimm": bounds(RtsAttributes, "max_wimm"),
    "mpr": bounds(RtsAttributes, "mpr"),
}
QPNS = bounds(RtrAttributes, "dest_qpn")
MOST_CORES = 1 << 20
MOST_STRANDS = 64


@dataclass(frozen=True)
class Strand:
    """Where one strand of a rank is, and what it keeps there for every other rank, in the order of ranks."""

    planes: tuple[PeerPlane, ...]
    first_qpn: int  # two queue pairs for each
    stride: int  # from one number to the next
    first_rkey: int  # a ring for each

    def told(self) -> Offer:
        planes = [plane.told() for plane in self.planes]
        return {"planes": planes, "pairs": [self.first_qpn, self.stride], "rings": self.first_rkey}

    def qpn(self, rank: int, use: int) -> int:
        """The number that is kept for this rank: for messages (0) or bulk data (1)."""
        return self.first_qpn + self.stride * (2 * rank + use)

    @property
    def kept(self) -> tuple[int, int, int]:
        return self.first_qpn, self.stride, self.first_rkey


def read(text: str) -> Offer:
    """Any object."""
    try:
        offer = json.loads(text)
    except (ValueError, RecursionError):
        raise Nonsense("the offer", text, "JSON") from None
    if not isinstance(offer, dict):
        raise Nonsense("the offer", offer, "an object")
    return offer


def check(offer: Offer, rank: int) -> None:
    """Whether every field is what it should be in the facts of `rank`."""
    said.whole("rank", offer.get("rank"), rank, rank)
    for field, (least, most) in LIMITS.items():
        said.whole(field, offer.get(field), least, most)
    said.whole("cores", offer.get("cores"), 0, MOST_CORES)
    said.whole("lanes", offer.get("lanes"), 1, MOST_STRANDS)
    for field in ("host", "memory"):
        if not isinstance(offer.get(field), str):
            raise Nonsense(field, offer.get(field), "a name")


def places(offer: Offer, strands: int, size: int) -> list[Strand]:
    """Where each of a rank's strands is in a group of this size, if every field is what it should be."""
    listed = enumerate(said.a_list("strands", offer.get("strands"), strands, strands))
    found = [_strand(f"strands[{number}]", strand, size) for number, strand in listed]
    ends = [end for strand in found for end in said.ends_of(strand.planes)]
    if len(set(ends)) < len(ends):
        raise Nonsense("strands", offer["strands"], "each address and port once")
    return found


def _strand(name: str, strand: object, size: int) -> Strand:
    if not isinstance(strand, dict):
        raise Nonsense(name, strand, "planes, and what it keeps there for every peer")
    planes = said.planes(strand.get("planes"))
    first, stride = said.a_list(f"{name}.pairs", strand.get("pairs"), 2, 2)
    said.whole(f"{name}.pairs[1]", stride, 1, MOST_STRANDS)
    said.whole(f"{name}.pairs[0]", first, QPNS[0], QPNS[1] - stride * (2 * size - 1))
    rings = said.whole(f"{name}.rings", strand.get("rings"), 0, (1 << 32) - size)
    return Strand(planes, first, stride, rings)


def strands_of(offers: Sequence[Offer]) -> int:
    """How many a group of these ranks has: as many as the one with the fewest. A rank that says how many processors it
    has shares them with the other ranks of its host."""
    here = Counter(offer["host"] for offer in offers)
    most = [offer["lanes"] for offer in offers]
    most += [max(1, offer["cores"] // here[offer["host"]]) for offer in offers if offer["cores"]]
    return min(most)
