"""How ranks find each other: each publishes in a store how it is reached, and reads the list of all records.

A rank connects to the next rank only, to test the planes. Every rank reserves queue pair numbers and ring keys and
publishes them. Both ends of a connection compute the rest from common values when one of them first sends
(`core/collectives/group_directory.h`). Until then a rank costs another one table entry.

Without a secret every process that can write to the store is trusted, as torch trusts its own: it hands out memory
keys. Reserved values are drawn at random, and the rest follows from random tokens, so that outsiders cannot guess them.
With a secret (SOFTMRC_SECRET) each rank authenticates every record, wherever the ranks are. A process that can only
read or write the store cannot become a rank, nor make ranks believe that they share a host. Packets that leave the
machine are then encrypted as well, unless `seal` is "off". Each rank publishes its share of the keys; a group that
cannot encrypt does not form.
"""

from __future__ import annotations

import functools
import ipaddress
import logging
import os
import reprlib
import secrets
import time
from dataclasses import dataclass
from typing import Any

from softmrc import _core
from softmrc.collectives import shm
from softmrc.collectives.rank_info import (
    ChannelInfo,
    Offer,
    RankInfo,
    are_sure,
    are_together,
    channels_of,
    check,
    is_final,
    parse_channels,
)
from softmrc.collectives.store_rendezvous import RendezvousRestarted, StoreRendezvous
from softmrc.collectives.work import CollectiveError, suppress_errors
from softmrc.config import RtrAttributes, RtsAttributes, to_native, whole_payload
from softmrc.config.planes import SMALLEST_MTU
from softmrc.connection import keys as sealing
from softmrc.connection import path_check
from softmrc.connection.bootstrap import SECRET
from softmrc.connection.keys import KeyShare, PeerEncryption
from softmrc.connection.path_mtu import MtuDiscovery
from softmrc.connection.validate import ProtocolError, socket_addresses
from softmrc.device import CompletionQueue, Device, Peer, ProtectionDomain, QueuePair
from softmrc.device.checks import whole
from softmrc.device.width import cores, processes_here
from softmrc.errors import ConfigError

log = logging.getLogger(__name__)
SEEN_EVERY_S = 0.005
UNREACHED = "another process has its address, or only one of its other connections and this group is encrypted"
SET_BY = {"sealed": f"{SECRET} and `seal`", "number of planes": "SOFTMRC_PLANES", "planes of IP": "SOFTMRC_PLANES"}
SPOKEN_TO = "a rank of an earlier run sent to this rank while it joined; join again"
Found = dict[int, tuple[Offer, list[ChannelInfo]]]  # by rank, how the others are reached


@dataclass
class PeerQueuePairs:
    """The two queue pairs to one peer, on one channel."""

    messages: QueuePair
    bulk: QueuePair


@functools.lru_cache(1)
def _say_unsealed() -> None:
    """Once: without a secret ranks may meet anywhere, where `connect` would refuse to."""
    log.warning(
        "packets between ranks are not encrypted on planes that leave the machine: others can read and forge them;"
        " set %s alike for all ranks to encrypt them, or seal = 'off' to keep it so without this warning", SECRET,
    )  # fmt: skip


def _in_words(key: str, value: Any) -> str:
    """What a rank has, or says to have, which may be anything."""
    if key == "sealed" and isinstance(value, bool):
        return "encrypts its packets" if value else "does not encrypt its packets"
    if key == "number of planes":
        return f"has {value} plane{'s' * (value != 1)}"
    return f"has {key} {reprlib.repr(value)}"


def cores_to_share(is_firm: bool) -> int:
    """What the record of a rank says: 0 where it says itself how many channels it has."""
    return 0 if is_firm else max(1, int(cores()))


class NotLocal(Exception):
    """Not all ranks are where this one took them to be; it may go on in this rendezvous with another device."""


class GroupJoin:
    """One rank on its way into a group."""

    def __init__(
        self,
        rendezvous: StoreRendezvous,
        rank: int,
        size: int,
        device: Device,
        timeout_s: float,
        lanes: int,
        is_firm: bool,
        is_guess: bool = False,
    ) -> None:
        """With so many channels at most; fewer where another rank has fewer, or, unless it `is_firm`, where ranks that
        share this host want the same processors. They may have joined the rendezvous already. Where the device
        `is_guess`, it is for the case that all of them are on this host."""
        self.name = rendezvous.name
        self.rendezvous = rendezvous
        self.rank = rank
        self.size = size
        self.device = device
        self._timeout_s = timeout_s
        self._most_lanes = lanes
        self._is_guess = is_guess
        self._secret = rendezvous.shared_secret
        self._share = KeyShare() if sealing.is_wanted(device, self._secret is not None) else None
        self._cores = cores_to_share(is_firm)
        self._memory = shm.memory_of_this_process() if shm.is_wanted(device) else ""
        self._side_by_side = 1
        self._is_sure = False  # that all ranks reach each other
        self._seen_until = 0.0
        self.lanes: list[int] = []  # of the device, by channel
        self.cq: CompletionQueue = device.create_cq()
        self._expected: list[tuple[int, int]] = []  # lanes, and places there
        self._said_in = "record"  # where each rank says how it is reached
        self._shares: dict[int, PeerEncryption | None] = {}  # of the keys, by rank
        self._places: dict[int, list[ChannelInfo]] = {}  # of the others
        self.mtu = device.payload(self._share is not None)  # the smallest of all ranks'

    def meet(self, port: Any) -> Any:
        """The native group, which knows of everybody."""
        native = None
        try:
            native = self._make(port)
            if self.size == 1:
                self._start(native)
            else:
                self._join(native)
                if self.rank == 0 and self._leaves_unsealed():
                    _say_unsealed()
        except BaseException as error:
            why, linger_s = str(error) or type(error).__name__, None if isinstance(error, Exception) else 0.0
            if not isinstance(error, NotLocal):
                suppress_errors(lambda: self.rendezvous.give_up(why, linger_s))
            if native is not None:
                native.close(0.0)
            self.leave()
            raise
        return native

    def _leaves_unsealed(self) -> bool:
        """Whether packets leave the machine unencrypted although no setting allows it."""
        return self._share is None and self.device.config.seal == "auto" and not self.device.stays_here

    def _make(self, port: Any) -> Any:
        """With as many channels as this rank may have; others may have fewer."""
        first = self.device.native.emptiest_lane()
        self.lanes = [(first + k) % self.device.lanes for k in range(self._likely_channels())]
        homes = [(lane, *self.device.profiles_of(lane)) for lane in self.lanes]
        number, seed = self.cq.number, secrets.randbits(63)
        return _core.CollectiveGroup(self.device.native, homes, self.rank, self.size, number, seed, port)

    def _likely_channels(self) -> int:
        """By what the others said; before that is known, by the ranks that are on this host in all likelihood."""
        if self.rendezvous.records:
            return min(self._most_lanes, channels_of(self.infos()))
        here = processes_here(unless_said=self.size if self.device.stays_here else 1)
        return max(1, min(self._most_lanes, self._cores // here if self._cores else self._most_lanes))

    def _join(self, native: Any) -> None:
        kept = zip(self.lanes, native.reserve(), strict=True)
        mine = [ChannelInfo(self.device.reached_at(lane), *numbers) for lane, numbers in kept]
        while True:
            try:
                self._take_part(native, mine)
                break
            except RendezvousRestarted:
                self._forget()
                if not native.stop():
                    raise CollectiveError(SPOKEN_TO) from None
        if self._share is not None:
            self._share.forget()
        if not self._is_sure:
            self._agree_on_size(native)
            self._seen_until = time.monotonic() + path_check.SILENT_S
            self._see_planes(native)

    def infos(self) -> list[RankInfo]:
        """The records of all ranks."""
        return RankInfo.from_wire(self.rendezvous.records, self._where)

    def _take_part(self, native: Any, mine: list[ChannelInfo]) -> None:
        """Until all ranks are ready. Their records say how they are reached, unless some have to know first whether
        all are on one host; then they say it in another exchange."""
        self._said_in = "record"
        if not self.rendezvous.records:
            self.rendezvous.join(self._info(mine))
        infos = self.infos()
        if not is_final(infos):
            if self._is_guess and not are_together(infos):
                raise NotLocal
            self._narrow(native, mine, channels_of(infos))
            self._said_in = "places"
            infos = RankInfo.from_wire(self.rendezvous.exchange("places", self._info(mine)), self._where)
        found = {peer: self._parsed(peer, infos[peer].offer or {}) for peer in self._others()}
        self._check_places({self.rank: mine, **{peer: channels for peer, (_, channels) in found.items()}})
        self._narrow(native, mine, min(channels_of(infos), *(len(its) for _, its in found.values())))
        self._learn(native, mine, found)
        self._is_sure = are_sure(infos)
        self._share_cores(sum(one.host == infos[self.rank].host for one in infos))
        self._start(native)
        self.rendezvous.be_ready()

    def _info(self, mine: list[ChannelInfo]) -> str:
        lanes = 0 if self._is_guess and self._cores else self._most_lanes  # another device may have others
        is_sure = self.device.stays_here and not self.device.env_faults and self._share is None
        offer = self._offer(mine)
        info = RankInfo.own(self._cores, lanes, is_guess=self._is_guess, is_sure=is_sure, offer=offer)
        return info.to_wire(self.rank, self.size)

    def _agree_on_size(self, native: Any) -> None:
        """All ranks are ready and none has sent data. Each rank finds which packet sizes get through to the next one;
        where full packets do not, all ranks reduce the size before they send."""
        peer = (self.rank + 1) % self.size
        survey = MtuDiscovery(
            self.device, self.lanes[0], self._places[peer][0].planes, self.mtu, self._share is not None
        )
        for pause_s in survey.pauses():
            time.sleep(pause_s)
        survey.note(f"rank {peer}")
        texts = self.rendezvous.exchange("sizes", str(survey.payload))
        try:
            sizes = [whole(self.rendezvous.key("sizes", rank), int(text), 16) for rank, text in enumerate(texts)]
        except (ValueError, ConfigError) as error:
            raise CollectiveError(f"a rank published an invalid packet size: {error}") from None
        if (payload := max(min(sizes), SMALLEST_MTU)) >= self.mtu:
            return
        self.mtu = whole_payload(payload)
        if not native.stop():
            raise CollectiveError(SPOKEN_TO)
        self._set_terms(native)
        self._start(native)
        self.rendezvous.exchange("narrowed", "")

    def _narrow(self, native: Any, mine: list[ChannelInfo], channels: int) -> None:
        if channels < len(mine):
            native.narrow(channels)
            del mine[channels:], self.lanes[channels:]

    def _start(self, native: Any) -> None:
        native.start(self.mtu * _core.packets_a_train(self.mtu), self._side_by_side)

    def pairs_of(self, native: Any, peer: int) -> tuple[PeerQueuePairs, ...]:
        """The queue pairs to a peer, on the channels where something was said."""
        domain = ProtectionDomain(self.device, native.domain(peer))
        return tuple(
            PeerQueuePairs(*(QueuePair(self.device, qpn, self.cq, self.cq, domain) for qpn in both))
            for both in native.pairs(peer)
        )

    def _see_planes(self, native: Any) -> None:
        """All ranks have published their addresses: test whether they answer there, plane by plane. Each rank probes
        the next one, so every plane of every rank is tested and no rank waits for all."""
        peer = (self.rank + 1) % self.size
        path_check.warn_of_links(self.device)
        if native.connect_now(0, peer, path_check.GRACE_S):
            return
        pairs = self.pairs_of(native, peer)
        if not pairs:
            raise CollectiveError(native.error or f"rank {peer} cannot be reached: {UNREACHED}")
        pair = pairs[0].messages
        for pause_s in path_check.pauses([pair], min(path_check.SILENT_S, self._timeout_s)):
            time.sleep(pause_s)
        node = Peer(0, self._places[peer][0].planes)
        if words := path_check.never_reached(pair, node):
            raise CollectiveError(f"rank {peer} {words}")
        path_check.warn_of_silence(pair, node, f"rank {peer}")

    def tried(self, peer: int) -> str:
        """What an error says of a rank that stopped answering; empty for one whose record this rank has not read."""
        if peer not in self._places or self.device.is_closed:
            return ""
        planes = self._places[peer][0].planes
        survey = MtuDiscovery(self.device, self.lanes[0], planes, self.mtu, self._share is not None)
        return survey.lost_now() or path_check.tried(self.device, planes)

    def wait_to_be_seen(self, native: Any) -> None:
        """The previous rank may not have tested yet whether this one answers: a rank that leaves at once must not look
        as if it had never been there."""
        before = (self.rank - 1) % self.size
        while self.size > 1 and time.monotonic() < self._seen_until and not native.error and not native.pairs(before):
            time.sleep(SEEN_EVERY_S)

    def leave(self) -> None:
        """Give back what the device kept for this group, whose queue pairs are gone."""
        self.cq.destroy()
        self.device.set_spinning(self, is_wanted=True)
        self._forget()

    def _forget(self) -> None:
        for lane, place in self._expected:
            self.device.native.forget_peer(lane, place)
        self._expected.clear()

    def _share_cores(self, ranks_here: int) -> None:
        """Stop spinning where ranks share cores, as it takes time from the rank that is waited for, or where many ranks
        leave no core to other processes. Two ranks gain from spinning."""
        cores = len(os.sched_getaffinity(0))
        if ranks_here * len(self.lanes) > cores or ranks_here >= max(cores, 3):
            self.device.set_spinning(self, is_wanted=False)

    def _others(self) -> list[int]:
        return [peer for peer in range(self.size) if peer != self.rank]

    def _offer(self, channels: list[ChannelInfo]) -> Offer:
        device = self.device
        return {
            "memory": self._memory,
            "mtu": device.payload(self._share is not None),
            "icrc": device.config.icrc,
            "sealed": self._share is not None,
            "seal": self._share and self._share.to_wire(),
            "max_wimm": device.config.max_wimm,
            "mpr": device.config.mpr,
            "channels": [channel.to_wire() for channel in channels],
        }

    def _where(self, peer: int) -> str:
        """Under which key a rank says how it is reached."""
        return self.rendezvous.key(self._said_in, peer)

    def _parsed(self, peer: int, offer: Offer) -> tuple[Offer, list[ChannelInfo]]:
        where = self._where(peer)
        try:
            self._compare(peer, offer, {"icrc": self.device.config.icrc, "sealed": self._share is not None}, where)
            self._shares[peer] = PeerEncryption.parse("seal", offer.get("seal"))
            if self._share is not None and self._shares[peer] is None:
                raise ProtocolError("seal", offer.get("seal"), "its share of the keys")
            check(offer)
            channels = parse_channels(offer, self.size)
        except ProtocolError as error:
            raise CollectiveError(f"rank {peer}: {where} makes no sense: {error}") from None
        self._compare_planes(peer, channels, where)
        return offer, channels

    def _compare(self, peer: int, its: Offer, mine: Offer, where: str) -> None:
        for key, value in mine.items():
            if type(its.get(key)) is not type(value) or its[key] != value:  # true is not 1
                said = f"rank {peer} {_in_words(key, its.get(key))}, rank {self.rank} {_in_words(key, value)}"
                raise CollectiveError(f"{said}; set {SET_BY.get(key, 'them')} alike ({where})")

    def _learn(self, native: Any, mine: list[ChannelInfo], found: Found) -> None:
        """Where everybody is, and what it keeps for us."""
        self._places = {peer: channels for peer, (_, channels) in found.items()}
        memories = {self.rank: self._memory, **{peer: offer["memory"] for peer, (offer, _) in found.items()}}
        self._side_by_side = shm.share_memory_pairs([memories[rank] for rank in range(self.size)])
        self.mtu = whole_payload(
            min(self.device.payload(self._share is not None), *(offer["mtu"] for offer, _ in found.values()))
        )
        self._set_terms(native)
        for peer, (offer, channels) in found.items():
            its = channels[: len(mine)]
            try:
                at = self._know(native, peer, offer, its)
                self._seal(peer, at, mine, its)
            except (ConfigError, ProtocolError, TypeError) as error:  # numbers that fit their field and not each other
                raise CollectiveError(f"rank {peer} cannot be reached as {self._where(peer)} says: {error}") from None

    def _set_terms(self, native: Any) -> None:
        """What every queue pair of the group is made with."""
        config = self.device.config
        key = int.from_bytes(self.rendezvous.secret[:8]), int.from_bytes(self.rendezvous.secret[8:16])
        receiving = RtrAttributes(mtu=self.mtu, mpr_dest=config.mpr, max_wimm_dest=config.max_wimm)
        native.set_params(key, to_native(receiving), to_native(RtsAttributes(**config.sending())))

    def _compare_planes(self, peer: int, channels: list[ChannelInfo], where: str) -> None:
        mine = [plane.address.version for plane in self.device.local_planes]
        for channel in channels:
            its = [plane.address.version for plane in channel.planes]
            if its != mine:
                self._compare(peer, {"number of planes": len(its)}, {"number of planes": len(mine)}, where)
                self._compare(peer, {"planes of IP": its}, {"planes of IP": mine}, where)
            if self._secret is None or self._share is not None or self.device.config.seal != "auto":
                continue
            if away := [str(plane.address) for plane in channel.planes if not plane.address.is_loopback]:
                raise CollectiveError(
                    f"rank {peer} is at {away[0]}, off this machine, where packets are encrypted; rank {self.rank} has"
                    f" planes on loopback alone, where they are not: set {SET_BY['number of planes']} alike ({where})"
                )

    def _check_places(self, found: dict[int, list[ChannelInfo]]) -> None:
        """No two ranks are in one place, and none is where we are: one would get what is meant for the other."""
        taken: dict[tuple[bytes, int], int] = {}
        for peer, channels in found.items():
            for address, port in [at for channel in channels for at in socket_addresses(channel.planes)]:
                if (other := taken.setdefault((address, port), peer)) != peer:
                    raise CollectiveError(
                        f"rank {peer} is said to be at {ipaddress.ip_address(address)} port {port}, "
                        f"where rank {other} is ({self._where(peer)})"
                    )

    def _know(self, native: Any, peer: int, offer: Offer, channels: list[ChannelInfo]) -> list[int]:
        """By which numbers the lanes know its places."""
        device, config = self.device, self.device.config
        expected = [device.expect_peer(lane, one.planes) for lane, one in zip(self.lanes, channels, strict=True)]
        at = [place for place, _ in expected]
        self._expected += zip(self.lanes, at, strict=True)
        paths, denied = expected[0][1]  # they lead to addresses, which are the same on all channels
        mpr, max_wimm = min(config.mpr, offer["mpr"]), min(config.max_wimm, offer["max_wimm"])
        kept = [one.kept for one in channels]
        is_neighbour = self._memory != "" and offer["memory"] == self._memory
        native.set_peer(peer, at, kept, mpr, max_wimm, to_native(paths) if paths else None, denied, is_neighbour)
        return at

    def _seal(self, peer: int, at: list[int], mine: list[ChannelInfo], its: list[ChannelInfo]) -> None:
        """Give the lanes the keys of future queue pairs, where packets are encrypted. The keys are consumed when either
        end first sends; their input is erased before."""
        share = self._shares[peer]
        if self._share is None or share is None:
            return
        salt, secret = f"softmrc group {self.rendezvous.key('record', 0)}".encode(), self._secret or b""
        for lane, place, here, there in zip(self.lanes, at, mine, its, strict=True):
            for use in range(2):
                ours, theirs = here.qpn(peer, use), there.qpn(self.rank, use)
                keys = self._share.keys(share, secret, salt, self.rank < peer, ours, theirs)
                self.device.native.expect_seal(lane, place, ours, theirs, keys)
