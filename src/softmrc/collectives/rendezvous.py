"""How ranks find each other: each says where it is through a store, reads what the others said, and connects to each.

Whoever can write to the store is trusted, as torch trusts its own: it hands out memory keys. Queue pair numbers, first
packet numbers and keys are random, so that nobody else can guess them. Where there is a secret (SOFTMRC_SECRET) and
packets leave the machine, they are sealed: each rank says its share of the keys, and proves with the secret what it
says; then whoever can only read or write the store, or the wire, is not trusted.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import os
import reprlib
import secrets
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softmrc import _core, reach, sealing
from softmrc._core import SealKeys
from softmrc.collectives.offer import Offer, check, read, strands_of
from softmrc.collectives.table import Table
from softmrc.collectives.work import CollectiveError, quietly
from softmrc.config import whole_payload
from softmrc.connection.arrange import SECRET, secret_of
from softmrc.errors import ConfigError
from softmrc.said import Nonsense, ends_of
from softmrc.sealing import Share, Told, proof_of
from softmrc.verbs import (
    CompletionQueue,
    Device,
    Peer,
    PeerPlane,
    ProtectionDomain,
    QueuePair,
    new_port_key,
    port_keys,
)
from softmrc.verbs.width import cores

VERSION = 4


def host() -> str:
    """The same for all processes of a machine, and another on the next one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


@dataclass
class Pairs:
    """The two queue pairs to one peer, on one strand."""

    messages: QueuePair
    bulk: QueuePair

    def destroy(self) -> None:
        self.messages.destroy()
        self.bulk.destroy()


@dataclass
class End:
    """This rank's end of one strand: in which lane it is, and what it has there for every peer."""

    lane: int
    pairs: dict[int, Pairs]
    port_keys: dict[int, int]


class Meeting:
    """One rank on its way into a group."""

    def __init__(
        self, store: Any, rank: int, size: int, device: Device, name: str, timeout_s: float, lanes: int, is_firm: bool
    ) -> None:
        """With so many strands at most; fewer where another rank has fewer, or, unless it `is_firm`, where ranks that
        share this host want the same processors."""
        self.name = name
        self.table = Table(store, name, rank, size, timeout_s)
        self.rank = rank
        self.size = size
        self.device = device
        self.timeout_s = timeout_s
        self._cores = 0 if is_firm else max(1, int(cores()))
        self._secret = secret_of(None)
        self._share = Share() if sealing.is_wanted(device, self._secret is not None) else None
        first: int = device._native.emptiest_lane()
        self.ends = [End((first + k) % device.lanes, {}, {}) for k in range(lanes)]
        self.cq: CompletionQueue = device.create_cq()
        self._places: dict[int, list[tuple[PeerPlane, ...]]] = {}  # by rank and strand
        self._nodes: list[Peer] = []
        self._told: dict[int, Told | None] = {}  # by rank: its share of the keys
        self.mtu = device.payload(self._share is not None)  # the smallest of all ranks'

    @property
    def pairs(self) -> dict[int, tuple[Pairs, ...]]:
        """The queue pairs to every peer, by strand."""
        return {peer: tuple(end.pairs[peer] for end in self.ends) for peer in self._others()}

    def meet(self, port: Any) -> Any:
        """The native group, connected to everybody."""
        lanes = [end.lane for end in self.ends]
        native = _core.CollectiveGroup(
            self.device._native, lanes, self.rank, self.size, self.cq.number, secrets.randbits(63), port
        )
        try:
            for peer in self._others():
                domain = ProtectionDomain(self.device, native.domain(peer))
                for end in self.ends:
                    both = (self.device.create_qp(self.cq, domain=domain, lane=end.lane) for _ in range(2))
                    end.pairs[peer] = Pairs(*both)
                    end.port_keys[peer] = new_port_key()
            if self.size > 1:
                said = self.table.agree(self._proved(json.dumps(self._offer(native))))
                offers = {peer: self._parsed(peer, said[peer]) for peer in self._others()}
                self._check_places()
                self.mtu = whole_payload(min(self.mtu, *(offer["mtu"] for offer in offers.values())))
                self._keep(native, strands_of([self._offer(native), *offers.values()]))
                for peer, offer in offers.items():
                    self._reach(native, peer, offer)
                if self._share is not None:
                    self._share.forget()
                self._share_cores(1 + sum(offer["host"] == host() for offer in offers.values()))
            native.start(self.mtu * _core.packets_a_train(self.mtu))
            if self.size > 1:
                self.table.ready()
                self._see_planes()
        except BaseException as error:
            why = str(error) or type(error).__name__
            quietly(lambda: self.table.give_up(why))
            native.close(0.0)
            for end in self.ends:
                for pairs in end.pairs.values():
                    pairs.destroy()
            self.leave()
            raise
        return native

    def _see_planes(self) -> None:
        """All have said where they are: see whether they answer there, plane by plane."""
        pairs = {peer: self.ends[0].pairs[peer].messages for peer in self._others()}
        for pause_s in reach.pauses(list(pairs.values()), min(reach.SILENT_S, self.timeout_s)):
            time.sleep(pause_s)
        for peer, pair in pairs.items():
            assert pair.peer is not None
            if words := reach.never_reached(pair, pair.peer):
                raise CollectiveError(f"rank {peer} {words}")
            reach.warn_of_silence(pair, pair.peer, f"rank {peer}")

    def _keep(self, native: Any, strands: int) -> None:
        """Those that all ranks have."""
        native.keep(strands)
        for end in self.ends[strands:]:
            for pairs in end.pairs.values():
                pairs.destroy()
        del self.ends[strands:]

    def leave(self) -> None:
        """Give back what the device kept for this group, whose queue pairs are gone."""
        self.cq.destroy()
        for node in self._nodes:
            self.device.remove_peer(node)

    def _share_cores(self, ranks_here: int) -> None:
        """Where ranks share cores, one that spins takes the time of another that it waits for."""
        if ranks_here * len(self.ends) > len(os.sched_getaffinity(0)):
            self.device._native.set_spin_us(0.0)

    def _others(self) -> list[int]:
        return [peer for peer in range(self.size) if peer != self.rank]

    def _offer(self, native: Any) -> dict[str, Any]:
        device = self.device
        return {
            "version": VERSION,
            "rank": self.rank,
            "byteorder": sys.byteorder,
            "size": self.size,
            "host": host(),
            "cores": self._cores,
            "mtu": device.payload(self._share is not None),
            "icrc": device.config.icrc,
            "sealed": self._share is not None,
            "seal": self._share and self._share.told(),
            "max_wimm": device.config.max_wimm,
            "mpr": device.config.mpr,
            "strands": [self._offered(native, number, end) for number, end in enumerate(self.ends)],
        }

    def _offered(self, native: Any, number: int, end: End) -> dict[str, Any]:
        return {
            "planes": [plane.told() for plane in self.device.reached_at(end.lane)],
            "peers": {
                str(peer): {
                    "messages": [pairs.messages.qpn, pairs.messages.first_psn],
                    "bulk": [pairs.bulk.qpn, pairs.bulk.first_psn],
                    "ring": native.ring_rkey(number, peer),
                    "port_key": end.port_keys[peer],
                }
                for peer, pairs in end.pairs.items()
            },
        }

    def _parsed(self, peer: int, text: str) -> Offer:
        alike = {
            "version": VERSION,
            "byteorder": sys.byteorder,
            "size": self.size,
            "icrc": self.device.config.icrc,
            "sealed": self._share is not None,
        }
        try:
            offer = self._opened(peer, text)
            self._compare(peer, offer, alike)
            self._told[peer] = Told.parse("seal", offer.get("seal"))
            if self._share is not None and self._told[peer] is None:
                raise Nonsense("seal", offer.get("seal"), "its share of the keys")
            self._places[peer] = check(offer, peer, self.rank)
        except Nonsense as error:
            raise CollectiveError(f"rank {peer}: {self.table.key('says', peer)} makes no sense: {error}") from None
        mine = [plane.address for plane in self.device.local_planes]
        for places in self._places[peer]:
            addresses = [plane.address for plane in places]
            self._compare(peer, {"number of planes": len(addresses)}, {"number of planes": len(mine)})
            self._compare(
                peer, {"planes of IP": [a.version for a in addresses]}, {"planes of IP": [a.version for a in mine]}
            )
        return offer

    def _about(self, rank: int) -> str:
        return f"{self.table.key('says', rank)} of {self.size}"

    def _proved(self, words: str) -> str:
        """Our offer, and with it that we know the secret, where packets are sealed."""
        if self._share is None or self._secret is None:
            return words
        return json.dumps({"proof": proof_of(self._secret, self._about(self.rank), words), "words": words})

    def _opened(self, peer: int, text: str) -> Offer:
        """A rank's offer. Who seals proves it; who does not, says so, and that is compared."""
        offer = read(text)
        words, proof = offer.get("words"), offer.get("proof")
        if self._share is None or self._secret is None:
            return read(words) if isinstance(words, str) else offer
        if not isinstance(words, str) or not isinstance(proof, str) or not proof.isascii():
            self._compare(peer, offer, {"sealed": True})
            raise Nonsense("the offer", text, "words, and a proof of them")
        if not hmac.compare_digest(proof, proof_of(self._secret, self._about(peer), words)):
            raise CollectiveError(
                f"rank {peer} does not know the secret; set {SECRET} alike ({self.table.key('says', peer)})"
            )
        return read(words)

    def _compare(self, peer: int, its: Offer, mine: Offer) -> None:
        for key, value in mine.items():
            if type(its.get(key)) is not type(value) or its[key] != value:  # true is not 1
                where, what = self.table.key("says", peer), reprlib.repr(its.get(key))
                raise CollectiveError(
                    f"rank {peer} has {key} {what}, rank {self.rank} has {value}; set them alike ({where})"
                )

    def _check_places(self) -> None:
        """No two ranks are in one place, and none is where we are: one would get what is meant for the other."""
        taken = {at: self.rank for end in self.ends for at in ends_of(self.device.reached_at(end.lane))}
        for peer, strands in self._places.items():
            for address, port in [at for planes in strands for at in ends_of(planes)]:
                if (other := taken.setdefault((address, port), peer)) != peer:
                    where = self.table.key("says", peer)
                    raise CollectiveError(
                        f"rank {peer} is said to be at {ipaddress.ip_address(address)} port {port}, "
                        f"where rank {other} is ({where})"
                    )

    def _reach(self, native: Any, peer: int, offer: Offer) -> None:
        try:
            self._connect(native, peer, offer)
        except (ConfigError, Nonsense, TypeError) as error:  # numbers that fit their field and not each other
            where = self.table.key("says", peer)
            raise CollectiveError(f"rank {peer} cannot be reached as {where} says: {error}") from None

    def _keys(self, peer: int, pair: QueuePair, their_qpn: int) -> SealKeys | None:
        told = self._told[peer]
        if self._share is None or told is None:
            return None
        salt = f"softmrc group {self.table.key('says', 0)}".encode()
        return self._share.keys(told, self._secret or b"", salt, self.rank < peer, pair.qpn, their_qpn)

    def _connect(self, native: Any, peer: int, offer: Offer) -> None:
        device, config = self.device, self.device.config
        for number, end in enumerate(self.ends):
            node = device.add_peer(list(self._places[peer][number]))
            self._nodes.append(node)
            mine, pairs = offer["strands"][number]["peers"][str(self.rank)], end.pairs[peer]
            for pair, (qpn, first_psn) in ((pairs.messages, mine["messages"]), (pairs.bulk, mine["bulk"])):
                pair.init(ev_profile=device.profile_for(node))
                keys = port_keys(end.port_keys[peer], mine.get("port_key", 0))
                seal = self._keys(peer, pair, qpn)
                pair.rtr(node, dest_qpn=qpn, first_psn=first_psn, mtu=self.mtu, seal=seal, **keys)
                pair.rts(max_wimm=min(config.max_wimm, offer["max_wimm"]), mpr=min(config.mpr, offer["mpr"]))
            native.connect(number, peer, pairs.messages.qpn, pairs.bulk.qpn, mine["ring"])
