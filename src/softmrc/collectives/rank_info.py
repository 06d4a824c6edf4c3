"""What a rank may publish about itself in the store. A writer of the store (with a secret: that knows it) is trusted
but may be mistaken. Entries of another version, group or rank are refused with a reason before they are used."""

from __future__ import annotations

import json
import reprlib
import socket
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

from softmrc.collectives.work import CollectiveError
from softmrc.config import RtrAttributes, RtsAttributes, bounds
from softmrc.config.planes import namespace
from softmrc.connection import validate
from softmrc.connection.validate import ProtocolError
from softmrc.device import PeerPlane

Offer = dict[str, Any]
LIMITS = {
    "mtu": bounds(RtrAttributes, "mtu"),
    "max_wimm": bounds(RtsAttributes, "max_wimm"),
    "mpr": bounds(RtsAttributes, "mpr"),
}
QPNS = bounds(RtrAttributes, "dest_qpn")
MAX_CORES = 1 << 20
MAX_CHANNELS = 64
MOST = {"network": 1 << 64, "cores": MAX_CORES, "lanes": MAX_CHANNELS}


@cache
def boot() -> str:
    """The same for all processes of a machine, and another on the next one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


@dataclass(frozen=True)
class RankInfo:
    """What the record of a rank says."""

    host: str
    network: int
    cores: int  # that it shares with ranks of its host; 0: it says how many channels it has
    lanes: int  # the most channels it has; 0: it does not know yet
    is_guess: bool = False  # what it offers holds if all ranks are on one host
    is_sure: bool = False  # ranks on its host reach it without a test: there is no cable, and no injected fault
    offer: Offer | None = None  # how it is reached; None: published once it knows where the others are

    @classmethod
    def own(cls, cores: int, lanes: int, **more: Any) -> Self:
        return cls(boot(), namespace(), cores, lanes, **more)

    @property
    def where(self) -> tuple[str, int]:
        """The same for two ranks exactly if loopback connects them."""
        return self.host, self.network

    def to_wire(self, rank: int, size: int) -> str:
        return json.dumps({**_alike(rank, size), **vars(self)})

    @classmethod
    def from_wire(cls, texts: Sequence[str], where_of: Callable[[int], str]) -> list[Self]:
        """What each rank said, if every field is what it should be; `where_of` names the key of its record."""
        found = []
        for rank, text in enumerate(texts):
            where = where_of(rank)
            try:
                words = read(text)
                for key, value in _alike(rank, len(texts)).items():
                    if type(words.get(key)) is not type(value) or words[key] != value:  # true is not 1
                        raise CollectiveError(
                            f"rank {rank} has {key} {reprlib.repr(words.get(key))}, and not {value};"
                            f" set them alike ({where})"
                        )
                if not isinstance(words.get("host"), str):
                    raise ProtocolError("host", words.get("host"), "a name")
                if not isinstance(offer := words.get("offer"), dict | None):
                    raise ProtocolError("offer", offer, "how it is reached, or null")
                network, cores, lanes = (validate.whole(key, words.get(key), 0, most) for key, most in MOST.items())
                is_guess, is_sure = (validate.flag(key, words.get(key)) for key in ("is_guess", "is_sure"))
                found.append(cls(words["host"], network, cores, lanes, is_guess, is_sure, offer))
            except ProtocolError as error:
                raise CollectiveError(f"rank {rank}: {where} makes no sense: {error}") from None
        return found


def _alike(rank: int, size: int) -> Offer:
    return {"byteorder": sys.byteorder, "rank": rank, "size": size}


@dataclass(frozen=True)
class ChannelInfo:
    """Where one channel of a rank is, and what it keeps there for every other rank, in the order of ranks."""

    planes: tuple[PeerPlane, ...]
    first_qpn: int  # two queue pairs for each
    stride: int  # from one number to the next
    first_rkey: int  # a ring for each

    def to_wire(self) -> Offer:
        planes = [plane.to_wire() for plane in self.planes]
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
        raise ProtocolError("the offer", text, "JSON") from None
    if not isinstance(offer, dict):
        raise ProtocolError("the offer", offer, "an object")
    return offer


def check(offer: Offer) -> None:
    """Whether every number is what it should be in what a rank tells."""
    for field, (least, most) in LIMITS.items():
        validate.whole(field, offer.get(field), least, most)
    if not isinstance(offer.get("memory"), str):
        raise ProtocolError("memory", offer.get("memory"), "a name")


def parse_channels(offer: Offer, size: int) -> list[ChannelInfo]:
    """Where each of a rank's channels is in a group of this size, if every field is what it should be."""
    listed = enumerate(validate.a_list("channels", offer.get("channels"), 1, MAX_CHANNELS))
    found = [_channel(f"channels[{number}]", channel, size) for number, channel in listed]
    ends = [end for channel in found for end in validate.socket_addresses(channel.planes)] if len(found) > 1 else []
    if len(set(ends)) < len(ends):
        raise ProtocolError("channels", offer["channels"], "each address and port once")
    return found


def _channel(name: str, channel: object, size: int) -> ChannelInfo:
    if not isinstance(channel, dict):
        raise ProtocolError(name, channel, "planes, and what it keeps there for every peer")
    planes = validate.planes(channel.get("planes"))
    first, stride = validate.a_list(f"{name}.pairs", channel.get("pairs"), 2, 2)
    validate.whole(f"{name}.pairs[1]", stride, 1, MAX_CHANNELS)
    validate.whole(f"{name}.pairs[0]", first, QPNS[0], QPNS[1] - stride * (2 * size - 1))
    rings = validate.whole(f"{name}.rings", channel.get("rings"), 0, (1 << 32) - size)
    return ChannelInfo(planes, first, stride, rings)


def are_together(greetings: Sequence[RankInfo]) -> bool:
    """Whether loopback connects all of them."""
    return len({one.where for one in greetings}) == 1


def is_final(greetings: Sequence[RankInfo]) -> bool:
    """Whether what these ranks offer is how they are reached, so that nothing more is to be said."""
    is_right = are_together(greetings)
    return all(one.offer is not None and (is_right or not one.is_guess) for one in greetings)


def are_sure(greetings: Sequence[RankInfo]) -> bool:
    """Whether these ranks certainly reach each other, so that no plane needs a test."""
    return are_together(greetings) and all(one.is_sure for one in greetings)


def channels_of(greetings: Sequence[RankInfo]) -> int:
    """How many a group of these ranks has at most: as many as the one with the fewest. A rank that says how many
    processors it has shares them with the other ranks of its host."""
    here = Counter(one.host for one in greetings)
    most = [one.lanes for one in greetings if one.lanes]
    most += [max(1, one.cores // here[one.host]) for one in greetings if one.cores]
    return min(most, default=MAX_CHANNELS)
