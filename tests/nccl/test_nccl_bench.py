"""What `softmrc bench nccl` and `softmrc demo --gpu` make of their ranks' answers, where there is no GPU: ranks that
only say what real ones would."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from softmrc.errors import DeviceError
from softmrc_bench import nccl, nccl_demo
from softmrc_bench.figures import flat

pytestmark = pytest.mark.process

# Carries out orders as `softmrc_bench.nccl_rank` does, and is as fast as its network's name says.
RANK = """
import json, os, signal, sys, time
folder, rank = sys.argv[1], int(sys.argv[2])
ours = os.environ["NCCL_NET"] == "SoftMRC"
log = open(os.environ["NCCL_DEBUG_FILE"], "w", buffering=1)
assert os.environ["NCCL_HOSTID"] == f"r{rank}"
log.write("Channel 00 via NET/" + os.environ["NCCL_NET"] + "/0\\n")
speed = 2.0 if ours else 1.0 * int(os.environ.get("NCCL_SOCKET_NTHREADS", "1"))
broken = os.environ.get("FAKE_BROKEN", "")
print("NCCL version of somebody")
if broken == "start" and ours:
    sys.exit("no CUDA here")
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    order = json.loads(line)
    what = order["do"]
    if what == broken and ours:
        sys.exit("it broke")
    if what == "mean":
        answer = {"s": order["elements"] / speed}
    elif what == "times" and order["count"] == 1000:
        time.sleep(1.2)
        log.write("x NCCL WARN NET/SoftMRC : peer 127.0.0.1 stopped answering\\n")
        time.sleep(60)
    elif what == "times":
        answer = {"times": [0.01] * (order["count"] - 1) + [0.02]}
    elif what == "results":
        answer = {"all_reduce float32 1": "a"}
    elif what == "train":
        answer = {"times": [0.01] * order["steps"], "loss": 0.5, "digest": "same"}
    else:
        answer = {"s": 0.5}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    monkeypatch.setattr(nccl, "python_command", lambda _, *arguments: [sys.executable, str(script), *arguments])
    monkeypatch.setattr(nccl.shutil, "which", lambda _: None)
    monkeypatch.setattr(nccl.time, "sleep", lambda _: None)
    monkeypatch.setattr(nccl_demo, "require", lambda: None)
    return monkeypatch


# Real processes from here on: ranks are processes, and what is tested is that their answers and their ends are heard.
@pytest.mark.process
def test_figures_are_those_of_the_ranks(fake: pytest.MonkeyPatch) -> None:
    found = nccl.measure()
    assert found["failed"] == {} and found["identical"] is True and found["mps"] is False
    large, small = found["allreduce"]["64MiB"], found["allreduce"]["8B"]
    assert large["ratio"] == pytest.approx(2.0) and large["ratio_best"] == pytest.approx(0.5)  # speeds
    assert small["ratio"] == pytest.approx(0.5) and small["ratio_best"] == pytest.approx(2.0)  # times
    assert large["us"] == pytest.approx(8 * (1 << 20) * 1e6) and large["socket_us"] == pytest.approx(2 * large["us"])
    assert found["fault_worst_over_median"] == pytest.approx(2.0)
    assert "stopped answering" in found["killed_words"] and found["again_times"] == 20
    assert {figure.key for figure in nccl.FIGURES} <= set(flat(nccl.shown(found))) | set(nccl.shown(found))
    json.dumps(found)


@pytest.mark.process
def test_a_rank_that_breaks_is_named_with_its_log_and_the_rest_is_measured(fake: pytest.MonkeyPatch) -> None:
    """Where ours do not start there is nothing to measure; a part that breaks takes no other along."""
    fake.setenv("FAKE_BROKEN", "start")
    found = nccl.measure(quick=True)
    assert set(found["failed"]) == {nccl.OURS} and "no CUDA here" in found["failed"][nccl.OURS]
    fake.setenv("FAKE_BROKEN", "again")
    found = nccl.measure(quick=True)
    assert set(found["failed"]) == {"again"} and "it broke" in found["failed"]["again"]
    assert found["allreduce"] and found["identical"]


@pytest.mark.process
def test_a_run_that_has_no_time_left_ends(fake: pytest.MonkeyPatch) -> None:
    fake.setattr(nccl, "WHOLE_S", 0.0)
    found = nccl.measure()
    assert found["failed"] and found["allreduce"] == {} and found["identical"] is None


@pytest.mark.process
def test_the_demo_compares_weights(fake: pytest.MonkeyPatch) -> None:
    jobs = nccl_demo.perform(20)
    assert nccl_demo.is_identical(jobs) and [len(job.step_s) for job in jobs] == [20] * 3
    jobs[0].digests[1] = "another"
    assert not nccl_demo.is_identical(jobs)


def test_bits_that_differ_are_named() -> None:
    def answering(*ranks: dict[str, str]) -> Any:
        return SimpleNamespace(order=lambda _: ranks)

    theirs = answering({"sum": "a", "max": "b"}, {"sum": "a", "max": "b"})
    for ours, wrong in (
        (answering({"sum": "a", "max": "b"}, {"sum": "a", "max": "b"}), []),
        (answering({"sum": "a", "max": "b"}, {"sum": "a", "max": "c"}), ["max"]),  # of the second rank alone
        (answering({"sum": "a"}, {"sum": "c"}), ["max", "sum"]),  # one that is missing is another
    ):
        found = nccl._identical({nccl.OURS: ours, nccl.SOCKET: theirs})
        assert found == {"identical": not wrong, "compared": 2, "different": wrong}
    assert nccl._identical({nccl.OURS: theirs}) == {"identical": None}


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda path: str(path) != "/dev/nvidiactl")
    with pytest.raises(DeviceError, match="no NVIDIA GPU"):
        nccl.require()
