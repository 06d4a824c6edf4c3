"""Why an operation was slow: from the recordings of the ranks that took part, in one sentence.

First who came late, then what the network did. Times are the ranks' own clocks: on one machine they agree, on several
they must be kept in step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from softmrc.collectives.block import CollectiveKind
from softmrc.collectives.ring_file import INTERVAL_S, PathEvent, Recording
from softmrc.errors import UsageError

SLOW_SHARE, SLOW_S = 1.25, 0.002  # beyond the usual time, to be worth a word
MAX_OF_IT = 0.5  # a cause explains at least so much of the delay
LATER_S = 0.4  # until then it shows what had arrived all the same, and what never came back
NEARLY_ALL, STARVED_S = 0.8, 0.03  # who had no processor also answers late, and is sent to again
AROUND_S = 0.05  # samples lie apart: what happened a little later may still have been noted
SILENT_SAMPLES = 3  # in a row without a byte, and a plane is silent
MAX_BEFORE = 8  # operations that are looked back at


class Cause(StrEnum):
    NOTHING = "nothing"  # it was not slow
    LATE = "late"  # a rank came late
    PROCESSOR = "processor"  # a rank had no processor
    DEAD = "dead"  # a plane fell silent
    LOSSY = "lossy"  # packets were lost and retransmitted
    SLOW = "slow"  # a plane held up the others
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Explanation:
    """One operation and why it took so long."""

    number: int
    kind: str
    took_s: float
    usual_s: float
    cause: Cause
    words: str
    rank: int = -1
    plane: int = -1
    peer: int = -1
    lost_s: float = 0.0  # beyond the usual, less what an operation before it is to blame for

    def __str__(self) -> str:
        head = f"{self.kind} {self.number} took {in_ms(self.took_s)}, usually {in_ms(self.usual_s)}"
        return f"{head}: {self.words}" if self.words else head


@dataclass(frozen=True)
class _Row:
    """One operation as all ranks saw it."""

    number: int
    kind: int
    bytes: int
    begun: np.ndarray  # by place among the ranks whose recordings are here; NaN where its recording does not know
    ended: np.ndarray

    @cached_property
    def first(self) -> float:
        return float(np.nanmin(self.begun))

    @property
    def last(self) -> int:
        """The place of the rank that came last."""
        return int(np.nanargmax(self.begun))

    @cached_property
    def last_came(self) -> float:
        return float(np.nanmax(self.begun))

    @cached_property
    def end(self) -> float:
        return float(np.nanmax(self.ended))

    @property
    def spans(self) -> tuple[float, float, float]:
        """From the first call to the end, from the last call to the end, from first to last."""
        return self.end - self.first, self.end - self.last_came, self.last_came - self.first


class Explainer:
    """The recordings of one group's ranks."""

    def __init__(self, recordings: Sequence[Recording]) -> None:
        if not recordings:
            raise UsageError("no flight recording found; SOFTMRC_RECORD=1 makes ranks keep one")
        self._recordings = {one.owner.rank: one for one in recordings}
        if len(self._recordings) < len(recordings):
            raise UsageError("two recordings are of the same rank; name those of one run")
        self._ranks = sorted(self._recordings)
        self._rows = self._joined()
        self._usual = self._medians()
        self._by_number = {row.number: row for row in self._rows}

    def _joined(self) -> list[_Row]:
        size = len(self._ranks)
        found: dict[int, _Row] = {}
        for place, rank in enumerate(self._ranks):
            recording = self._recordings[rank]
            for one in recording.operations[recording.operations["ended"] > 0]:
                number = int(one["number"])
                if number not in found:
                    empty = (np.full(size, np.nan), np.full(size, np.nan))
                    found[number] = _Row(number, int(one["kind"]), int(one["bytes"]), *empty)
                found[number].begun[place], found[number].ended[place] = one["begun"], one["ended"]
        return [found[number] for number in sorted(found)]

    def _medians(self) -> dict[tuple[int, int], tuple[float, float, float]]:
        """The spans of operations of each kind and size, as they are usually."""
        spans: dict[tuple[int, int], list[tuple[float, float, float]]] = {}
        for row in self._rows:
            spans.setdefault((row.kind, row.bytes), []).append(row.spans)
        medians = {alike: np.median(np.array(found), axis=0) for alike, found in spans.items()}
        return {alike: (float(one[0]), float(one[1]), float(one[2])) for alike, one in medians.items()}

    def slow(self) -> list[Explanation]:
        """A verdict on every operation that took longer than usual, in their order."""
        return [verdict for row in self._rows if (verdict := self._judge(row)).cause is not Cause.NOTHING]

    def explain(self, number: int | None = None) -> Explanation:
        """A verdict on one operation; without a number, on the one that lost most time."""
        if number is None:
            if not self._rows:
                raise UsageError("the recordings hold no operation that has ended")
            return worst([self._judge(row) for row in self._rows])
        if number in self._by_number:
            return self._judge(self._by_number[number])
        known = f"{self._rows[0].number} to {self._rows[-1].number}" if self._rows else "none"
        raise UsageError(f"the recordings do not know operation {number}; they know {known}")

    def _judge(self, row: _Row, depth: int = 0) -> Explanation:
        usual, usual_after, usual_apart = self._usual[row.kind, row.bytes]
        took = row.end - row.first
        excess = took - usual
        name = CollectiveKind(row.kind).name.lower() if row.kind in list(CollectiveKind) else str(row.kind)
        if took < SLOW_SHARE * usual or excess < SLOW_S:
            return Explanation(row.number, name, took, usual, Cause.NOTHING, "", lost_s=excess)
        late = row.last_came - row.first - usual_apart
        kept = self._kept(row, late)
        if late < MAX_OF_IT * excess:
            cause, words, where = self._why_slow(row, row.end - row.last_came - usual_after)
        elif kept > late - kept and depth < MAX_BEFORE:
            cause, words, where = self._why_kept(row, kept, depth)
        else:
            cause, words, where = self._why_late(row, late)
        return Explanation(row.number, name, took, usual, cause, words, *where, lost_s=excess - kept)

    def _kept(self, row: _Row, late: float) -> float:
        """How much of it the rank that came last owes to the operation before, which ended later for it."""
        place, before = row.last, self._by_number.get(row.number - 1)
        if before is None or not before.ended[place] <= row.begun[place]:
            return 0.0
        return float(np.clip(before.ended[place] - np.nanmin(before.ended), 0.0, max(late, 0.0)))

    def _why_kept(self, row: _Row, kept: float, depth: int) -> tuple[Cause, str, tuple[int, int, int]]:
        before = self._judge(self._by_number[row.number - 1], depth + 1)
        said = f"rank {self._ranks[row.last]} was kept {in_ms(kept)} by {before.kind} {before.number}"
        if before.cause is Cause.NOTHING:
            return Cause.UNKNOWN, f"{said}, which was not slow", (-1, -1, -1)
        return before.cause, f"{said}: {before.words}", (before.rank, before.plane, before.peer)

    def _why_late(self, row: _Row, late: float) -> tuple[Cause, str, tuple[int, int, int]]:
        rank = self._ranks[row.last]
        waited = self._waited(rank, row.last_came - late - AROUND_S, row.last_came + AROUND_S)
        said = f"rank {rank} arrived {in_ms(late)} late"
        if waited >= MAX_OF_IT * late:
            return Cause.PROCESSOR, f"{said}, it had no processor for {in_ms(waited)}: not the network", (rank, -1, -1)
        return Cause.LATE, f"{said}: not the network", (rank, -1, -1)

    def _why_slow(self, row: _Row, excess: float) -> tuple[Cause, str, tuple[int, int, int]]:
        begin, end = row.last_came, row.end + AROUND_S
        retransmitted = {rank: self._grown(rank, "retransmitted", begin, end) for rank in self._recordings}
        total = sum(retransmitted.values())
        again = f"{total:,} packets retransmitted"
        later = end + LATER_S
        twice = sum(self._grown(rank, "twice", begin, later) for rank in self._recordings)
        was_in_vain = (
            twice * 2 >= sum(self._grown(rank, "retransmitted", begin, later) for rank in self._recordings) > 0
        )
        lost = self._noted(PathEvent.LOST, begin, end)
        # A plane that carries nothing is dead before the last of its paths is given up.
        silent = [*self._noted(PathEvent.SILENT, begin, later), *self._noted(PathEvent.LOST, begin, later)]
        # What was sent may have arrived, and its acknowledgements be what is lost: then it is dead the other way.
        back = [(peer, rank, plane, at, lost) for rank, peer, plane, at, lost in silent if rank in self._recordings]
        silent = [one for one in (*silent, *back) if self._is_dead(one, begin, later)]
        if silent:
            rank, peer, plane, at, _ = silent[0]
            after = in_ms(max(0.0, at - begin))
            words = f"plane {plane} from rank {rank} to rank {peer} fell silent, {again}, left after {after}"
            return Cause.DEAD, words, (rank, plane, peer)
        left = self._noted(PathEvent.LEFT_SLOW, begin, end)
        if left:
            rank, peer, plane, _, _ = left[0]
            words = f"plane {plane} from rank {rank} to rank {peer} was so slow that it was left, {again}"
            return Cause.SLOW, words, (rank, plane, peer)
        waits = {rank: self._waited(rank, begin, end) for rank in self._recordings}
        starved = max(waits, key=lambda rank: waits[rank])
        if total and was_in_vain:
            rank, peer, plane = (
                _most(lost) if lost else (max(retransmitted, key=lambda one: retransmitted[one]), -1, -1)
            )
            if waits[starved] >= max(NEARLY_ALL * excess, STARVED_S):
                return self._starved(starved, waits[starved])
            which = f"plane {plane} from" if lost else "a plane from"  # a retransmission is counted, and not by which
            words = f"{which} rank {rank} answered late, {again}, {twice:,} had arrived all the same"
            return Cause.SLOW, words, (rank, plane, peer)
        if total and lost:
            rank, peer, plane = _most(lost)
            words = f"packets were lost on plane {plane} from rank {rank} to rank {peer}, {again}"
            return Cause.LOSSY, words, (rank, plane, peer)
        if waits[starved] >= MAX_OF_IT * excess:
            return self._starved(starved, waits[starved])
        return Cause.UNKNOWN, f"nothing on the recordings explains it ({again})", (-1, -1, -1)

    def _is_dead(self, note: tuple[int, int, int, float, float], begin: float, end: float) -> bool:
        """Whether not a byte came by the plane any more to the rank that it led to, as far as its recording is here.

        A path that was left is probed: where only some packets are lost, some of the probes arrive. What came before
        the loss was noted says nothing: samples lie apart, and a plane may die in the middle of one.
        """
        rank, peer, plane, at, _ = note
        if peer not in self._recordings:
            return True
        back = [one[3] for one in self._noted(PathEvent.BACK, at, end) if one[:3] == (rank, peer, plane)]
        samples = self._recordings[peer].samples
        received = samples["received"][samples["at"] <= min([end, *back])].astype(np.int64)
        moment = int(np.searchsorted(samples["at"], at))
        start = int(np.searchsorted(samples["at"], begin))
        if len(received) - moment < SILENT_SAMPLES or start >= len(received):
            return False
        was_used = received[max(start - 1, 0), plane] > 0
        others = np.delete(received[-1] - received[max(start - 1, 0)], plane)
        return bool(was_used and received[-1, plane] == received[moment, plane] and others.sum() > 0)

    @staticmethod
    def _starved(rank: int, waited: float) -> tuple[Cause, str, tuple[int, int, int]]:
        return Cause.PROCESSOR, f"rank {rank} had no processor for {in_ms(waited)}: not the network", (rank, -1, -1)

    def _between(self, rank: int, begin: float, end: float) -> tuple[np.ndarray, np.ndarray] | None:
        """The last sample before, and the first one after a time."""
        samples = self._recordings[rank].samples
        if not len(samples):
            return None
        first = max(int(np.searchsorted(samples["at"], begin)) - 1, 0)
        last = min(int(np.searchsorted(samples["at"], end)), len(samples) - 1)
        return samples[first], samples[last]

    def _grown(self, rank: int, counter: str, begin: float, end: float) -> int:
        found = self._between(rank, begin, end)
        return 0 if found is None else int(found[1][counter]) - int(found[0][counter])

    def _waited(self, rank: int, begin: float, end: float) -> float:
        """How long its callers stood in line for a processor, beyond the usual; or how long none of it ran at all."""
        samples = self._recordings[rank].samples
        if len(samples) < 2:
            return 0.0
        first = max(int(np.searchsorted(samples["at"], begin)) - 1, 0)
        last = min(int(np.searchsorted(samples["at"], end)), len(samples) - 1)
        spans = np.diff(samples["at"])
        always = float(np.median(np.diff(samples["waited"]) / np.maximum(spans, 1e-6)))
        in_line = float(samples[last]["waited"] - samples[first]["waited"])
        in_line -= always * float(samples[last]["at"] - samples[first]["at"])
        gap = float(spans[first:last].max(initial=0.0)) - 2 * INTERVAL_S
        return max(in_line, gap, 0.0)

    def _noted(self, kind: PathEvent, begin: float, end: float) -> list[tuple[int, int, int, float, float]]:
        """Notes of all ranks, in order of time: (rank, peer, plane, at, value)."""
        found = []
        for rank, recording in self._recordings.items():
            notes = recording.notes
            rows = notes[(notes["kind"] == kind) & (notes["at"] >= begin) & (notes["at"] <= end)]
            found += [(rank, int(n["peer"]), int(n["plane"]), float(n["at"]), float(n["value"])) for n in rows]
        return sorted(found, key=lambda one: one[3])


def worst(verdicts: Sequence[Explanation]) -> Explanation:
    """The one on the operation that lost most."""
    return max(verdicts, key=lambda verdict: verdict.lost_s)


def _most(notes: list[tuple[int, int, int, float, float]]) -> tuple[int, int, int]:
    """Where most was lost: rank, peer, plane."""
    sums: dict[tuple[int, int, int], float] = {}
    for rank, peer, plane, _, value in notes:
        sums[rank, peer, plane] = sums.get((rank, peer, plane), 0.0) + value
    return max(sums, key=lambda key: sums[key])


def in_ms(seconds: float) -> str:
    """As people read it."""
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"
