"""Whether full packets get through to a peer, plane by plane, and what does where they do not.

Links at both ends may carry 9,000 bytes and a switch between them 1,500: then questions and answers, which are short,
get through, and data does not. So packets of several sizes are sent when two sides meet, which the other side answers
with packets as long. Where full packets are lost on all planes, or on more than half of them, packets are made smaller,
as far as they have to be for every plane that answers; else the others carry on, and a warning names those that do not.

A size counts as lost on a plane when smaller ones were answered several times over, each sent at the same moment.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from softmrc._core import LONGEST_PACKET_OVERHEAD, LONGEST_SEALED_OVERHEAD
from softmrc.config import whole_payload
from softmrc.config.planes import SMALLEST_MTU, UDP_BYTES
from softmrc.connection.path_check import few
from softmrc.device import Device
from softmrc.device.peer import PeerPlane

log = logging.getLogger(__name__)

# Payloads that are tried below the full one: of links of 9,000, 4,500 and 1,500 bytes, of tunnels over the latter, and
# of what IPv6 asks of every link.
STEPS = (8192, 4096, 2048, 1408, 1280, 1152, 1024, SMALLEST_MTU)
MAX_ROUNDS = 9
SILENT_ROUNDS = 5  # after so many without any answer none is expected
LOST_AFTER = 5  # rounds in which less was answered
GRACE_S = 0.05  # for the other planes once one has answered, and three times as long as that one took
FIRST_ROUND_S, LONGEST_ROUND_S = 0.02, 0.2
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.0005, 0.01


@dataclass(frozen=True)
class PlaneMtu:
    """What one plane carries."""

    plane: int
    payload: int  # of the largest packets that were answered; 0: none was
    is_sure: bool  # that larger ones are lost


class MtuDiscovery:
    """Of one peer, whose packets this device takes already, and which takes ours."""

    def __init__(self, device: Device, lane: int, planes: Sequence[PeerPlane], payload: int, is_sealed: bool) -> None:
        self._device, self._lane, self._planes, self.full = device, lane, planes, payload
        self._around = LONGEST_SEALED_OVERHEAD if is_sealed else LONGEST_PACKET_OVERHEAD
        self._payloads = [payload, *(step for step in STEPS if step < payload)]
        self._rounds: list[int] = []
        self.found: list[PlaneMtu] = []  # by plane; empty where none was probed

    def pauses(self, silent_rounds: int = SILENT_ROUNDS, until: float = math.inf) -> Iterator[float]:
        """How long to wait before looking again; ends when all is known that can be, after so many rounds in which
        nothing was answered at all, or at that moment of `time.monotonic`. Planes that do not even answer the smallest
        packets are waited for a little after the first that does."""
        native = self._device.native
        if not self._is_wanted():
            return
        places = [plane.native() for plane in self._planes]
        pause_s, began, first_s = SHORTEST_PAUSE_S, time.monotonic(), math.inf
        try:
            for number in range(MAX_ROUNDS):
                if number >= silent_rounds and not self.has_answer:
                    break
                self._rounds.append(native.survey_sizes(self._lane, places))
                some = self._payloads if number else [self._payloads[0], self._payloads[-1]]
                # First the smallest goes first: no plane is to look silent because the largest took its time. Then by
                # turns: a peer whose sockets are full may answer only the first of a round, or only the last, and what
                # it has no room to answer must not look lost.
                sizes = sorted((payload + self._around for payload in some), reverse=number % 2 == 1)
                native.ask_sizes(self._lane, self._rounds[-1], sizes)
                ends_at = time.monotonic() + min(FIRST_ROUND_S * (1 << number), LONGEST_ROUND_S)
                while (now := time.monotonic()) < min(ends_at, until):
                    self._look()
                    if self.has_answer:
                        first_s = min(first_s, now - began)
                    if self._is_over(is_late=now - began > 4 * first_s + GRACE_S):
                        return
                    yield min(pause_s, until - now)
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                if now >= until:
                    break
            self._look()
        finally:
            for one in self._rounds:
                native.end_survey(self._lane, one)

    def _is_over(self, is_late: bool) -> bool:
        """Whether all is known of the planes that answer; once it is late, of those that answer at all."""
        up = [one for one in self.found if self._is_up(one.plane)]
        return all(self._is_known(one) or (is_late and not one.payload) for one in up)

    def _is_wanted(self) -> bool:
        """Loopback carries its MTU, unless a fault is injected; and an SRv6 path is no route to the address of its
        end."""
        device = self._device
        if device.has_routes:
            return False
        is_broken = any(device.native.faults(plane).mtu for plane in range(len(device.local_planes)))
        return is_broken or not device.stays_here

    def _look(self) -> None:
        native = self._device.native
        heard = [native.sizes_answered(self._lane, one) for one in self._rounds]
        self.found = []
        for plane in range(len(self._planes)):
            sizes = [row[plane] for row in heard if row and row[plane]]
            payload = whole_payload(max(sizes) - self._around) if sizes else 0
            # The first round asks for nothing between the largest and the smallest.
            self.found.append(PlaneMtu(plane, payload, payload < self.full and len(sizes) >= LOST_AFTER))

    def _is_known(self, one: PlaneMtu) -> bool:
        return one.payload >= self.full or one.is_sure

    def _is_up(self, plane: int) -> bool:
        return bool(self._device.planes()[plane]["is_up"])

    def bytes_of(self, plane: int, payload: int) -> int:
        """A packet with this payload, as IP counts."""
        return payload + self._around + UDP_BYTES + (20 if self._planes[plane].address.version == 4 else 40)

    @property
    def has_answer(self) -> bool:
        return any(one.payload for one in self.found)

    @property
    def narrow(self) -> list[PlaneMtu]:
        """The planes that lose full packets."""
        return [one for one in self.found if one.is_sure]

    @property
    def payload(self) -> int:
        """What full packets are to carry."""
        narrow = self.narrow
        wide = [one for one in self.found if one.payload >= self.full]
        return self.full if len(wide) >= len(narrow) else min(one.payload for one in narrow)

    def note(self, name: str) -> None:
        """For `softmrc ctl planes`, and a warning of each plane that loses full packets and was not known to."""
        device, chosen, now = self._device, self.payload, time.monotonic()
        for one in self.found:
            if not self._is_known(one):
                continue
            carried = self.bytes_of(one.plane, one.payload) if one.is_sure else 0
            is_news = device.narrow_paths.note(one.plane, self._planes[one.plane].address, carried, now)
            device.native.set_path_mtu(one.plane, device.narrow_paths.carried(one.plane))
            if is_news:
                local = device.local_planes[one.plane]
                log.warning("%s: %s", name, self.words(one, local.link, local.link_mtu, chosen))

    def lost_now(self) -> str:
        """Of a peer that no longer confirms what it is sent: the planes where full packets are lost and others are not.
        Empty where there are none. It takes a moment: what a path carries may have changed since the two met."""
        for pause_s in self.pauses(silent_rounds=2):
            time.sleep(pause_s)
        sizes = [
            f"packets of {self.bytes_of(one.plane, self.full):,} bytes are lost on plane {one.plane}, and those of "
            f"{self.bytes_of(one.plane, one.payload):,} get through"
            for one in self.narrow
        ]
        return f"look at the MTU of the path, and start again: {few(sizes)}" if sizes else ""

    def words(self, one: PlaneMtu, link: str, link_mtu: int, chosen: int) -> str:
        there = self._planes[one.plane].address
        where = f"plane {one.plane} ({link}, MTU {link_mtu:,})" if link else f"plane {one.plane}"
        lost, passes = self.bytes_of(one.plane, self.full), self.bytes_of(one.plane, one.payload)
        if chosen < self.full:
            what = f"using {self.bytes_of(one.plane, chosen):,}"
        else:
            what = f"those of {passes:,} do; the other planes carry on with {lost:,}"
        return (
            f"{where}: packets of {lost:,} bytes do not reach {there}; {what}. "
            f"Look at the MTU of the switches between, or set the links' to what they carry"
        )
