"""The plugin marks what it sends in bursts, and `softmrc explain` says of a running job which was slow, and why."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from softmrc.cli import app
from softmrc.device import Device
from softmrc.errors import UsageError
from softmrc.ops import control
from softmrc.ops.explain import AROUND_S

pytestmark = pytest.mark.process

BURSTS, MESSAGES, LATE_ONE, LATE_MS = 40, 4, 20, 400
LIMIT_S = 60.0


class Job:
    """Two processes; the first sends in bursts, and before the last one waits for the test."""

    def __init__(self, play: Any, folder: Path, late_one: int, **more: str) -> None:
        self.story = play(11, 2, "bursts", BURSTS, MESSAGES, late_one, LATE_MS, XDG_RUNTIME_DIR=str(folder), **more)

    def bursts(self, count: int) -> list[dict[str, Any]]:
        """The bursts that are listed, once there are so many."""
        until = time.monotonic() + LIMIT_S
        found: list[dict[str, Any]] = []
        while len(found) < count:
            assert time.monotonic() < until and not self.story.is_over(), (found, self.story.is_over())
            try:
                with control.find_device(str(self.story.process.pid)) as node:
                    found = node.ask("bursts")["bursts"]
            except UsageError:
                found = []  # it has none yet, or there is no device yet
            time.sleep(0.05)
        return found

    def explain(self, *arguments: str) -> list[dict[str, Any]]:
        done = CliRunner().invoke(app, ["explain", "-d", str(self.story.process.pid), "--json", *arguments])
        assert done.exit_code == 0, done.output
        found: list[dict[str, Any]] = json.loads(done.output)["operations"]
        return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    yield tmp_path


def end(job: Job) -> None:
    code, said, wrong = job.story.end()
    assert code == 0 and "all holds" in said, (said, wrong)


def test_requests_without_a_pause_are_a_burst_and_a_late_receiver_is_named(play: Any, folder: Path) -> None:
    job = Job(play, folder, LATE_ONE)
    found = job.bursts(BURSTS - 2)  # the last that ran is listed once the next begins
    assert [one["number"] for one in found] == list(range(1, len(found) + 1))
    assert {(one["bytes"], one["requests"]) for one in found} == {(MESSAGES << 20, MESSAGES)}
    assert all(one["peer"] == "127.0.0.1" and one["took_s"] > 0 for one in found)
    late = found[LATE_ONE]
    assert late["waited_s"] >= LATE_MS / 1000 / 2 and late["took_s"] >= late["waited_s"]
    verdict = job.explain(str(LATE_ONE + 1))[0]
    assert verdict["cause"] == "late" and "127.0.0.1 let it wait" in verdict["words"], verdict
    end(job)


def test_what_a_plane_that_dies_did_to_bursts_is_on_record(play: Any, folder: Path) -> None:
    """Whether one was slow for it is the machine's doing; what a verdict is made of is not."""
    weather = folder / "weather"
    weather.write_text("")
    job = Job(play, folder, BURSTS, SOFTMRC_FAULTS=f"@{weather}")
    before = len(job.bursts(5))
    weather.write_text("2:black_hole")
    found = job.bursts(BURSTS - 2)
    with control.find_device(str(job.story.process.pid)) as node:
        events = node.events(("ev_state",)).events
    left = [one["at"] for one in events if one["plane"] == 2 and " is assumed bad" in one["text"]]
    hit = [one for one in found[before - 1 :] if one["resent"]]
    assert any(one["begun"] <= at <= one["begun"] + one["took_s"] + AROUND_S for one in hit for at in left), (hit, left)
    job.explain("--list")
    weather.unlink()
    end(job)


def test_others_mark_none(folder: Path) -> None:
    with Device(["127.0.0.1"]):
        done = CliRunner().invoke(app, ["explain", "-d", str(os.getpid())])
    assert done.exit_code == 1 and "this device is of verbs" in str(done.exception or done.output)
