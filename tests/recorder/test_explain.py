"""Why an operation was slow, from recordings of which the test knows what happened."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from softmrc.cli import app
from softmrc.collectives import ring_file
from softmrc.collectives.ring_file import LENGTHS, MAX_PLANES, Owner, PathEvent, RingFile, read
from softmrc.errors import ConfigError, UsageError
from softmrc.ops.explain import Cause, Explainer

USUAL_S, PAUSE_S, SLOW_ONE, COUNT = 0.026, 0.1, 60, 100
START = 1_700_000_000.0


class Job:
    """Four ranks that all-reduce a hundred times; what befalls number 60 is the test's choice."""

    def __init__(self, folder: Path, pid: int = 100, run: str = "") -> None:
        self.paths = [folder / f"{pid + rank}-0.flight" for rank in range(4)]
        self.recordings = [
            RingFile(path, Owner("mrc", rank, 4, pid + rank, "train", ("a", "b"), run))
            for rank, path in enumerate(self.paths)
        ]
        self.late = {rank: 0.0 for rank in range(4)}
        self.longer = 0.0
        self.dead: list[int] = []  # planes by which nothing comes any more
        self.dead_for: int | None = None  # this rank only
        self.left: list[int] = []  # planes by which only probes come any more
        self.kept: dict[int, float] = {}  # ranks for which number 60 ended later than for the others
        self.every_s = 0.02  # from one sample to the next
        self.samples: dict[int, dict[str, float]] = {rank: {} for rank in range(4)}  # what grows during number 60
        self.notes: dict[int, list[tuple[float, PathEvent, int, int, float]]] = {rank: [] for rank in range(4)}

    @property
    def slow_at(self) -> float:
        return START + SLOW_ONE * PAUSE_S

    def write(self) -> Explainer:
        rng = np.random.default_rng(1)
        for rank, recording in enumerate(self.recordings):
            for i in range(1, COUNT + 1):
                begun = START + i * PAUSE_S + rng.uniform(0, 0.001) + (self.late[rank] if i == SLOW_ONE else 0)
                begun += self.kept.get(rank, 0) if i == SLOW_ONE + 1 else 0
                last = START + i * PAUSE_S + (max(self.late.values()) if i == SLOW_ONE else 0)
                last += max(self.kept.values(), default=0) if i == SLOW_ONE + 1 else 0
                ended = last + USUAL_S + rng.uniform(0, 0.002) + (self.longer if i == SLOW_ONE else 0)
                ended += self.kept.get(rank, 0) if i == SLOW_ONE else 0
                recording.end_operation(recording.add("operations", 0, 1 << 20, begun, 0.0), ended)
            for at in np.arange(START, START + (COUNT + 1) * PAUSE_S, self.every_s):
                is_past = at > self.slow_at + 0.01
                grown = {key: value if is_past else 0 for key, value in self.samples[rank].items()}
                counters = [int(grown.get(key, 0)) for key in ("retransmitted", "twice", "timeouts", "left_slow")]
                noise = (at - START) * 0.01  # a thread always waits a little
                received = np.full(MAX_PLANES, (at - START) * 1e7)
                for plane in (*(self.dead if self.dead_for in (None, rank) else ()), *self.left):
                    received[plane] = min(at - START, self.slow_at - START) * 1e7
                    if plane in self.left:
                        received[plane] += max(0.0, at - self.slow_at) * 1e3
                recording.add("samples", at, noise + grown.get("waited", 0.0), *counters, received)
            for after, *note in self.notes[rank]:
                recording.add("notes", self.slow_at + after, *note)
        return Explainer([read(path) for path in self.paths])


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


LOST_SILENT = [(0.011, PathEvent.LOST, 3, 1, 37.0), (0.011, PathEvent.SILENT, 3, 1, 0.0)]
LOSSY = [(0.005, PathEvent.LOST, 1, 0, 40.0), (0.012, PathEvent.LOST, 3, 1, 10.0)]
SENT_AGAIN = {0: {"retransmitted": 37}}
# What befell it; the cause, rank, plane and peer that are named, and words.
CASES: dict[str, tuple[dict[str, Any], Cause, int, int, int, str]] = {
    "a plane fell silent": (
        {"longer": 0.015, "dead": [1], "samples": SENT_AGAIN, "notes": {0: LOST_SILENT}}, Cause.DEAD, 0, 1, 3,
        "plane 1 from rank 0 to rank 3 fell silent, 37 packets retransmitted, left after",
    ),
    # A busy machine samples late: what came just before the plane died is then counted with what came after.
    **{f"a plane died long after the last sample, {every_s} s": (
        {"longer": 0.1, "dead": [1], "every_s": every_s, "samples": SENT_AGAIN,
         "notes": {0: [(0.03, PathEvent.LOST, 3, 1, 37.0)]}}, Cause.DEAD, 0, 1, 3, "",
    ) for every_s in (0.02, 0.05, 0.08)},
    # What rank 0 sends arrives, and it does not hear of that.
    "no acknowledgement comes any more": (
        {"longer": 0.05, "dead": [1], "dead_for": 0, "samples": SENT_AGAIN, "notes": {0: LOST_SILENT[:1]}},
        Cause.DEAD, 3, 1, 0, "",
    ),
    # Nothing but probes comes by the plane any more, and some of them do.
    "a plane was left for its losses": (
        {"longer": 0.05, "left": [1], "samples": SENT_AGAIN, "notes": {0: LOST_SILENT}}, Cause.LOSSY, 0, 1, 3, "",
    ),
    "a rank came late": ({"late": {3: 0.038}}, Cause.LATE, 3, -1, -1, "rank 3 arrived 38 ms late: not the network"),
    "no processor before it came": (
        {"late": {2: 0.05}, "samples": {2: {"waited": 0.045}}}, Cause.PROCESSOR, 2, -1, -1, "not the network",
    ),
    "no processor while it reduced": (
        {"longer": 0.04, "samples": {1: {"waited": 0.035}}}, Cause.PROCESSOR, 1, -1, -1, "",
    ),
    **{f"a lossy path, {len(more)} times left": (
        {"longer": 0.02, "samples": {2: {"retransmitted": 50, "twice": 3}}, "notes": {2: LOSSY + more}},
        Cause.LOSSY, 2, 0, 1, "",
    ) for more in ([], [(0.02, PathEvent.SILENT, 1, 0, 0.0)])},
    **{f"a slow plane, {len(more)} times left": (
        {"longer": 0.02, "samples": {1: {"retransmitted": 50, "twice": 45, "left_slow": len(more)}},
         "notes": {1: [(0.005, PathEvent.LOST, 0, 1, 50.0), *more]}}, Cause.SLOW, 1, 1, 0, "",
    ) for more in ([], [(0.02, PathEvent.LEFT_SLOW, 0, 1, 0.0)])},
    # Packets were retransmitted in vain, and nothing was noted of the paths.
    "no recording names the plane": (
        {"longer": 0.02, "samples": {1: {"retransmitted": 50, "twice": 45}}}, Cause.SLOW, 1, -1, -1,
        "a plane from rank 1 answered late",
    ),
    "the recordings do not explain it": ({"longer": 0.05}, Cause.UNKNOWN, -1, -1, -1, ""),
    "something happened at another time": (
        {"late": {3: 0.038},
         "notes": {0: [(-2.0, PathEvent.SILENT, 3, 1, 0.0), (2.0, PathEvent.SILENT, 3, 1, 0.0)]}},
        Cause.LATE, 3, -1, -1, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_what_befell_an_operation_is_named(job: Job, what: str) -> None:
    befell, *expected, words = CASES[what]
    for name, value in befell.items():
        setattr(job, name, getattr(job, name) | value if isinstance(value, dict) else value)
    verdict = job.write().explain()
    assert [verdict.cause, verdict.rank, verdict.plane, verdict.peer] == expected and verdict.number == SLOW_ONE
    assert str(verdict).startswith("all_reduce 60 took ") and " usually 2" in str(verdict)
    assert words in str(verdict) and "-1" not in str(verdict)


def test_a_rank_that_an_operation_kept_is_not_blamed_for_coming_late_to_the_next(job: Job) -> None:
    job.kept = {2: 0.06}
    job.samples[1] = {"retransmitted": 50, "twice": 45}
    job.notes[1] = [(0.02, PathEvent.LOST, 2, 1, 50.0)]
    explainer = job.write()
    first, second = explainer.explain(SLOW_ONE), explainer.explain(SLOW_ONE + 1)
    assert (first.cause, first.plane) == (second.cause, second.plane) == (Cause.SLOW, 1)
    assert "rank 2 was kept" in second.words and f"by all_reduce {SLOW_ONE}: plane 1" in second.words
    assert second.lost_s < 0.01 < first.lost_s and explainer.explain().number == SLOW_ONE


def test_what_was_not_slow_is_not_explained(job: Job) -> None:
    explainer = job.write()
    assert explainer.slow() == [] and explainer.explain(5).cause is Cause.NOTHING


def test_a_tape_forgets_the_oldest(tmp_path: Path) -> None:
    path = tmp_path / "1-0.flight"
    recording = RingFile(path, Owner("g", 0, 1, 1, "p" * 10_000, ()))
    first = recording.add("operations", 0, 1, 1.0, 0.0)
    for i in range(LENGTHS["operations"] + 10):
        recording.end_operation(recording.add("operations", 0, 1, float(i), 0.0), float(i) + 1)
    recording.end_operation(first, 0.5)  # it is gone, and the one in its place is left alone
    found = read(path).operations
    assert len(found) == LENGTHS["operations"] and list(found["number"]) == sorted(found["number"])
    assert found["number"][-1] == LENGTHS["operations"] + 11 and 0.5 not in found["ended"]


def test_files_that_are_no_recordings_are_refused(tmp_path: Path, job: Job) -> None:
    job.write()
    whole = job.paths[0].read_bytes()
    wrong = {
        "empty": b"",
        "short": whole[:-1],
        "noise": b"\xff" * ring_file.SIZE,
        "other": whole.replace(b'"recording": 1', b'"recording": 7', 1),
        "nothing": b"{}".ljust(ring_file.HEAD_BYTES) + whole[ring_file.HEAD_BYTES :],
    }
    for name, data in wrong.items():
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(ConfigError, match="a recording of the flight recorder") as refused:
            read(path)
        assert str(refused.value).count("must be") == 1
    with pytest.raises(ConfigError):
        read(tmp_path / "absent")


def test_many_operations_are_looked_at_once_each(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full recording has thousands; looking at all of them for each of them took an hour."""
    job.late[3] = 0.038
    explainer = job.write()
    looks: list[int] = []
    honest = np.nanmin
    monkeypatch.setattr(np, "nanmin", lambda *given: looks.append(1) or honest(*given))
    assert explainer.explain().number == SLOW_ONE and len(explainer.slow()) == 1
    assert len(looks) <= 4 * COUNT


def test_the_command(tmp_path: Path, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.late[3] = 0.038
    job.write()
    recordings = [word for path in job.paths for word in ("--recording", str(path))]
    done = CliRunner().invoke(app, ["explain", *recordings])
    assert done.exit_code == 0 and "rank 3 arrived" in done.output
    (row,) = json.loads(CliRunner().invoke(app, ["explain", "--list", "--json", *recordings]).output)["operations"]
    assert (row["number"], row["cause"], row["rank"]) == (60, "late", 3)
    assert "know operation 999; they know 1 to 100" in str(
        CliRunner().invoke(app, ["explain", "999", *recordings]).exception
    )
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    nothing = CliRunner().invoke(app, ["explain"]).exception
    assert isinstance(nothing, UsageError) and "SOFTMRC_RECORD=1" in str(nothing)
    (tmp_path / "softmrc").mkdir(mode=0o700)
    for path in job.paths:
        path.rename(tmp_path / "softmrc" / path.name)
    assert "rank 3 arrived" in CliRunner().invoke(app, ["explain"]).output


def of(folder: Path, name: str, owner: Owner, written_at: int, slow: int = 10) -> Path:
    """A recording of twenty operations, of which one is slow."""
    recording = RingFile(folder / name, owner)
    for i in range(1, 21):
        recording.end_operation(
            recording.add("operations", 0, 1024, START + i, 0.0), START + i + (0.5 if i == slow else 0.001)
        )
    os.utime(folder / name, (written_at, written_at))
    return folder / name


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where recordings are looked for."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "softmrc").mkdir(mode=0o700)
    return tmp_path / "softmrc"


def explained(*words: str) -> tuple[str, str]:
    done = CliRunner().invoke(app, ["explain", *words])
    assert done.exit_code == 0, done.exception
    return done.stdout, done.stderr


def test_of_several_runs_in_one_folder_the_newest_is_explained(folder: Path) -> None:
    for rank in range(2):
        of(folder, f"{10 + rank}-0.flight", Owner("group", rank, 2, 10 + rank, "p", (), "aa"), 1000 + rank, slow=3)
    assert "all_reduce 3 took" in explained()[0]
    for rank in range(4):
        of(folder, f"{20 + rank}-0.flight", Owner("group", rank, 4, 20 + rank, "p", (), "bb"), 2000 + rank, slow=4)
    assert "all_reduce 4 took" in explained()[0] and "all_reduce 4 took" in explained("--group", "group")[0]
    # A run of as many, of which only these ranks are of this host: the others' recordings are of another run.
    for rank in (2, 3):
        of(folder, f"{30 + rank}-0.flight", Owner("group", rank, 4, 30 + rank, "p", (), "cc"), 3000 + rank, slow=5)
    assert "all_reduce 5 took" in explained()[0]
    (fourth,) = json.loads(explained("4", "--json")[0])["operations"]
    assert fourth["cause"] == "nothing"


def test_of_several_groups_of_a_job_the_one_that_did_most_is_explained(folder: Path) -> None:
    """Groups of torch are all called alike; the one made last may have done next to nothing."""
    for rank in range(2):
        of(folder, f"{10 + rank}-0.flight", Owner("mrc", rank, 2, 10 + rank, "train.py", (), "aa"), 1000 + rank, slow=3)
        late = RingFile(folder / f"{10 + rank}-1.flight", Owner("mrc", rank, 2, 10 + rank, "train.py", (), "bb"))
        late.end_operation(late.add("operations", 0, 1024, START, 0.0), START + 9)
        os.utime(late.path, (2000, 2000))
    shown, said = explained()
    assert "all_reduce 3 took" in shown and "mrc/aa" in said and "--groups" in said
    listed = explained("--groups")[0].splitlines()
    assert listed == [
        "mrc/aa: 20 operations, recordings of all ranks, train.py",
        "mrc/bb: 1 operation, recordings of all ranks, train.py",
    ]  # fmt: skip
    assert json.loads(explained("1", "--group", "mrc/bb", "--json")[0])["operations"][0]["took_s"] == 9
    assert [one["name"] for one in json.loads(explained("--groups", "--json")[0])["groups"]] == ["mrc/aa", "mrc/bb"]
    refused = CliRunner().invoke(app, ["explain", "--group", "nosuch"]).exception
    assert isinstance(refused, UsageError) and "no group nosuch; there are mrc/aa, mrc/bb" in str(refused)
    recordings = [word for path in folder.iterdir() for word in ("--recording", str(path))]
    refused = CliRunner().invoke(app, ["explain", "--group", "nosuch", *recordings]).exception
    assert isinstance(refused, UsageError) and "no group nosuch; there is mrc" in str(refused)


def test_a_healthy_job_is_said_to_be_one(folder: Path) -> None:
    of(folder, "10-0.flight", Owner("group", 0, 1, 10, "p", ()), 1000, slow=0)
    assert explained()[0] == explained("--list")[0] == "no operation took longer than usual\n"
    assert explained("5")[0].startswith("all_reduce 5 took 1.0 ms, usually 1.0 ms")


def test_what_lies_in_the_folder_and_is_no_recording_is_passed_over(folder: Path) -> None:
    whole = of(folder, "10-0.flight", Owner("group", 0, 1, 10, "p", ()), 1000)
    (folder / "5-0.flight").touch()
    shown, said = explained()
    assert "all_reduce 10 took" in shown and "5-0.flight" in said and said.count("\n") == 1
    (folder / "6-0.flight").write_bytes(whole.read_bytes().replace(b'"recording": 1', b'"recording": 0', 1))
    (folder / "7-0.flight").symlink_to("nowhere")
    shown, said = explained()
    assert "all_reduce 10 took" in shown and "so are 2 more" in said and said.count("\n") == 1
    named = CliRunner().invoke(app, ["explain", "--recording", str(whole), "--recording", str(folder / "5-0.flight")])
    assert isinstance(named.exception, ConfigError)


@pytest.mark.parametrize("letter", ["a", "ü", "\U0001f600", '"', "\x00", "\udcff"])
def test_a_long_command_line_is_cut_until_it_fits(tmp_path: Path, letter: str) -> None:
    planes = tuple(f"fd00:1234:5678:{i:04x}:0123:4567:89ab:cdef%interface{i:02}" for i in range(MAX_PLANES))
    path = of(tmp_path, "1-0.flight", Owner("g", 0, 1, 1, letter * 5000, planes), 1)
    found = read(path)
    assert found.owner.planes == planes and len(found.operations) == 20
    assert found.owner.program == letter * len(found.owner.program) and 100 < len(found.owner.program) <= 500
    assert path.stat().st_size == ring_file.SIZE


def test_a_group_whose_name_does_not_fit_has_no_recording_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="too long a name"):
        RingFile(tmp_path / "1-0.flight", Owner("g" * 5000, 0, 1, 1, "p", ()))
    RingFile(tmp_path / "2-0.flight", Owner("g", 0, 1, 1, "p", ()))
    with pytest.raises(FileExistsError):
        RingFile(tmp_path / "2-0.flight", Owner("g", 0, 1, 1, "p", ()))
    assert [path.name for path in tmp_path.iterdir()] == ["2-0.flight"]


def test_a_recording_is_seen_only_once_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed while it makes one leaves nothing that is taken for a recording."""
    seen: list[list[Path]] = []
    honest = os.link

    def link(source: Path, name: Path) -> None:
        seen.append(list(tmp_path.glob("*.flight")))
        honest(source, name)

    monkeypatch.setattr(os, "link", link)
    RingFile(tmp_path / "1-0.flight", Owner("g", 0, 1, 1, "p", ()))
    assert seen == [[]] and read(tmp_path / "1-0.flight").owner.group == "g"


@pytest.mark.parametrize(
    "what, other",
    [
        (b'"rank": 0', b'"rank": -5'),
        (b'"rank": 0', b'"rank": 2'),
        (b'"rank": 0', b'"rank": 1000000000000'),
        (b'"rank": 0', b'"rank": Infinity'),
        (b'"rank": 0', b'"rank": NaN'),
        (b'"size": 2', b'"size": 1000000000000'),
        (b'"size": 2', b'"size": 1e999'),
        (b'"pid": 1', b'"pid": -Infinity'),
        (b'"planes": []', b'"planes": 7'),
        (b'"rank": 0', b'"rank": "\\u001b[31m"'),
    ],
)
def test_whose_recording_it_is_must_make_sense(tmp_path: Path, what: bytes, other: bytes) -> None:
    path = of(tmp_path, "1-0.flight", Owner("g", 0, 2, 1, "p", ()), 1)
    data = path.read_bytes()
    head = data[: ring_file.HEAD_BYTES].replace(what, other, 1).rstrip().ljust(ring_file.HEAD_BYTES)
    assert head != data[: ring_file.HEAD_BYTES]
    path.write_bytes(head + data[ring_file.HEAD_BYTES :])
    with pytest.raises(ConfigError, match="a recording of the flight recorder") as refused:
        read(path)
    assert str(refused.value).isprintable()


def test_records_that_make_no_sense_are_left_out(job: Job) -> None:
    job.longer, job.dead = 0.015, [1]
    job.samples[0] = {"retransmitted": 37}
    job.notes[0] = [(0.011, PathEvent.LOST, 3, 1, 37.0), (0.011, PathEvent.SILENT, 3, 1, 0.0)]
    nan, inf = float("nan"), float("inf")
    for kind in (PathEvent.LOST, PathEvent.SILENT):
        for peer, plane, value in ((3, 99, 5.0), (3, -1, 5.0), (4, 1, 5.0), (-1, 1, 5.0), (3, 1, inf), (3, 1, nan)):
            job.notes[0].append((0.001, kind, peer, plane, value))
    job.notes[0].append((inf, PathEvent.SILENT, 3, 0, 0.0))
    before = str(job.write().explain())
    for begun, ended in ((nan, START), (START, nan), (-inf, START), (START, inf), (inf, inf), (START, START - 1)):
        number = job.recordings[0].add("operations", 0, 1 << 20, begun, 0.0)
        job.recordings[0].end_operation(number, ended)
    job.recordings[0].add("samples", nan, inf, 1 << 63, 1 << 63, 0, 0, np.full(MAX_PLANES, (1 << 64) - 1, dtype="u8"))
    job.recordings[0].add("samples", START + 99, inf, 0, 0, 0, 0, np.zeros(MAX_PLANES))
    explainer = Explainer([read(path) for path in job.paths])
    assert str(explainer.explain()) == before and "fell silent" in before
    assert [verdict.number for verdict in explainer.slow()] == [SLOW_ONE]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_a_damaged_recording_holds_is_explained_or_refused(tmp_path: Path, seed: int) -> None:
    """Bytes are changed anywhere; what comes out is a verdict or a sentence, and never takes much memory."""
    rng = np.random.default_rng(seed)
    job = Job(tmp_path)
    job.longer = 0.02
    job.samples[2] = {"retransmitted": 50, "twice": 3}
    job.notes[2] = [(0.005, PathEvent.LOST, 1, 0, 40.0), (0.012, PathEvent.SILENT, 3, 1, 10.0)]
    job.write()
    for path in job.paths:
        data = np.frombuffer(path.read_bytes(), dtype=np.uint8).copy()
        data[rng.integers(ring_file.HEAD_BYTES, len(data), 20_000)] = rng.integers(0, 256, 20_000)
        path.write_bytes(data.tobytes())
    explainer = Explainer([read(path) for path in job.paths])
    assert all(str(verdict) for verdict in explainer.slow()) and str(explainer.explain())


def test_a_rank_of_many_thousands_takes_no_more_room_than_another(tmp_path: Path) -> None:
    size = ring_file.MAX_RANKS
    ranks = (5, size - 1)
    paths = [of(tmp_path, f"{rank}-0.flight", Owner("g", rank, size, 1, "p", ()), 1) for rank in ranks]
    explainer = Explainer([read(path) for path in paths])
    assert explainer.explain().number == 10 and all(len(row.begun) == 2 for row in explainer._rows)
