"""What a rank may say of itself in the store. Whoever can write there is trusted, but may be mistaken: entries of
another version, of another group or another rank are refused in words, before anything is made of them."""

from __future__ import annotations

import ipaddress
import json
import reprlib
from collections.abc import Iterable
from typing import Any

from softmrc.planes import LARGEST_MTU, SMALLEST_MTU

Offer = dict[str, Any]
MOST_SOURCE_PORTS = 1024  # of a plane
LIMITS = {"mtu": (SMALLEST_MTU, LARGEST_MTU), "max_wimm": (1, 16_384), "mpr": (8, 255)}  # what a queue pair takes


class Nonsense(ValueError):
    """An offer that nobody makes."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field} = {reprlib.repr(value)} is not allowed: {allowed}")


def read(text: str) -> Offer:
    """Any object."""
    try:
        offer = json.loads(text)
    except (ValueError, RecursionError):
        raise Nonsense("the offer", text, "JSON") from None
    if not isinstance(offer, dict):
        raise Nonsense("the offer", offer, "an object")
    return offer


def check(offer: Offer, rank: int, me: int) -> None:
    """Every field is what it should be in the offer of `rank` to rank `me`."""
    _whole("rank", offer.get("rank"), rank, rank)
    for field, (least, most) in LIMITS.items():
        _whole(field, offer.get(field), least, most)
    for number, plane in enumerate(_list("planes", offer.get("planes"), 1, 16)):
        _check_plane(f"planes[{number}]", plane)
    mine = offer["peers"].get(str(me)) if isinstance(offer.get("peers"), dict) else None
    if not isinstance(mine, dict):
        raise Nonsense(f"peers.{me}", mine, f"what it has for rank {me}")
    for kind in ("messages", "bulk"):
        qpn, first_psn = _list(f"peers.{me}.{kind}", mine.get(kind), 2, 2)
        _whole(f"peers.{me}.{kind}[0]", qpn, 3, 0xFFFFFF)
        _whole(f"peers.{me}.{kind}[1]", first_psn, 0, 0xFFFFFF)
    _whole(f"peers.{me}.ring", mine.get("ring"), 0, 0xFFFFFFFF)


def ends(planes: Iterable[tuple[Any, Iterable[int]]]) -> set[tuple[str, int]]:
    """Every address and port of these planes, of (address, ports) each."""
    return {(str(address), port) for address, ports in planes for port in ports}


def ends_of(offer: Offer) -> set[tuple[str, int]]:
    planes = offer["planes"]
    return ends((ipaddress.ip_address(one["address"]), [one["port"], *one["source_ports"]]) for one in planes)


def _check_plane(name: str, plane: Any) -> None:
    if not isinstance(plane, dict):
        raise Nonsense(name, plane, "an address, a port and source ports")
    _whole(f"{name}.port", plane.get("port"), 1, 0xFFFF)
    for port in _list(f"{name}.source_ports", plane.get("source_ports"), 1, MOST_SOURCE_PORTS):
        _whole(f"{name}.source_ports", port, 1, 0xFFFF)
    address = plane.get("address")
    try:
        if not isinstance(address, str) or ipaddress.ip_address(address).is_multicast:
            raise ValueError
    except ValueError:
        raise Nonsense(f"{name}.address", address, "the IPv4 or IPv6 address of a host") from None


def _whole(field: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise Nonsense(field, value, f"a whole number from {least} to {most}")


def _list(field: str, value: object, least: int, most: int) -> list[Any]:
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise Nonsense(field, value, f"a list of {least} to {most}")
    return value
