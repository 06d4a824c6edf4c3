"""Why a burst was slow: for faces that know no collectives, as NCCL's plugin, and mark what they send in bursts.

One end alone reports a burst. It knows whether it waited for its peer, what it retransmitted, and which paths were
withdrawn during the burst. It does not know what happened on the return path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from softmrc.errors import UsageError
from softmrc.ops.control import DeviceClient
from softmrc.ops.explain import AROUND_S, MAX_OF_IT, SLOW_S, SLOW_SHARE, Cause, Explanation, in_ms, worst

Row = dict[str, Any]


class BurstExplainer:
    """The bursts of one device, and what happened to its paths."""

    def __init__(self, bursts: Sequence[Row], events: Sequence[Row], pairs: Sequence[Row]) -> None:
        self._bursts = {int(one["number"]): one for one in bursts}
        self._left = [one for one in events if one["type"] == "ev_state" and " is assumed bad" in one["text"]]
        self._down = [one for one in events if one["type"] == "port_state" and not one["code"]]
        self._paths: dict[tuple[int, int], int] = {}  # how many a queue pair has on a plane
        for pair in pairs:
            for ev in pair.get("evs") or ():
                where = (int(pair["qpn"]), int(ev["plane"]))
                self._paths[where] = self._paths.get(where, 0) + 1
        alike: dict[tuple[str, int], list[tuple[float, float]]] = {}
        for one in bursts:
            alike.setdefault((one["peer"], one["bytes"]), []).append((one["took_s"], one["waited_s"]))
        self._usual = {key: np.median(np.array(found), axis=0) for key, found in alike.items()}

    @classmethod
    def of(cls, node: DeviceClient) -> BurstExplainer:
        """What a running device knows."""
        found = node.ask("bursts")["bursts"]
        if not found:
            raise UsageError(f"device {node.name} has sent no burst yet; a burst is listed once the next begins")
        return cls(found, node.events(("ev_state", "port_state")).events, node.queue_pairs())

    def slow(self) -> list[Explanation]:
        """A verdict on every burst that took longer than usual, in their order."""
        judged = (self._judge(self._bursts[number]) for number in sorted(self._bursts))
        return [verdict for verdict in judged if verdict.cause is not Cause.NOTHING]

    def explain(self, number: int | None = None) -> Explanation:
        """A verdict on one burst; without a number, on the one that lost most time."""
        if number is None:
            return worst([self._judge(one) for one in self._bursts.values()])
        if number in self._bursts:
            return self._judge(self._bursts[number])
        raise UsageError(f"burst {number} is not known; known are {min(self._bursts)} to {max(self._bursts)}")

    def _judge(self, one: Row) -> Explanation:
        usual, usual_wait = map(float, self._usual[one["peer"], one["bytes"]])
        took, excess = float(one["took_s"]), float(one["took_s"]) - usual
        if took < SLOW_SHARE * usual or excess < SLOW_S:
            return Explanation(one["number"], "burst", took, usual, Cause.NOTHING, "", lost_s=excess)
        cause, why, plane = self._why(one, excess, float(one["waited_s"]) - usual_wait)
        requests = f"{one['requests']} request{'s' * (one['requests'] != 1)}"
        words = f"{one['bytes']:,} B to {one['peer']} in {requests}; {why}"
        return Explanation(one["number"], "burst", took, usual, cause, words, plane=plane, lost_s=excess)

    def _why(self, one: Row, excess: float, waited: float) -> tuple[Cause, str, int]:
        begin, end = one["begun"], one["begun"] + one["took_s"] + AROUND_S
        again = f"{one['resent']:,} packet{'s' * (one['resent'] != 1)} retransmitted"
        for event in self._down:
            if begin <= event["at"] <= end:
                return Cause.DEAD, f"plane {event['plane']} went down, {again}", int(event["plane"])
        left: dict[int, dict[int, set[int]]] = {}  # paths, by plane and queue pair
        for event in self._left:
            if begin <= event["at"] <= end:
                left.setdefault(int(event["plane"]), {}).setdefault(int(event["qpn"]), set()).add(int(event["ev"]))
        for plane, pairs in left.items():
            if any(len(evs) >= self._paths.get((qpn, plane), len(evs) + 1) for qpn, evs in pairs.items()):
                return Cause.DEAD, f"plane {plane} fell silent, {again}", plane
        if waited >= MAX_OF_IT * excess and not one["resent"]:
            why = f"{one['peer']} let it wait {in_ms(waited)}: it was late, or its grant was lost"
            return Cause.LATE, why, -1
        if left:
            plane = max(left, key=lambda p: sum(map(len, left[p].values())))
            count = sum(map(len, left[plane].values()))
            return Cause.LOSSY, f"{count} path{'s' * (count != 1)} of plane {plane} were left, {again}", plane
        if one["resent"]:
            return Cause.LOSSY, f"{again}; no path was left", -1
        return Cause.UNKNOWN, "nothing that is marked explains it", -1
