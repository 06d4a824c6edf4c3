"""The demo's arithmetic on made-up jobs, the choice of its network, and its page. Whole demos are in tests/torch."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from in_process import Done, softmrc_here
from softmrc.cli import demo as command
from softmrc.demo import namespaces, report, story
from softmrc.demo.drawing import drawing
from softmrc.demo.loopback import Loopback
from softmrc.demo.outcome import (
    Outcome,
    headline,
    outcome_of,
    outcomes,
    percent,
    pick,
    where_tcp_is_better,
    withdrawal_of,
)
from softmrc.demo.planes import FAULTS, Planes
from softmrc.demo.ranks import RankMessage, RankPlace
from softmrc.demo.script import FLAP_S, LEAST_S, MOST_S, Director, ScriptedFault, scripted
from softmrc.demo.story import MRC, TCP, NetworkSample, TrainingRun, perform
from softmrc.demo.traffic import Traffic, _ports
from softmrc.engine import EvState
from softmrc.errors import ConfigError, InternalError, UsageError

SILENT = ScriptedFault("plane 2 silent", "silent", (2,), step=2, lasts_s=0.5)
times_ms = st.lists(st.floats(1.0, 5000.0), min_size=3, max_size=40)


def job(transport: str, step_ms: Sequence[float], fault: ScriptedFault | None = None, **more: object) -> TrainingRun:
    """One that took these times, with one fault from its third step on."""
    ends = list(np.cumsum(step_ms) / 1e3)
    run = TrainingRun(transport, len(step_ms), (fault,) if fault else (), 0.0, ends, list(step_ms), [1.0] * len(ends))
    run.digests, run.parameters = {0: "weights", 1: "weights"}, 7
    if fault:
        run.bands = [(fault, ends[1], min(ends[1] + fault.lasts_s, ends[-1]))]
    for name, value in more.items():
        setattr(run, name, value)
    return run


@given(times_ms, times_ms)
def test_figures_of_a_job_that_ends(calm_ms: list[float], faulty_ms: list[float]) -> None:
    calm, faulty = job(MRC, calm_ms), job(MRC, faulty_ms, SILENT)
    faulty.losses = calm.losses
    found = outcome_of(calm, faulty)
    assert (found.faults, found.failed_steps, found.stopped_at, found.is_identical) == (1, 0, None, True)
    assert found.stall_s == max(0.0, max(faulty_ms[1:]) - float(np.median(calm_ms[1:]))) / 1e3
    assert math.isclose(found.run_s, sum(faulty_ms) / 1e3) and math.isclose(
        found.calm_s * (1 + found.extra), found.run_s
    )
    assert "0 failed steps" in found.words and found.words.endswith("run time, identical weights")


@given(times_ms)
def test_a_job_that_stops(faulty_ms: list[float]) -> None:
    faulty = job(TCP, faulty_ms, SILENT, stopped="rank 1: RuntimeError: timed out", digests={})
    faulty.steps = 100
    found = outcome_of(job(TCP, [10.0] * 5), faulty)
    assert found.stopped_at == len(faulty_ms) + 1 and found.failed_steps == 1 and not found.is_identical
    assert found.words == f"job stopped at step {len(faulty_ms) + 1} of 100"


def test_a_job_that_stops_at_its_first_step() -> None:
    empty = job(TCP, [], None, stopped="rank 0: it fails")
    found = outcome_of(job(TCP, [10.0] * 5), empty)
    assert (found.stopped_at, found.stall_s, found.run_s) == (1, 0.0, 0.0)


@pytest.mark.parametrize("digests", [{}, {0: "a", 1: "b"}, {0: "other", 1: "other"}])
def test_weights_that_differ(digests: dict[int, str]) -> None:
    faulty = job(MRC, [10.0] * 5, SILENT, digests=digests)
    assert not outcome_of(job(MRC, [10.0] * 5), faulty).is_identical


def test_losses_that_differ() -> None:
    faulty = job(MRC, [10.0] * 5, SILENT, losses=[1.0, 1.0, 2.0, 1.0, 1.0])
    assert not outcome_of(job(MRC, [10.0] * 5), faulty).is_identical


def test_the_headline_is_of_the_jobs_that_had_faults() -> None:
    calm, faulty = job(MRC, [100.0] * 10), job(MRC, [100.0] * 9 + [150.0], SILENT)
    tcp = [job(TCP, [100.0] * 10), job(TCP, [100.0] * 9 + [2100.0], SILENT)]
    words = headline(outcomes([calm, faulty, *tcp]))
    assert words == (
        "1 network fault. MRC: 0 failed steps, longest stall 0.05 s, +5 % run time, identical weights. "
        "TCP: 0 failed steps, longest stall 2.0 s, +200 % run time, identical weights."
    )
    assert "TCP" not in headline(outcomes([calm, faulty, tcp[0]]))
    assert pick([calm, faulty, tcp[0]], TCP, True) is None


shares = st.floats(0.1, 10.0)


@given(shares, shares, shares, shares, shares, shares)
def test_what_tcp_does_better_is_said(a: float, b: float, c: float, d: float, e: float, f: float) -> None:
    mrc = Outcome(MRC, 10, 1, None, a, b, c, True)
    tcp = Outcome(TCP, 10, 1, None, d, e, f, True)
    words = where_tcp_is_better(mrc, tcp)
    assert ("longest stall" in words) == (d < a)
    assert ("undisturbed run" in words) == (e < b)
    assert ("less run time" in words) == (f / e < c / b)
    stopped = Outcome(MRC, 10, 1, 4, a, b, c, False)
    assert "its job ended" in where_tcp_is_better(stopped, tcp)
    assert "ended" not in where_tcp_is_better(mrc, Outcome(TCP, 10, 1, 4, d, e, f, False))


def looks(bad: Sequence[int], of: int = 96) -> list[NetworkSample]:
    """One every 100 ms, with so many paths withdrawn."""
    found = []
    for i, count in enumerate(bad):
        states = np.zeros((4, len(EvState)), dtype=int)
        states[2, EvState.ASSUMED_BAD.value], states[0, EvState.GOOD.value] = count, of - count
        found.append(NetworkSample(i / 10, np.zeros(4), states))
    return found


@given(st.integers(1, 40), st.integers(0, 10), st.integers(0, 4), st.integers(0, 20))
def test_how_long_paths_took(most: int, base: int, late: int, back: int) -> None:
    """The fault begins at 1.0 s and ends at 1.5 s."""
    fault = (SILENT, 1.0, 1.5)
    bad = [base] * (11 + late) + [base + most] * (5 - late + back) + [base] * 5
    found = withdrawal_of(job(MRC, [100.0] * 60, SILENT, bands=[fault], looks=looks(bad)), SILENT)
    assert found is not None and (found.withdrawn, found.paths) == (most, 96)
    assert math.isclose(found.within_s, (late + 1) / 10)
    assert found.back_s is not None and math.isclose(found.back_s, (back + 1) / 10)
    assert found.sentence.startswith(f"{most} of 96 paths withdrawn within {100 * (late + 1)} ms, back ")


def test_paths_that_stay_good_or_bad() -> None:
    fault = (SILENT, 1.0, 1.5)
    never = withdrawal_of(job(MRC, [100.0] * 30, SILENT, bands=[fault], looks=looks([0] * 30)), SILENT)
    assert never is not None and never.sentence == "no path withdrawn"
    stay = withdrawal_of(job(MRC, [100.0] * 30, SILENT, bands=[fault], looks=looks([0] * 11 + [9] * 19)), SILENT)
    assert stay is not None and stay.back_s is None and "back" not in stay.sentence
    assert withdrawal_of(job(MRC, [100.0] * 30, SILENT), SILENT) is None


def test_steps_that_a_fault_touched() -> None:
    run = job(TCP, [100.0, 100.0, 3000.0, 100.0, 100.0], SILENT)
    assert list(run.during(SILENT)) == [3000.0], "the step under way, however long it lasts"
    assert not len(run.during(ScriptedFault("another", "down", (0,))))


# The script.

faults = st.lists(
    st.builds(ScriptedFault, st.text(min_size=1), st.sampled_from(["silent", "flap", "down"]), st.just((1,))),
    min_size=1, max_size=6,
)  # fmt: skip


@given(faults, st.integers(20, 300), st.floats(0.01, 1.0), st.floats(0.1, 30.0))
def test_faults_come_one_by_one_and_are_repaired(
    some: list[ScriptedFault], steps: int, step_s: float, stop_s: float
) -> None:
    script = scripted(tuple(some), steps, step_s)
    assert all(LEAST_S <= one.lasts_s <= MOST_S for one in script)
    assert [one.label for one in script] == [one.label for one in some]
    assert all(0 <= one.step < steps for one in script)
    broken: list[ScriptedFault] = []

    def break_it(fault: ScriptedFault, is_broken: bool) -> None:
        broken.append(fault) if is_broken else broken.remove(fault)
        assert len(broken) <= 1

    director = Director(script, break_it)
    changed = []
    for at in range(int(min(stop_s, steps * step_s) / 0.05)):
        changed += director.tick(int(at * 0.05 / step_s), at * 0.05)
        assert not broken or broken == [director.active]
    assert [began for _, began in changed] == [i % 2 == 0 for i in range(len(changed))]
    director.stop()
    assert not broken and director.active is None


def test_a_fault_waits_until_data_is_on_its_way() -> None:
    orders: list[bool] = []
    fault = ScriptedFault("silent", "silent", (0,), step=3, delay_s=0.5)
    director = Director((fault,), lambda fault, is_broken: orders.append(is_broken))
    assert [director.tick(step, now) for step, now in ((2, 0.0), (3, 1.0), (3, 1.4), (4, 1.45))] == [[]] * 4
    assert director.tick(4, 1.5) == [(fault, True)] and orders == [True]


def test_a_flapping_link() -> None:
    orders: list[bool] = []
    flap = ScriptedFault("flap", "flap", (0,), rank=2, step=3, lasts_s=1.0)
    director = Director((flap,), lambda fault, is_broken: orders.append(is_broken))
    assert director.tick(2, 0.0) == [] and not orders
    assert director.tick(3, 1.0) == [(flap, True)] and orders == [True]
    director.tick(3, 1.0 + FLAP_S / 2)
    assert orders == [True]
    director.tick(3, 1.0 + FLAP_S)
    assert orders == [True, False]
    assert director.tick(3, 2.0) == [(flap, False)] and orders == [True, False], "it is up, and stays so"
    assert director.tick(3, 3.0) == [], "what is over does not come back"


# The whole course, with ranks that only report.


class Reporters:
    """Replaces `DemoRanks`: reports what ranks would, and fails at a given step."""

    started: ClassVar[list[Reporters]] = []
    fails: ClassVar[tuple[str, int]] = ("", 0)  # a job, and the step before which one of its ranks fails

    def __init__(self, places: Sequence[RankPlace], env: Mapping[str, str]) -> None:
        self.size, self.is_open = len(places), True
        self._reports: list[RankMessage] = []
        self.started.append(self)

    def __enter__(self) -> Reporters:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_open = False

    def order(self, rank: int | None, what: dict[str, Any]) -> None:
        if what["do"] != "train":
            return
        assert self.is_open
        job, failing = self.fails
        at = time.monotonic()
        self._reports = [RankMessage(0, "begun", {"at": at})]
        for step in range(what["steps"]):
            if (what["run"], step) == (job, failing):
                self._reports.append(RankMessage(1, "failed", {"why": "RuntimeError: timed out"}))
                break
            content = {"step": step, "at": at + (step + 1) / 100, "ms": 10.0, "loss": 1.0}
            self._reports.append(RankMessage(0, "step", content))
        else:
            done = {"digest": what["backend"], "parameters": 7}
            self._reports += [RankMessage(rank, "done", done) for rank in range(self.size)]

    def next(self, timeout_s: float) -> RankMessage | None:
        return self._reports.pop(0) if self._reports else None


class Silence:
    """A view that shows nothing."""

    def begin(self, *_: object) -> None: ...
    def watch(self, *_: object) -> None: ...
    def end(self, *_: object) -> None: ...


@pytest.fixture
def reporters(monkeypatch: pytest.MonkeyPatch) -> type[Reporters]:
    monkeypatch.setattr(story, "DemoRanks", Reporters)
    monkeypatch.setattr(Reporters, "started", [])
    monkeypatch.setattr(Reporters, "fails", ("", 0))
    return Reporters


def test_the_course_without_faults_for_tcp(reporters: type[Reporters]) -> None:
    runs = perform(Loopback(4), 40, {}, Silence())
    assert [run.name for run in runs] == ["MRC, undisturbed", "MRC, with faults", "TCP, undisturbed"]
    assert len(reporters.started) == 1 and not reporters.started[0].is_open
    assert all(run.digest == ("mrc" if run.transport == MRC else "gloo") for run in runs)


def test_a_job_that_stops_does_not_stop_the_others(reporters: type[Reporters], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporters, "fails", ("MRC, with faults", 25))
    monkeypatch.setattr(Loopback, "breaks_tcp", True)
    runs = perform(Loopback(4), 40, {}, Silence())
    assert [bool(run.stopped) for run in runs] == [False, True, False, False]
    assert [one.is_open for one in reporters.started] == [False, False], "the other jobs had new ranks"
    mrc, tcp = outcomes(runs)
    assert mrc.words == "job stopped at step 26 of 40" and tcp.words.startswith("0 failed steps")
    assert "timed out" in runs[1].stopped and "its job ended" in where_tcp_is_better(mrc, tcp)


def test_an_undisturbed_job_that_stops_is_an_error(reporters: type[Reporters], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporters, "fails", ("TCP, undisturbed", 3))
    with pytest.raises(InternalError, match="undisturbed job over TCP stopped: rank 1: RuntimeError: timed out"):
        perform(Loopback(4), 40, {}, Silence())
    assert not reporters.started[0].is_open


# What planes carry.


def test_rates_of_planes() -> None:
    at = np.array([0.0, 1.0, 2.0])
    delivered = np.array([[0.0, 0.0], [1e9 / 8, 0.0], [1e9 / 8, 1e9 / 4]])
    found = Traffic(at + 5, delivered * 2, delivered).since(5.0)
    assert found.rates_gbps(np.array([0.0, 1.0, 2.0])).tolist() == [[1.0, 0.0], [0.0, 2.0]]
    assert found.rates_gbps(np.array([0.0, 2.0]), given=True).tolist() == [[1.0], [2.0]]
    assert found.last_given_s([0], 0.0, 2.0, 100) == 1.0 and found.last_given_s([1], 0.0, 1.0, 100) is None


def test_counters_of_a_switch() -> None:
    ports = b"head\nhead\n  lo: 9 0 0 0 0 0 0 0 9 0\n rank0: 10 1 0 0 0 0 0 0 20 2 0\n rank1: 5 1 0 0 0 0 0 0 7 2 0\n"
    assert _ports(ports) == (15, 27)


def test_words_of_the_zoom() -> None:
    """Plane 0 goes silent at 0 s, after half a second of training; plane 1 then carries twice as much."""
    at = np.array([-0.5, 0.0, 0.1, 1.0])
    delivered = np.array([[0.0, 0.0], [5e6, 5e6], [5e6, 7e6], [5e6, 25e6]])
    given_too = np.array([[0.0, 0.0], [5e6, 5e6], [6e6, 7e6], [6e6, 25e6]])
    words = report.zoom_words(Traffic(at, given_too, delivered), [0], 0.5, 1.0)
    assert "The last data was sent into the silent plane 100 ms after" in words and "delivered 100 % of" in words
    words = report.zoom_words(Traffic(at, delivered, delivered), [0, 0], 0.5, 1.0)
    assert "No data was sent into the silent planes" in words


# The choice of the network.


def demo_here(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[Done, list[object]]:
    """The command without training; returns the networks that it chose."""
    chosen: list[object] = []

    def refuse(network: object, *_: object) -> None:
        chosen.append(network)
        raise UsageError("nothing trains here")

    monkeypatch.setattr(command, "perform", refuse)
    monkeypatch.setattr(Planes, "__enter__", lambda self: self)
    return softmrc_here("demo", *arguments), chosen


@pytest.fixture(autouse=True)
def in_own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def never() -> None:
        raise AssertionError("the test's own process would be replaced")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(namespaces, "restart_in_user_namespace", never)


def allow(monkeypatch: pytest.MonkeyPatch, root: bool, users: bool) -> None:
    def why_not(in_user_namespace: bool = False) -> str:
        return "" if root or (in_user_namespace and users) else "Operation not permitted"

    monkeypatch.setattr(namespaces, "why_not", why_not)


def test_root_gets_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, root=True, users=True)
    done, chosen = demo_here(monkeypatch)
    assert [type(one) for one in chosen] == [Planes] and "the kernel breaks them" in done.stdout


def test_an_ordinary_user_gets_a_user_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    class RestartedError(Exception):
        pass

    def restart() -> None:
        raise RestartedError

    allow(monkeypatch, root=False, users=True)
    monkeypatch.setattr(namespaces, "restart_in_user_namespace", restart)
    with pytest.raises(RestartedError):
        demo_here(monkeypatch)


@pytest.mark.parametrize("users", [True, False])
def test_without_either_it_falls_back_and_says_so_in_a_line(monkeypatch: pytest.MonkeyPatch, users: bool) -> None:
    """Also where a user namespace was promised, and the command that started again in it may do nothing in it."""
    allow(monkeypatch, root=False, users=users)
    monkeypatch.setattr(namespaces, "is_restarted", users)
    done, chosen = demo_here(monkeypatch)
    assert [type(one) for one in chosen] == [Loopback]
    assert "Without network namespaces (Operation not permitted): only MRC meets faults" in done.stdout.splitlines()[0]


def test_loopback_is_to_be_had_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, root=True, users=True)
    done, chosen = demo_here(monkeypatch, "--loopback")
    assert [type(one) for one in chosen] == [Loopback] and "as asked by --loopback" in done.stdout


def test_a_lab_without_root_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    done = softmrc_here("demo", "--lab")
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "root" in done.stderr


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = softmrc_here("demo", "--loopback")
    assert done.returncode == 1 and isinstance(done.error, UsageError)
    assert done.stderr.count("\n") == 1 and "pip install torch" in done.stderr


def test_too_few_steps_for_the_faults_are_refused() -> None:
    for form, least in (["--loopback"], 4 * len(Loopback.faults)), (["--lab"], 8):
        done = softmrc_here("demo", *form, "--steps", str(least - 1))
        assert isinstance(done.error, ConfigError) and f"at least {least}" in str(done.error)


def test_why_not_leaves_this_process_where_it_is() -> None:
    before = Path("/proc/thread-self/ns/net").readlink(), Path("/proc/thread-self/ns/user").readlink()
    reasons = namespaces.why_not(), namespaces.why_not(in_user_namespace=True)
    assert all(isinstance(one, str) for one in reasons)
    assert before == (Path("/proc/thread-self/ns/net").readlink(), Path("/proc/thread-self/ns/user").readlink())


# The page.


def whole_story(with_tcp: bool = True) -> list[TrainingRun]:
    at = np.arange(0.0, 5.0, 0.01)
    sent = np.outer(at, np.ones(4)) * 1e6
    bad = [0] * 4 + [24] * 10 + [0] * 20
    traffic = Traffic(at, sent, sent)
    mrc = job(MRC, [100.0] * 40, SILENT, looks=looks(bad), traffic=traffic)
    mrc.counters = {"packets_sent": 1234, "packets_retransmitted": 56}
    tcp = job(TCP, [90.0] * 20 + [2500.0] + [90.0] * 19, SILENT, traffic=traffic)
    return [job(MRC, [95.0] * 40), mrc, job(TCP, [90.0] * 40, digests={0: "gloo"}), *([tcp] if with_tcp else [])]


def test_the_page_says_it_all() -> None:
    network = Planes(4)
    text = report.page(whole_story(), network, is_encrypted=False, command="softmrc demo --steps 40", load=0.5)
    for words in (
        "1 network fault while 4 ranks train", "</b>: 0 failed steps, longest stall 2.4 s", "Where TCP is better: ",
        "A plane is one of several", "plane 2 silent", "Steps completed", "5th to their 95th", network.tcp_text,
        "First fault, plane 2 silent: 200 ms of MRC", "200 ms of TCP", "paths withdrawn within",
        "another order than MRC", "softmrc demo --steps 40", "seed 0", "softmrc ctl faults", "1,234 packets sent",
    ):  # fmt: skip
        assert words in text.replace("&#x27;", "'"), words
    assert not re.search(r"https?://(?!www\.w3\.org)", text), "nothing to fetch"
    assert text.count('class="at-wide"') == text.count('class="at-narrow"') == 6


def test_the_page_of_loopback_claims_nothing_of_tcp_with_faults() -> None:
    runs = whole_story(with_tcp=False)
    for run in runs:
        run.traffic = None
    text = report.page(runs, Loopback(4), is_encrypted=True, command="softmrc demo --loopback", load=9.0)
    assert Loopback.tcp_text in text and "<b>TCP</b>" not in text and "First fault" not in text
    assert "MRC encrypted" in text


def test_the_page_of_a_job_that_stopped() -> None:
    runs = whole_story()
    runs[-1] = job(TCP, [90.0] * 20, SILENT, stopped="rank 1: timed out", digests={})
    runs[-1].steps = 40
    text = report.page(runs, Planes(4), is_encrypted=False, command="softmrc demo", load=0.5)
    assert "</b>: job stopped at step 21 of 40" in text and '<span class="pill no">stopped' in text


@pytest.mark.parametrize("fault", FAULTS, ids=[one.label for one in FAULTS])
def test_a_drawing_marks_what_is_broken(fault: ScriptedFault) -> None:
    text = drawing(fault, 4, 4)
    assert text.count("stroke-dasharray") == len(fault.planes) * (4 if fault.rank is None else 1)
    assert text.count("<line") == 16 and text.count("<rect") == 8


@given(times_ms)
def test_the_area_holds_the_median(values: list[float]) -> None:
    low, middle, high = (report.rolling(np.array(values), share) for share in (5, 50, 95))
    assert (low <= middle).all() and (middle <= high).all() and len(middle) == len(values)


@pytest.mark.parametrize(("share", "text"), [(-0.001, "+0 %"), (0.784, "+78 %"), (-0.2, "-20 %")])
def test_percent(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize("steps", [0, 1])
def test_a_job_that_stopped_at_once_has_figures(steps: int) -> None:
    run = TrainingRun(TCP, 20, step_at_s=[0.1] * steps, step_ms=[100.0] * steps, stopped="rank 0: it failed")
    assert (run.median_ms, run.worst_ms, run.run_s) == (0.0, 0.0, 0.1 * steps)
