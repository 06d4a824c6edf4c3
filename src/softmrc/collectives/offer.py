"""What a rank may say of itself in the store. Whoever can write there is trusted, but may be mistaken: entries of
another version, of another group or another rank are refused in words, before anything is made of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
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
PSNS = bounds(RtrAttributes, "first_psn")


def read(text: str) -> Offer:
    """Any object."""
    try:
        offer = json.loads(text)
    except (ValueError, RecursionError):
        raise Nonsense("the offer", text, "JSON") from None
    if not isinstance(offer, dict):
        raise Nonsense("the offer", offer, "an object")
    return offer


def check(offer: Offer, rank: int, me: int) -> list[tuple[PeerPlane, ...]]:
    """Where each of its strands is, if every field is what it should be in the offer of `rank` to rank `me`."""
    said.whole("rank", offer.get("rank"), rank, rank)
    for field, (least, most) in LIMITS.items():
        said.whole(field, offer.get(field), least, most)
    said.whole("cores", offer.get("cores"), 0, MOST_CORES)
    if not isinstance(offer.get("host"), str):
        raise Nonsense("host", offer.get("host"), "a name")
    strands = enumerate(said.a_list("strands", offer.get("strands"), 1, MOST_STRANDS))
    places = [_check_strand(f"strands[{number}]", strand, me) for number, strand in strands]
    ends = [end for planes in places for end in said.ends_of(planes)]
    if len(set(ends)) < len(ends):
        raise Nonsense("strands", offer["strands"], "each address and port once")
    return places


def _check_strand(name: str, strand: object, me: int) -> tuple[PeerPlane, ...]:
    if not isinstance(strand, dict):
        raise Nonsense(name, strand, "planes, and what it has there for every peer")
    planes = said.planes(strand.get("planes"))
    mine = strand["peers"].get(str(me)) if isinstance(strand.get("peers"), dict) else None
    if not isinstance(mine, dict):
        raise Nonsense(f"{name}.peers.{me}", mine, f"what it has for rank {me}")
    for kind in ("messages", "bulk"):
        qpn, first_psn = said.a_list(f"{name}.peers.{me}.{kind}", mine.get(kind), 2, 2)
        said.whole(f"{name}.peers.{me}.{kind}[0]", qpn, *QPNS)
        said.whole(f"{name}.peers.{me}.{kind}[1]", first_psn, *PSNS)
    said.whole(f"{name}.peers.{me}.ring", mine.get("ring"), 0, 0xFFFFFFFF)
    said.whole(f"{name}.peers.{me}.port_key", mine.get("port_key", 0), 0, (1 << 64) - 1)
    return planes


def strands_of(offers: Sequence[Offer]) -> int:
    """How many a group of these ranks has: as many as the one with the fewest. A rank that says how many processors it
    has shares them with the other ranks of its host."""
    here = Counter(offer["host"] for offer in offers)
    most = [len(offer["strands"]) for offer in offers]
    most += [max(1, offer["cores"] // here[offer["host"]]) for offer in offers if offer["cores"]]
    return min(most)
