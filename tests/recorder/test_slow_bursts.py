"""Why a burst was slow, from rows of which the test knows what happened."""

from __future__ import annotations

from typing import Any

import pytest

from softmrc.errors import UsageError
from softmrc.ops.bursts import BurstExplainer
from softmrc.ops.explain import Cause

PEER, QPN, PLANES, PATHS, SLOW_ONE = "10.0.0.2", 0x22, 4, 2, 60
START = 1_700_000_000.0
PAIRS = [{"qpn": QPN, "evs": [{"ev": n, "plane": n % PLANES} for n in range(PLANES * PATHS)]}]


def rows(**of_the_slow_one: Any) -> list[dict[str, Any]]:
    usual = {"peer": PEER, "bytes": 1 << 20, "requests": 8, "took_s": 0.010, "waited_s": 0.001, "resent": 0}
    found = [{**usual, "number": n, "begun": START + 0.1 * n} for n in range(1, 101)]
    found[SLOW_ONE - 1] |= {"took_s": 0.050, **of_the_slow_one}
    return found


def left(*evs: int, at_s: float = 0.02) -> list[dict[str, Any]]:
    at = START + 0.1 * SLOW_ONE + at_s
    said = "queue pair 34: path {} on plane {} is assumed bad, 3 packets lost there so far"
    known = {"type": "ev_state", "at": at, "qpn": QPN, "code": 2}
    return [known | {"plane": n % PLANES, "ev": n, "text": said.format(n, n % PLANES)} for n in evs]


@pytest.mark.parametrize(
    ("slow", "events", "cause", "plane", "words"),
    [
        ({"waited_s": 0.041}, [], Cause.LATE, -1, "10.0.0.2 let it wait 40 ms"),
        ({"resent": 37}, left(2, 6), Cause.DEAD, 2, "plane 2 fell silent, 37 packets retransmitted"),
        ({"resent": 37, "waited_s": 0.041}, left(2, 6), Cause.DEAD, 2, "plane 2 fell silent"),
        ({"resent": 9}, left(5), Cause.LOSSY, 1, "1 path of plane 1 were left, 9 packets retransmitted"),
        ({"resent": 1}, [], Cause.LOSSY, -1, "1 packet retransmitted; no path was left"),
        ({"resent": 4}, left(2, 6, at_s=1.0), Cause.LOSSY, -1, "no path was left"),
        ({}, [], Cause.UNKNOWN, -1, "nothing that is marked explains it"),
        ({"took_s": 0.0101}, [], Cause.NOTHING, -1, ""),
    ],
)  # fmt: skip
def test_the_cause_is_named(
    slow: dict[str, Any], events: list[dict[str, Any]], cause: Cause, plane: int, words: str
) -> None:
    verdict = BurstExplainer(rows(**slow), events, PAIRS).explain(SLOW_ONE)
    assert (verdict.cause, verdict.plane) == (cause, plane) and words in str(verdict), str(verdict)


def test_the_one_that_lost_most_is_found_and_sizes_are_not_mixed() -> None:
    large = [{**one, "number": one["number"] + 100, "bytes": 1 << 28, "took_s": 1.0} for one in rows(took_s=0.010)]
    explainer = BurstExplainer([*rows(waited_s=0.041), *large], [], PAIRS)
    assert explainer.explain().number == SLOW_ONE
    assert [verdict.number for verdict in explainer.slow()] == [SLOW_ONE]
    assert str(explainer.explain()).startswith(
        "burst 60 took 50 ms, usually 10 ms: 1,048,576 B to 10.0.0.2 in 8 requests"
    )
    with pytest.raises(UsageError, match="burst 999 is not known; known are 1 to 200"):
        explainer.explain(999)
