"""A quick part of torch's own tests, and whether the runner would notice."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.torch_suite import suite

pytestmark = pytest.mark.process

pytest.importorskip("expecttest", reason="torch's own tests need it")

# One of each kind, a second or so each.
QUICK = [
    "test_DistributedDataParallelCPU",
    "test_all_gather_coalesced_simple",
    "test_all_reduce_coalesced_sum",
    "test_all_reduce_complex_unsupported_ops",
    "test_all_reduce_sum_async",
    "test_all_to_all_single_unequal_split",
    "test_barrier_timeout_full_group",
    "test_broadcast",
    "test_gather",
    "test_get_future",
    "test_monitored_barrier_gloo",
    "test_new_subgroups_with_group_param",
    "test_reduce_max",
    "test_scatter",
    "test_send_recv_any_source_torch_profiler",
    "test_sparse_all_reduce_sum",
]


def test_a_quick_part_of_torchs_own_tests(tmp_path: Path) -> None:
    log = tmp_path / "log"
    ended = {one["test"]: one for one in suite.column("mrc", "wide", QUICK, log, size=4)}
    bad = {name: one["words"][-2000:] for name, one in ended.items() if one["ended"] != "pass"}
    assert not bad and list(ended) == QUICK, (bad, log.read_text()[-2000:])


def test_tests_that_die_or_are_unknown_fail(tmp_path: Path) -> None:
    (one,) = suite.column("mrc", "narrow", ["test_there_is_no_such_thing"], tmp_path / "log")
    assert one["ended"] == "fail"


def column(**ended: str) -> suite.Column:
    return {name: {"test": name, "ended": how, "seconds": 0.1, "words": ""} for name, how in ended.items()}


def test_what_counts_is_what_gloo_passes() -> None:
    gloos = column(one="pass", two="pass", three="fail", four="skip", five="pass")
    ours = column(one="pass", two="fail", three="fail", four="fail", five="skip")
    assert suite.behind(ours, gloos) == ["two"]
    shown = suite.table({("narrow", "gloo"): gloos, ("narrow", "mrc"): ours})
    assert shown.splitlines()[-1].split() == ["narrow,", "3", "ranks", "3", "1", "1", "1", "3", "1"]


def test_the_list_of_excuses_is_short_and_gives_reasons() -> None:
    excuses = suite.excuses()
    assert len(excuses) <= 10 and all(len(why) > 20 for why in excuses.values())
