"""Found bugs, kept: how a receiver answers when one of its ways back is dead."""

from __future__ import annotations

from tests.sim.small import scenario

from softmrc import sim

LONG = {"kind": "permutation", "message_bytes": 2_000_000, "pattern": "across_leaves"}


def test_the_last_acknowledgement_waits_for_a_port_that_works() -> None:
    """One NIC port goes silent. Behind each SACK on the good port the ACK used to take the dead one, for ever."""
    event = {"kind": "black_hole", "port": {"plane": 1, "host": 3}, "at_us": 30.0}
    for seed in range(4):
        result = sim.run(scenario(workload=LONG, faults={"events": [event]}), seed)
        assert result.verdict, result.verdict.text
        assert result.simulated_us < 5_000


def test_answers_find_another_way_back_within_round_trips() -> None:
    """A dead spine dropped every SACK of a receiver whose reverse path crossed it, until probes noticed after 2 ms."""
    fabric = {"planes": 1, "host_link_gbps": 400}
    event = {"kind": "black_hole", "switch": {"plane": 0, "tier": "t1", "index": 1}, "at_us": 20.0}
    for seed in range(4):
        result = sim.run(scenario(fabric=fabric, workload=LONG, faults={"events": [event]}), seed)
        assert result.verdict, result.verdict.text
        assert result.simulated_us < 1_000
