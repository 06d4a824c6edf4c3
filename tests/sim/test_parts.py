"""Parts of the simulator by themselves: oracle, workload, series, losses and retransmissions, links without hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import parts
from softmrc import _core
from softmrc.errors import InternalError

FaultKind = _core.FaultKind
MTU = 1000
PS_PER_BYTE = 80  # at 100 Gb/s
DELAY_PS = 1_000_000


def checker() -> Any:
    """Flow 0 is three packets from host 4 to host 5, flow 1 one from host 5 to host 4."""
    found = parts.Checker(MTU)
    found.plan(4, 5, 2 * MTU + 1)
    found.plan(5, 4, MTU)
    return found


def test_the_oracle_accepts_every_packet_once_in_any_order() -> None:
    oracle = checker()
    for flow, ends, offset, size in ((0, (4, 5), 2 * MTU, 1), (1, (5, 4), 0, MTU), (0, (4, 5), 0, MTU)):
        oracle.on_placed(flow, *ends, offset, size)
    oracle.on_delivered(1)
    oracle.on_placed(0, 4, 5, MTU, MTU)
    oracle.on_delivered(0)
    assert oracle.bytes_placed == 3 * MTU + 1


WRONGS: dict[str, Callable[[Any], None]] = {
    "twice": lambda oracle: oracle.on_placed(0, 4, 5, 0, MTU),
    "a flow that was not planned": lambda oracle: oracle.on_placed(2, 4, 5, 0, MTU),
    "not at the start of a packet": lambda oracle: oracle.on_placed(0, 4, 5, MTU + 1, MTU),
    "behind the end": lambda oracle: oracle.on_placed(1, 5, 4, MTU, MTU),
    "too short": lambda oracle: oracle.on_placed(0, 4, 5, MTU, MTU - 1),
    "too long at the end": lambda oracle: oracle.on_placed(0, 4, 5, 2 * MTU, MTU),
    "by another connection": lambda oracle: oracle.on_placed(0, 5, 4, MTU, MTU),
    "said to be there too early": lambda oracle: oracle.on_delivered(0),
}


@pytest.mark.parametrize("wrong", WRONGS.values(), ids=WRONGS.keys())
def test_the_oracle_stops_what_is_wrong(wrong: Callable[[Any], None]) -> None:
    oracle = checker()
    oracle.on_placed(0, 4, 5, 0, MTU)
    with pytest.raises(InternalError):
        wrong(oracle)


def test_the_oracle_counts_packets() -> None:
    parts.Checker.check_conserved(sent=10, arrived=4, dropped=3, lost=2, under_way=1)
    for wrong in ({"sent": 11}, {"arrived": 5}, {"dropped": 2}, {"lost": 3}, {"under_way": 0}):
        with pytest.raises(InternalError):
            parts.Checker.check_conserved(
                **({"sent": 10, "arrived": 4, "dropped": 3, "lost": 2, "under_way": 1} | wrong)
            )


graphs = st.integers(2, 12).flatmap(
    lambda count: st.tuples(
        st.just(count),
        st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda edge: edge[0] < edge[1])),
    )
)


@settings(deadline=None)
@given(graphs, st.booleans(), st.randoms(use_true_random=False))
def test_a_flow_starts_when_the_last_one_it_waits_for_is_over(
    graph: tuple[int, set[tuple[int, int]]], on_acknowledgement: bool, rng: Any
) -> None:
    count, edges = graph
    workload = parts.Workload(on_acknowledgement)
    for flow in range(count):
        workload.add(10 * flow)
    for edge in rng.sample(sorted(edges), len(edges)):
        workload.add_dependency(*edge, think=edge[0] + 1)
    waits = {flow: {earlier for earlier, later in edges if later == flow} for flow in range(count)}
    running = {flow: at for at, flow in workload.begin()}
    assert running == {flow: 10 * flow for flow in range(count) if not waits[flow]}
    over: set[int] = set()
    for now in range(1000, 1000 + count):
        flow = rng.choice(sorted(running))
        del running[flow]
        over.add(flow)
        delivered, completed = workload.on_delivered(now, flow), workload.on_completed(now, flow)
        started, quiet = (completed, delivered) if on_acknowledgement else (delivered, completed)
        assert not quiet
        free = {later for later, earlier in waits.items() if flow in earlier and earlier <= over}
        assert {later: at for at, later in started} == {later: now + flow + 1 for later in free}
        running |= {later: at for at, later in started}
        assert workload.stuck() == sorted(set(range(count)) - over)
    assert not workload.stuck()


def test_a_flow_is_over_once() -> None:
    for event in ("on_delivered", "on_completed"):
        workload = parts.Workload()
        workload.add(0)
        getattr(workload, event)(5, 0)
        with pytest.raises(InternalError):
            getattr(workload, event)(6, 0)


def test_series_hold_what_happened_in_each_bin() -> None:
    series = parts.Series(2)
    series.on_placed(5, 0, 100)  # before anyone asked
    series.on_bad_evs(5, 1)
    assert not series.placed and not series.bad_evs
    series.sample_every(10)
    series.on_placed(12, 1, 7)
    series.on_bad_evs(19, 1)
    series.on_placed(19, 1, 1)
    series.on_bad_evs(45, -1)
    assert list(series.placed) == [0, 0, 0, 8, 0, 0, 0, 0, 0, 0]
    assert list(series.bad_evs) == [1, 2, 2, 2, 1]


def test_a_lost_packet_waits_until_it_is_sent_again_or_arrives_otherwise() -> None:
    recovery = parts.Recovery()
    recovery.settle(lost=[(12, 3), (11, 2), (10, 1)], resent=[], placed=[3])  # of 3, a copy is there
    assert (recovery.lost, recovery.unsent([3]), recovery.last_lost) == (3, 2, 12)
    recovery.settle(lost=[], resent=[(20, 7)], placed=[3])
    assert recovery.last_resent < 0, "another packet"
    recovery.settle(lost=[(40, 4)], resent=[(21, 1), (39, 4)], placed=[3])
    assert (recovery.unsent([3]), recovery.last_resent) == (2, 21), "4 was lost after its retransmission"
    assert recovery.unsent([2, 3]) == 1
    recovery.settle(lost=[], resent=[(50, 2), (51, 1)], placed=[2, 3])
    assert (recovery.unsent([2, 3]), recovery.last_resent) == (1, 21), "2 had arrived, 1 does not wait any more"


SHAPES = {
    "two tiers": {"planes": 2, "hosts": 16, "hosts_per_leaf": 4, "spines": 4},
    "three tiers": {"planes": 2, "hosts": 16, "hosts_per_leaf": 2, "spines": 2, "pods": 4, "cores_per_spine": 2},
}


def config(shape: str = "two tiers", forwarding: Any = None, **queue: Any) -> Any:
    found = _core.NetworkConfig()
    for key, value in SHAPES[shape].items():
        setattr(found.fabric, key, value)
    if forwarding is not None:
        found.forwarding = forwarding
    for key, value in queue.items():
        setattr(found.queue, key, value)
    return found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("forwarding", ["SRV6", "ECMP", "STRUCTURED"])
def test_every_path_leads_to_the_destination_by_the_shortest_way(shape: str, forwarding: str) -> None:
    per_leaf, pods = SHAPES[shape]["hosts_per_leaf"], SHAPES[shape].get("pods", 1)
    for source in range(16):
        for destination in set(range(16)) - {source}:
            links = parts.Links(config(shape, _core.Forwarding[forwarding]))
            entropies = range(9)
            for entropy in entropies:
                links.send(source, destination, entropy, plane=entropy % 2)
            assert [row[2] for row in links.run()] == [destination] * len(entropies)
            assert links.leaps == 0
            leaves = source // per_leaf, destination // per_leaf
            same_pod = pods == 1 or leaves[0] // (16 // per_leaf // pods) == leaves[1] // (16 // per_leaf // pods)
            hops = 2 if leaves[0] == leaves[1] else 4 if same_pod else 6
            assert links.hops == hops * len(entropies)


def test_an_idle_way_takes_its_four_links_and_no_longer() -> None:
    links = parts.Links(config())
    links.send(0, 15, bytes=1000)
    assert links.run()[0][0] == 4 * (1000 * PS_PER_BYTE + DELAY_PS)


sends = st.lists(
    st.tuples(st.integers(0, 14), st.integers(0, 3), st.integers(64, 4000), st.booleans()), min_size=20, max_size=60
)
queues = st.fixed_dictionaries(
    {
        "data_bytes": st.sampled_from((0, 4000)),
        "control_bytes": st.sampled_from((0, 400)),
        "trim_bytes": st.sampled_from((0, 2000)),
        "ecn_low_bytes": st.just(2000),
        "ecn_high_bytes": st.sampled_from((0, 4000)),
    }
)
kinds = st.sampled_from(
    ((FaultKind.DOWN, 0.0), (FaultKind.BLACK_HOLE, 0.0), (FaultKind.LOSS, 0.5), (FaultKind.CORRUPT, 0.5),
     (FaultKind.SLOW, 0.1), (FaultKind.SLOW_SCALED, 0.1), (FaultKind.EV_LOSS, 0.9))
)  # fmt: skip
faults = st.lists(st.tuples(kinds, st.integers(0, 127)), max_size=8)


@settings(deadline=None)
@given(sends, queues, faults)
def test_links_lose_only_what_they_count(
    sent: list[tuple[int, int, int, bool]], queue: dict[str, int], broken: list[tuple[tuple[Any, float], int]]
) -> None:
    """An incast into host 15 over broken links. What is neither dropped nor taken by a fault arrives there, once."""
    links = parts.Links(config(**queue))
    for (kind, value), link in broken:
        links.apply(kind, link, value)
    ids = [links.send(source, 15, entropy, entropy % 2, size, is_control) for source, entropy, size, is_control in sent]
    seen = links.run()
    arrived = [row[1] for row in seen]
    assert len(set(arrived)) == len(arrived) and set(arrived) <= set(ids) and {row[2] for row in seen} <= {15}
    assert len(ids) == len(arrived) + links.dropped + links.lost
    assert links.under_way == 0 and links.taken_by_faults == links.lost
    if not broken and not any(queue[key] for key in ("data_bytes", "control_bytes")):
        assert len(arrived) == len(ids), "nothing may be dropped where queues have no end"


def test_packets_of_one_path_stay_in_order_and_control_goes_first() -> None:
    """Three hosts of different leaves fill the last link; a fourth sends a control packet into that."""
    links = parts.Links(config())
    data = {source: [links.send(source, 15, source // 4, bytes=4000) for _ in range(8)] for source in (0, 4, 8)}
    for _ in range(2):
        links.send(5, 15, 3, bytes=4000)
    control = links.send(5, 15, 3, bytes=64, is_control=True)
    order = [row[1] for row in links.run()]
    for mine in data.values():
        assert [one for one in order if one in mine] == mine
    assert order.index(control) < 12, "it overtakes what waits on the last link"


def test_overload_is_trimmed_where_that_is_allowed_and_dropped_where_not() -> None:
    outcomes = {}
    for name, queue in {"trim": {"trim_bytes": 8000}, "drop": {"data_bytes": 8000}}.items():
        links = parts.Links(config(**queue))
        for source in range(12):
            for entropy in range(8):
                links.send(source, 15, entropy=entropy, plane=0, bytes=4000)
        outcomes[name] = (len(seen := links.run()), sum(row[3] for row in seen), links.dropped)
    assert outcomes["trim"][0] == 96 and outcomes["trim"][1] > 0 == outcomes["trim"][2]
    assert outcomes["drop"][0] + outcomes["drop"][2] == 96 and outcomes["drop"][1] == 0 < outcomes["drop"][2]


def test_a_healed_link_is_as_it_was() -> None:
    times = []
    for breaks in ((), (FaultKind.LOSS, FaultKind.SLOW_SCALED, FaultKind.DOWN, FaultKind.EV_LOSS)):
        links = parts.Links(config())
        for kind in breaks:
            links.apply(kind, 0, 0.5)
        if breaks:
            links.send(0, 15)
            assert not links.run() and links.lost == 1
            links.apply(FaultKind.HEAL, 0)
        before = links.send(1, 15)  # moves the clock alike
        start = next(row[0] for row in links.run() if row[1] == before)
        for _ in range(10):
            links.send(0, 15)
        times.append([row[0] - start for row in links.run()])
    assert len(times[0]) == 10 and times[0] == times[1]
