"""A found bug, kept: an answer must not fall back to a port known to be broken only because the good one is busy."""

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
