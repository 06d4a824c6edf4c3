"""Jobs of real processes, broken in five ways, and explained."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from tests.collectives.ranks import ranks

from softmrc.collectives.recorder import MAX_RECORDINGS, _forget_old
from softmrc.collectives.ring_file import UNFINISHED, read
from softmrc.ops.explain import Cause, Explanation, worst
from softmrc_bench.broken_job import WAYS, verdicts

pytestmark = pytest.mark.process


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_the_way_in_which_a_job_is_broken_is_named(way: str) -> None:
    """On a machine that is busy with other things ranks lack a processor as well, and it is right to report that. Then
    the operations count that did not, or another run does. Whatever else is said may be wrong twice."""
    is_ranks = WAYS[way] in (Cause.LATE, Cause.PROCESSOR)
    said: list[list[Explanation]] = []
    wrong = 0
    while wrong < 3 and len(said) < 12:
        said.append(verdicts(way))
        found = [one for one in said[-1] if one.cause not in (Cause.PROCESSOR, Cause.NOTHING)]
        verdict = worst(found if found and WAYS[way] is not Cause.PROCESSOR else said[-1])
        if verdict.cause is WAYS[way] and (verdict.rank if is_ranks else verdict.plane) == 1:
            return
        wrong += verdict.cause is not Cause.PROCESSOR
    raise AssertionError([[str(verdict) for verdict in one] for one in said])


def test_ranks_keep_recordings_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with ranks(2) as group:
        group(lambda one: one.barrier().wait(20))
    assert not list(tmp_path.rglob("*.flight"))
    monkeypatch.setenv("SOFTMRC_RECORD", "1")
    with ranks(2) as group:
        for _ in range(5):
            group(lambda one: one.barrier().wait(20))
    recordings = [read(path) for path in sorted(tmp_path.rglob("*.flight"))]
    assert sorted(recording.owner.rank for recording in recordings) == [0, 1] and recordings[0].owner.pid == os.getpid()
    for recording in recordings:
        assert len(recording.operations) == 5 and (recording.operations["ended"] >= recording.operations["begun"]).all()
    assert recordings[0].owner.run == recordings[1].owner.run != ""
    assert not [thread for thread in threading.enumerate() if thread.name == "softmrc-recorder"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.rglob("*.flight"))


def test_without_a_place_for_recordings_ranks_run_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("SOFTMRC_RECORD", "1")
    (tmp_path / "softmrc").write_text("in the way")
    with ranks(2) as group:
        assert group(lambda one: one.barrier().wait(20)) == [None, None]
    assert "no flight recorder" in capfd.readouterr().err


def test_only_the_newest_recordings_of_the_dead_are_kept(tmp_path: Path) -> None:
    for i in range(MAX_RECORDINGS + 10):
        path = tmp_path / f"{(1 << 30) + i}-0.flight"
        path.touch()
        os.utime(path, (i, i))
    own = tmp_path / f"{os.getpid()}-0.flight"
    own.touch()
    os.utime(own, (0, 0))
    for pid in (1 << 30, os.getpid()):
        (tmp_path / f"{pid}-9.flight{UNFINISHED}").touch()
    _forget_old(tmp_path)
    assert [path.name for path in tmp_path.glob(f"*{UNFINISHED}")] == [f"{os.getpid()}-9.flight{UNFINISHED}"]
    (tmp_path / f"{os.getpid()}-9.flight{UNFINISHED}").unlink()
    left = {path.name for path in tmp_path.iterdir()}
    assert own.name in left and len(left) == MAX_RECORDINGS + 1
    assert f"{(1 << 30) + MAX_RECORDINGS + 9}-0.flight" in left
