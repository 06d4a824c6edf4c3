"""Flags that several commands share do the same in each of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.control.pretended import Pretended, a_device, home  # noqa: F401

from in_process import softmrc_here
from softmrc.cli.examples import _about, _files
from softmrc.ops.agent.watch import DenylistSource

KEYS = ("--vary", "fabric.planes=1,2", "--set", "workload.message_bytes=10_000")
SWEEP = ("sweep", "slow-link", *KEYS, "--workers", "1")


def test_a_sweep_takes_keys_a_seed_and_a_report(tmp_path: Path) -> None:
    done = softmrc_here(*SWEEP, "--seed", "5", "--report", "s.html", "--json", cwd=tmp_path)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and sorted(row["point"]["fabric.planes"] for row in rows) == [1, 2], done
    assert {row["seed"] for row in rows} == {5}
    page = (tmp_path / "s.html").read_text()
    assert "--set workload.message_bytes=10_000 --vary fabric.planes=1,2 --seeds 1" in page and "finished" in page


def test_retries_refuse_a_wrong_key_before_the_work() -> None:
    done = softmrc_here("retries", "--set", "workload.stepz=1")
    assert done.returncode == 2 and not done.stdout and "workload.steps" in done.stderr


@pytest.mark.parametrize("text", ["1", "1.0", "2", "-1%"])
def test_spares_that_look_like_a_count_are_refused(text: str) -> None:
    done = softmrc_here("plan", "--gpus", "64", "--spares", text)
    assert done.returncode == 2 and "1%" in done.stderr


def test_gpus_are_counted_in_thousands_too() -> None:
    texts = [softmrc_here("plan", "--gpus", text, "--json").stdout for text in ("8k", "8000", "0")]
    assert texts[0] == texts[1] != "" and not texts[2]


def test_planes_that_do_not_divide_the_nic_are_said_once() -> None:
    shown = softmrc_here("plan", "--gpus", "64", "--planes", "3", "--tiers", "1,2,3", COLUMNS="200")
    assert shown.returncode == 3 and shown.stdout.count("3 planes: not feasible: 800G is not divisible by 3") == 1


def test_a_mapper_exits_with_3_where_something_is_broken(tmp_path: Path) -> None:
    words = ("mapper", "sim", "lab", "--duration", "1s", "--json")
    fine = softmrc_here(*words)
    assert fine.returncode == 0 and json.loads(fine.stdout)["findings"] == []
    broken = softmrc_here(*words, "--break", "p0.leaf1-spine2=dead", "--output", "list.json", cwd=tmp_path)
    assert broken.returncode == 3 and json.loads(broken.stdout)["findings"] and (tmp_path / "list.json").exists()


def test_a_fabric_without_a_denylist_has_no_known_faults() -> None:
    assert DenylistSource(None).broken() == []


def test_examples_are_described_in_whole_sentences() -> None:
    for file in _files().values():
        words = _about(file)
        assert len(words.split()) > 5 and not words.endswith((".", ",", "Nothing here is")), file


def test_faults_reach_all_devices_of_a_user(home: Path) -> None:  # noqa: F811
    class Faulty(Pretended):
        def on_faults(self, request: dict[str, str]) -> dict[str, object]:
            return {"faults": [{"drop": 0.5 if request.get("set") else 0.0}]}

    one, two = Faulty(), Faulty()
    with a_device(home, one, "11-0"), a_device(home, two, "12-0"):
        refused = softmrc_here("ctl", "faults", "drop=0.5")
        assert refused.returncode == 2 and "11-0, 12-0" in refused.stderr
        found = json.loads(softmrc_here("ctl", "faults", "drop=0.5", "--all", "--json").stdout)["devices"]
        assert [(row["device"], row["faults"][0]["drop"]) for row in found] == [("11-0", 0.5), ("12-0", 0.5)]
        shown = softmrc_here("ctl", "faults").stdout
        assert "11-0" in shown and "12-0" in shown and shown.count("none") == 2


def test_nothing_denied_is_a_no(home: Path) -> None:  # noqa: F811
    device = Pretended()
    device.on_deny = lambda _: {"done": 0}  # type: ignore[assignment,misc]
    with a_device(home, device, f"{os.getpid()}-0"):
        done = softmrc_here("ctl", "deny", "--ev", "3", "--all")
    assert (done.returncode, done.stdout) == (3, "0 denied\n")
