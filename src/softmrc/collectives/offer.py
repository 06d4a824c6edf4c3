"""What a rank may say of itself in the store. Whoever can write there is trusted, but may be mistaken: entries of
another version, of another group or another rank are refused in words, before anything is made of them."""

from __future__ import annotations

import json
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


def check(offer: Offer, rank: int, me: int) -> tuple[PeerPlane, ...]:
    """Where it is, if every field is what it should be in the offer of `rank` to rank `me`."""
    said.whole("rank", offer.get("rank"), rank, rank)
    for field, (least, most) in LIMITS.items():
        said.whole(field, offer.get(field), least, most)
    planes = said.planes(offer.get("planes"))
    mine = offer["peers"].get(str(me)) if isinstance(offer.get("peers"), dict) else None
    if not isinstance(mine, dict):
        raise Nonsense(f"peers.{me}", mine, f"what it has for rank {me}")
    for kind in ("messages", "bulk"):
        qpn, first_psn = said.a_list(f"peers.{me}.{kind}", mine.get(kind), 2, 2)
        said.whole(f"peers.{me}.{kind}[0]", qpn, *QPNS)
        said.whole(f"peers.{me}.{kind}[1]", first_psn, *PSNS)
    said.whole(f"peers.{me}.ring", mine.get("ring"), 0, 0xFFFFFFFF)
    said.whole(f"peers.{me}.port_key", mine.get("port_key", 0), 0, (1 << 64) - 1)
    return planes
