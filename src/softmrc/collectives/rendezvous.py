"""How ranks find each other: each says where it is through a store, reads what the others said, and connects to each.

Whoever can write to the store is trusted, as torch trusts its own: it hands out memory keys. Queue pair numbers, first
packet numbers and keys are random, so that nobody else can guess them.
"""

from __future__ import annotations

import ipaddress
import json
import secrets
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from softmrc import _core
from softmrc.collectives.work import CollectiveError
from softmrc.config import PACKET_OVERHEAD, TRAIN_BYTES
from softmrc.errors import ConfigError
from softmrc.verbs import CompletionQueue, Device, PeerPlane, QueuePair

VERSION = 1
MTU_UNIT = 16  # packets end where elements end
LAST_LOOK_S = 0.01


@dataclass
class Pairs:
    """The two queue pairs to one peer."""

    messages: QueuePair
    bulk: QueuePair


class Meeting:
    """One rank on its way into a group."""

    def __init__(self, store: Any, rank: int, size: int, device: Device, name: str, timeout_s: float) -> None:
        if size < 1 or not 0 <= rank < size:
            raise ConfigError("rank", rank, f"0 to {size - 1}")
        self.store = store
        self.rank = rank
        self.size = size
        self.device = device
        self.name = name
        self.timeout_s = timeout_s
        self.until = time.monotonic() + timeout_s
        self.cq: CompletionQueue = device.create_cq()
        self.pairs: dict[int, Pairs] = {}
        self.mtu = device.mtu  # the smallest of all ranks'

    def meet(self, port: Any) -> Any:
        """The native group, connected to everybody."""
        native = _core.CollectiveGroup(
            self.device._native, self.rank, self.size, self.cq.number, secrets.randbits(63), port
        )
        try:
            for peer in self._others():
                self.pairs[peer] = Pairs(self.device.create_qp(self.cq), self.device.create_qp(self.cq))
            if self.size > 1:
                self._set("offer", json.dumps(self._offer(native)))
                offers = {peer: self._parsed(peer, offer) for peer, offer in self._gather("offer").items()}
                self.mtu = min(self.device.mtu, *(offer["mtu"] for offer in offers.values())) // MTU_UNIT * MTU_UNIT
                for peer, offer in offers.items():
                    self._connect(native, peer, offer)
            native.start(self.mtu * max(1, TRAIN_BYTES // (self.mtu + PACKET_OVERHEAD)))
            if self.size > 1:
                self._set("ready", "ready")
                self._gather("ready")
        except BaseException:
            native.close(0.0)
            for pairs in self.pairs.values():
                for pair in (pairs.messages, pairs.bulk):
                    pair.destroy()
            raise
        return native

    def _others(self) -> list[int]:
        return [peer for peer in range(self.size) if peer != self.rank]

    def _key(self, what: str, rank: int) -> str:
        return f"softmrc/{self.name}/{what}/{rank}"

    def _set(self, what: str, value: str) -> None:
        self.store.set(self._key(what, self.rank), value.encode())

    def _gather(self, what: str) -> dict[int, bytes]:
        """What every other rank said, or an error that names those who said nothing."""
        found: dict[int, bytes] = {}
        missing: list[int] = []
        for peer in self._others():
            left = max(self.until - time.monotonic(), LAST_LOOK_S)
            try:
                self.store.wait([self._key(what, peer)], timedelta(seconds=left))
                found[peer] = bytes(self.store.get(self._key(what, peer)))
            except Exception as error:  # every store has its own type for "not in time"
                if time.monotonic() < self.until:
                    raise CollectiveError(
                        f"the store failed while rank {self.rank} waited for rank {peer}: {error}"
                    ) from error
                missing.append(peer)
        if missing:
            names = ", ".join(f"rank {peer}" for peer in missing)
            did = "join" if what == "offer" else "get ready"
            raise CollectiveError(f"{names} did not {did} the group of {self.size} within {self.timeout_s:g} s")
        return found

    def _offer(self, native: Any) -> dict[str, Any]:
        device = self.device
        return {
            "version": VERSION,
            "byteorder": sys.byteorder,
            "size": self.size,
            "planes": [
                {"address": str(plane.address), "port": ports[0], "source_ports": ports}
                for plane, ports in zip(device.local_planes, device.source_ports, strict=True)
            ],
            "mtu": device.mtu,
            "icrc": device.config.icrc,
            "max_wimm": device.config.max_wimm,
            "mpr": device.config.mpr,
            "peers": {
                str(peer): {
                    "messages": [pairs.messages.qpn, pairs.messages.first_psn],
                    "bulk": [pairs.bulk.qpn, pairs.bulk.first_psn],
                    "ring": native.ring_rkey(peer),
                }
                for peer, pairs in self.pairs.items()
            },
        }

    def _parsed(self, peer: int, offer: bytes) -> dict[str, Any]:
        try:
            theirs = json.loads(offer)
            mine = {
                "version": VERSION,
                "byteorder": sys.byteorder,
                "size": self.size,
                "icrc": self.device.config.icrc,
                "number of planes": len(self.device.local_planes),
            }
            its = {key: theirs[key] for key in ("version", "byteorder", "size", "icrc")}
            its["number of planes"] = len(theirs["planes"])
        except (ValueError, KeyError, TypeError) as error:
            raise CollectiveError(f"rank {peer} said something that makes no sense: {error}") from None
        for key, value in mine.items():
            if its[key] != value:
                raise CollectiveError(f"rank {peer} has {key} {its[key]}, rank {self.rank} has {value}; set them alike")
        return theirs

    def _connect(self, native: Any, peer: int, offer: dict[str, Any]) -> None:
        device, config = self.device, self.device.config
        planes = [
            PeerPlane(ipaddress.ip_address(p["address"]), int(p["port"]), tuple(p["source_ports"]))
            for p in offer["planes"]
        ]
        node = device.add_peer(planes)
        mine = offer["peers"][str(self.rank)]
        pairs = self.pairs[peer]
        for pair, (qpn, first_psn) in ((pairs.messages, mine["messages"]), (pairs.bulk, mine["bulk"])):
            pair.init(ev_profile=device.profile_for(node))
            pair.rtr(node, dest_qpn=qpn, first_psn=first_psn, mtu=self.mtu)
            pair.rts(max_wimm=min(config.max_wimm, offer["max_wimm"]), mpr=min(config.mpr, offer["mpr"]))
        native.connect(peer, pairs.messages.qpn, pairs.bulk.qpn, mine["ring"])
