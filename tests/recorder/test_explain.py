"""Why an operation was slow, from tapes of which the test knows what happened."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from softmrc.cli import app
from softmrc.errors import ConfigError, UsageError
from softmrc.recorder import tape as tape_room
from softmrc.recorder.explain import Cause, Explainer
from softmrc.recorder.tape import LENGTHS, MOST_PLANES, Note, Owner, Tape, read

USUAL_S, PAUSE_S, SLOW_ONE, COUNT = 0.026, 0.1, 60, 100
START = 1_700_000_000.0


class Job:
    """Four ranks that all-reduce a hundred times; what befalls number 60 is the test's choice."""

    def __init__(self, folder: Path) -> None:
        self.paths = [folder / f"{100 + rank}-0.flight" for rank in range(4)]
        self.tapes = [
            Tape(path, Owner("mrc", rank, 4, 100 + rank, "train", ("a", "b"))) for rank, path in enumerate(self.paths)
        ]
        self.late = {rank: 0.0 for rank in range(4)}
        self.longer = 0.0
        self.dead: list[int] = []  # planes by which nothing comes any more
        self.dead_for: int | None = None  # this rank only
        self.left: list[int] = []  # planes by which only probes come any more
        self.kept: dict[int, float] = {}  # ranks for which number 60 ended later than for the others
        self.every_s = 0.02  # from one sample to the next
        self.samples: dict[int, dict[str, float]] = {rank: {} for rank in range(4)}  # what grows during number 60
        self.notes: dict[int, list[tuple[float, Note, int, int, float]]] = {rank: [] for rank in range(4)}

    @property
    def slow_at(self) -> float:
        return START + SLOW_ONE * PAUSE_S

    def write(self) -> Explainer:
        rng = np.random.default_rng(1)
        for rank, tape in enumerate(self.tapes):
            for i in range(1, COUNT + 1):
                begun = START + i * PAUSE_S + rng.uniform(0, 0.001) + (self.late[rank] if i == SLOW_ONE else 0)
                begun += self.kept.get(rank, 0) if i == SLOW_ONE + 1 else 0
                last = START + i * PAUSE_S + (max(self.late.values()) if i == SLOW_ONE else 0)
                last += max(self.kept.values(), default=0) if i == SLOW_ONE + 1 else 0
                ended = last + USUAL_S + rng.uniform(0, 0.002) + (self.longer if i == SLOW_ONE else 0)
                ended += self.kept.get(rank, 0) if i == SLOW_ONE else 0
                tape.end_operation(tape.add("operations", 0, 1 << 20, begun, 0.0), ended)
            for at in np.arange(START, START + (COUNT + 1) * PAUSE_S, self.every_s):
                is_past = at > self.slow_at + 0.01
                grown = {key: value if is_past else 0 for key, value in self.samples[rank].items()}
                counters = [int(grown.get(key, 0)) for key in ("resent", "twice", "timeouts", "left_slow")]
                noise = (at - START) * 0.01  # a thread always waits a little
                received = np.full(MOST_PLANES, (at - START) * 1e7)
                for plane in (*(self.dead if self.dead_for in (None, rank) else ()), *self.left):
                    received[plane] = min(at - START, self.slow_at - START) * 1e7
                    if plane in self.left:
                        received[plane] += max(0.0, at - self.slow_at) * 1e3
                tape.add("samples", at, noise + grown.get("waited", 0.0), *counters, received)
            for after, *note in self.notes[rank]:
                tape.add("notes", self.slow_at + after, *note)
        return Explainer([read(path) for path in self.paths])


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_a_plane_that_fell_silent(job: Job) -> None:
    job.longer, job.dead = 0.015, [1]
    job.samples[0] = {"resent": 37}
    job.notes[0] = [(0.011, Note.LOST, 3, 1, 37.0), (0.011, Note.SILENT, 3, 1, 0.0)]
    verdict = job.write().explain()
    assert (verdict.number, verdict.cause, verdict.rank, verdict.plane, verdict.peer) == (60, Cause.DEAD, 0, 1, 3)
    assert str(verdict).startswith("all_reduce 60 took 4") and "usually 2" in str(verdict)
    assert "plane 1 from rank 0 to rank 3 fell silent, 37 packets sent again, left after" in str(verdict)


@pytest.mark.parametrize("every_s", [0.02, 0.05, 0.08])
def test_a_plane_that_died_long_after_the_last_sample(job: Job, every_s: float) -> None:
    """A busy machine samples late: what came just before the plane died is then counted with what came after."""
    job.longer, job.dead, job.every_s = 0.1, [1], every_s
    job.samples[0] = {"resent": 37}
    job.notes[0] = [(0.03, Note.LOST, 3, 1, 37.0)]
    verdict = job.write().explain()
    assert (verdict.cause, verdict.rank, verdict.plane, verdict.peer) == (Cause.DEAD, 0, 1, 3)


def test_a_plane_by_which_no_acknowledgement_comes_any_more(job: Job) -> None:
    """What rank 0 sends arrives, and it does not hear of that."""
    job.longer, job.dead, job.dead_for = 0.05, [1], 0
    job.samples[0] = {"resent": 37}
    job.notes[0] = [(0.011, Note.LOST, 3, 1, 37.0)]
    verdict = job.write().explain()
    assert (verdict.cause, verdict.rank, verdict.plane, verdict.peer) == (Cause.DEAD, 3, 1, 0)


def test_a_plane_that_was_left_for_its_losses_is_not_dead(job: Job) -> None:
    """Nothing but probes comes by it any more, and some of them do."""
    job.longer, job.left = 0.05, [1]
    job.samples[0] = {"resent": 37}
    job.notes[0] = [(0.011, Note.LOST, 3, 1, 37.0), (0.011, Note.SILENT, 3, 1, 0.0)]
    assert job.write().explain().cause is Cause.LOSSY


def test_a_rank_that_an_operation_kept_is_not_blamed_for_coming_late_to_the_next(job: Job) -> None:
    job.kept = {2: 0.06}
    job.samples[1] = {"resent": 50, "twice": 45}
    job.notes[1] = [(0.02, Note.LOST, 2, 1, 50.0)]
    explainer = job.write()
    first, second = explainer.explain(SLOW_ONE), explainer.explain(SLOW_ONE + 1)
    assert (first.cause, first.plane) == (second.cause, second.plane) == (Cause.SLOW, 1)
    assert "rank 2 was kept" in second.words and f"by all_reduce {SLOW_ONE}: plane 1" in second.words
    assert second.lost_s < 0.01 < first.lost_s and explainer.explain().number == SLOW_ONE


def test_a_rank_that_came_late(job: Job) -> None:
    job.late[3] = 0.038
    verdict = job.write().explain()
    assert (verdict.number, verdict.cause, verdict.rank) == (60, Cause.LATE, 3)
    assert "rank 3 arrived 38 ms late: not the network" in str(verdict)


def test_a_rank_that_had_no_processor_before_it_came(job: Job) -> None:
    job.late[2] = 0.05
    job.samples[2] = {"waited": 0.045}
    verdict = job.write().explain()
    assert (verdict.cause, verdict.rank) == (Cause.PROCESSOR, 2) and "not the network" in str(verdict)


def test_a_rank_that_had_no_processor_while_it_reduced(job: Job) -> None:
    job.longer = 0.04
    job.samples[1] = {"waited": 0.035}
    verdict = job.write().explain()
    assert (verdict.cause, verdict.rank) == (Cause.PROCESSOR, 1)


@pytest.mark.parametrize("is_left", [True, False])
def test_a_lossy_path(job: Job, is_left: bool) -> None:
    job.longer = 0.02
    job.samples[2] = {"resent": 50, "twice": 3}
    job.notes[2] = [(0.005, Note.LOST, 1, 0, 40.0), (0.012, Note.LOST, 3, 1, 10.0)]
    if is_left:
        job.notes[2].append((0.02, Note.SILENT, 1, 0, 0.0))
    verdict = job.write().explain()
    assert (verdict.cause, verdict.rank, verdict.plane, verdict.peer) == (Cause.LOSSY, 2, 0, 1)


@pytest.mark.parametrize("is_left", [True, False])
def test_a_slow_plane(job: Job, is_left: bool) -> None:
    job.longer = 0.02
    job.samples[1] = {"resent": 50, "twice": 45, "left_slow": int(is_left)}
    job.notes[1] = [(0.005, Note.LOST, 0, 1, 50.0)]
    if is_left:
        job.notes[1].append((0.02, Note.LEFT_SLOW, 0, 1, 0.0))
    verdict = job.write().explain()
    assert (verdict.cause, verdict.plane) == (Cause.SLOW, 1)


def test_what_the_tapes_do_not_explain_is_said_to_be_unknown(job: Job) -> None:
    job.longer = 0.05
    assert job.write().explain().cause is Cause.UNKNOWN


def test_what_was_not_slow_is_not_explained(job: Job) -> None:
    explainer = job.write()
    assert explainer.slow() == [] and explainer.explain(5).cause is Cause.NOTHING


def test_what_happened_at_another_time_is_no_cause(job: Job) -> None:
    job.late[3] = 0.038
    job.notes[0] = [(-2.0, Note.SILENT, 3, 1, 0.0), (2.0, Note.SILENT, 3, 1, 0.0)]
    assert job.write().explain().cause is Cause.LATE


def test_a_tape_forgets_the_oldest(tmp_path: Path) -> None:
    path = tmp_path / "1-0.flight"
    tape = Tape(path, Owner("g", 0, 1, 1, "p" * 10_000, ()))
    first = tape.add("operations", 0, 1, 1.0, 0.0)
    for i in range(LENGTHS["operations"] + 10):
        tape.end_operation(tape.add("operations", 0, 1, float(i), 0.0), float(i) + 1)
    tape.end_operation(first, 0.5)  # it is gone, and whoever has its place is left alone
    found = read(path).operations
    assert len(found) == LENGTHS["operations"] and list(found["number"]) == sorted(found["number"])
    assert found["number"][-1] == LENGTHS["operations"] + 11 and 0.5 not in found["ended"]


def test_files_that_are_no_tapes_are_refused(tmp_path: Path, job: Job) -> None:
    job.write()
    whole = job.paths[0].read_bytes()
    wrong = {
        "empty": b"",
        "short": whole[:-1],
        "noise": b"\xff" * tape_room.SIZE,
        "other": whole.replace(b'"tape": 1', b'"tape": 7', 1),
        "nothing": b"{}".ljust(tape_room.HEAD_BYTES) + whole[tape_room.HEAD_BYTES :],
    }
    for name, data in wrong.items():
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(ConfigError, match="a flight recorder's file"):
            read(path)
    with pytest.raises(ConfigError):
        read(tmp_path / "absent")


def test_many_operations_are_looked_at_once_each(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full tape has thousands; looking at all of them for each of them took an hour."""
    job.late[3] = 0.038
    explainer = job.write()
    looks: list[int] = []
    honest = np.nanmin
    monkeypatch.setattr(np, "nanmin", lambda *given: looks.append(1) or honest(*given))
    assert explainer.explain().number == SLOW_ONE and len(explainer.slow()) == 1
    assert len(looks) <= 4 * COUNT


def test_a_file_that_is_no_tape_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(ConfigError) as refused:
        read(tmp_path / "x")
    assert str(refused.value).count("is not allowed") == 1


def test_the_command(tmp_path: Path, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.late[3] = 0.038
    job.write()
    tapes = [word for path in job.paths for word in ("--tape", str(path))]
    done = CliRunner().invoke(app, ["explain", *tapes])
    assert done.exit_code == 0 and "rank 3 arrived" in done.output
    (row,) = [
        json.loads(line) for line in CliRunner().invoke(app, ["explain", "--all", "--json", *tapes]).output.splitlines()
    ]
    assert (row["number"], row["cause"], row["rank"]) == (60, "late", 3)
    assert "know operation 999; they know 1 to 100" in str(
        CliRunner().invoke(app, ["explain", "999", *tapes]).exception
    )
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    nothing = CliRunner().invoke(app, ["explain"]).exception
    assert isinstance(nothing, UsageError) and "SOFTMRC_RECORD=1" in str(nothing)
    (tmp_path / "softmrc").mkdir(mode=0o700)
    for path in job.paths:
        path.rename(tmp_path / "softmrc" / path.name)
    assert "rank 3 arrived" in CliRunner().invoke(app, ["explain"]).output
