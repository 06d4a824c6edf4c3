"""Training jobs: what a step takes, held against sums that can be done by hand."""

from __future__ import annotations

import copy
import json
import random
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.sim.small import merge
from tests.sim.test_report import y_of
from typer.testing import CliRunner

from softmrc import sim
from softmrc.cli import app
from softmrc.errors import ConfigError
from softmrc.sim import report
from softmrc.sim.answer import answer
from softmrc.sim.job import Job
from softmrc.sim.programs import COMPUTE, CollectiveTask, Programs, ReceiveTask, SendTask, Task, lay_out
from softmrc.sim.steps import Step, free_ends_ps, mfu, steps_of
from softmrc.sim.traffic import TrafficPlan

TABLE: dict[str, Any] = {
    "question": "How long is a step?",
    "fabric": {"planes": 2, "hosts": 16, "hosts_per_leaf": 4, "spines": 4},
    "transport": {"evs": 32},
    "workload": {
        "kind": "job",
        "model": {"layers": 4, "hidden": 256, "sequence": 256},
        "gpu": {"forward_us": 10.0},
    },
}


def job(**workload: Any) -> sim.Scenario:
    return sim.parse(merge(copy.deepcopy(TABLE), {"workload": workload}), "job.toml")


def run(**workload: Any) -> tuple[sim.Result, list[Step]]:
    result = sim.run(job(**workload))
    assert result.verdict, result.verdict.text
    return result, steps_of(result)


@pytest.mark.parametrize(("pp", "micro_batches"), [(1, 1), (1, 3)])
def test_a_job_without_communication_takes_exactly_its_compute_time(pp: int, micro_batches: int) -> None:
    result, steps = run(steps=3, parallel={"pp": pp, "micro_batches": micro_batches})
    expected = 4 * 3 * 10.0 * micro_batches  # layers, forward and twice that backward
    assert result.step_us.tolist() == [expected] * 3
    assert [(one.computing_us, one.waiting_us, one.exposed_us) for one in steps] == [(expected, 0, 0)] * 3
    assert result.counters["data_packets"] == 0 and result.summary()["flows"] == 0


def test_recomputing_and_the_optimizer_take_their_time() -> None:
    result, _ = run(gpu={"recompute": True, "update_us": 7.0})
    assert result.step_us.tolist() == [4 * 4 * 10.0 + 7.0]


@pytest.mark.parametrize(("pp", "micro_batches"), [(2, 1), (2, 4), (4, 4), (4, 7), (4, 2)])
def test_without_communication_the_bubble_is_p_less_one_over_m(pp: int, micro_batches: int) -> None:
    scenario = job(parallel={"pp": pp, "micro_batches": micro_batches})
    plan = TrafficPlan()
    scenario.workloads[0].plan(plan, scenario.fabric, None, "", "workload")
    busy_ps = 4 // pp * 3 * 10_000_000 * micro_batches
    assert free_ends_ps(plan).max() == busy_ps + busy_ps * (pp - 1) // micro_batches


def test_a_pipeline_pays_its_bubble_and_its_messages() -> None:
    result, (step,) = run(parallel={"pp": 4, "micro_batches": 8})
    assert step.computing_us == pytest.approx(240) and step.waiting_us == pytest.approx(240 * 3 / 8)
    hops = np.nanmean(result.fct_us[result.group("pipeline")])
    assert 6 * 0.5 * hops < step.exposed_us < 2 * 11 * 2 * hops, "the first and the last message of each hop, at least"
    assert result.step_us[0] == pytest.approx(step.computing_us + step.waiting_us + step.exposed_us)


def all_reduce(ranks: int, size: int) -> float:
    """The same collective, as a separate scenario."""
    table = merge(copy.deepcopy(TABLE), {})
    table["workload"] = {"kind": "collective", "hosts": ranks, "bytes": size}
    return float(sim.run(sim.parse(table)).call_us[0])


def test_without_overlap_a_step_is_computing_and_then_the_all_reduce_that_a_scenario_runs() -> None:
    parallel = {"dp": 8, "overlap": False, "bucket_bytes": 1 << 30}
    result, (step,) = run(parallel=parallel)
    work = result.scenario.workloads[0]
    assert isinstance(work, Job)
    size = 4 * work.gradient_bytes()[0]
    assert size == 4 * 12 * 256 * 256 * 2 and len(result.call_us) == 1
    assert result.call_us[0] == pytest.approx(all_reduce(8, size), rel=0.01)
    assert step.step_us == pytest.approx(120 + result.call_us[0]) and step.exposed_us == pytest.approx(
        result.call_us[0]
    )


def test_overlap_hides_communication_and_buckets_follow_each_other() -> None:
    parallel = {"dp": 8, "bucket_bytes": 1 << 20}
    apart, (slow,) = run(gpu={"forward_us": 100.0}, parallel=parallel | {"overlap": False})
    hidden, (fast,) = run(gpu={"forward_us": 100.0}, parallel=parallel)
    assert len(apart.call_us) == len(hidden.call_us) == 6
    assert fast.step_us < slow.step_us and 0 < fast.exposed_us < 0.5 * slow.exposed_us
    assert 0.9 * apart.call_us.sum() < slow.exposed_us <= apart.call_us.sum(), "one after the other, on each rank"


def test_tensor_parallel_ranks_sum_twice_a_layer_each_way() -> None:
    result, (step,) = run(parallel={"tp": 2})
    assert len(result.call_us) == 4 * 4 and step.exposed_us == pytest.approx(result.call_us.sum(), rel=0.001)
    inside, (step,) = run(parallel={"tp": 2}, gpu={"scale_up_bps": 8e9})
    one_sum_us = 256 * 256 * 2 / 1e3  # 2 (n - 1) / n of the activation, at a byte a nanosecond
    assert step.scale_up_us == pytest.approx(16 * one_sum_us) and step.exposed_us == 0
    assert inside.counters["data_packets"] == 0


def test_experts_exchange_tokens_twice_a_layer_each_way_and_reduce_apart() -> None:
    model = TABLE["workload"]["model"] | {"experts": 8, "top_k": 2}
    result, _ = run(model=model, parallel={"dp": 8, "ep": 4})
    by_name = {name: int(result.group(name).sum()) for name in result.plan.groups}
    assert by_name["experts"] == 8 * 16 and by_name["gradients"] == 8 and by_name["expert gradients"] == 8
    sizes = {
        result.plan.groups[result.plan.group[i]]: result.plan.calls[c].bytes
        for i, c in enumerate(result.plan.call)
        if c >= 0
    }
    assert sizes["experts"] == 256 * 256 * 2 * 2 // 4  # tokens × hidden × bytes × top_k, of which each rank has a share
    assert sizes["gradients"] == 4 * 4 * 256**2 * 2 and sizes["expert gradients"] == 4 * 2 * 8 * 256**2 * 2


def test_all_kinds_of_parallelism_at_once_and_the_same_on_any_number_of_cores() -> None:
    model = TABLE["workload"]["model"] | {"experts": 4}
    scenario = job(steps=2, model=model, parallel={"dp": 4, "tp": 2, "pp": 2, "ep": 2, "micro_batches": 3})
    one, again = sim.run(scenario, cores=1), sim.run(scenario, cores=1)
    both = sim.run(scenario, cores=2)
    assert one.verdict and one.trace_hash == again.trace_hash == both.trace_hash
    assert steps_of(one) == steps_of(both) and len(steps_of(one)) == 2
    for step in steps_of(one):
        assert step.exposed_us > 0 and step.waiting_us > 0
        assert step.step_us == pytest.approx(step.computing_us + step.waiting_us + step.exposed_us)


def test_what_a_fault_costs_is_in_the_step() -> None:
    scenario = job(parallel={"dp": 8})
    fault = {"kind": "down", "port": {"plane": 0, "host": 3}, "at_us": 0}
    broken = sim.parse(scenario.table | {"faults": {"events": [fault]}})
    well, ill = steps_of(sim.run(scenario))[0], steps_of(sim.run(broken))[0]
    assert ill.computing_us == well.computing_us and ill.exposed_us > 1.3 * well.exposed_us


def test_the_share_of_the_gpus_rate() -> None:
    result, _ = run(gpu={"forward_us": 0.0, "flops": 1e12, "efficiency": 0.25})
    assert mfu(result) == pytest.approx(0.25, rel=1e-6)
    layer = 256 * (2 * 12 * 256**2 + 4 * 256 * 256)
    assert result.step_us[0] == pytest.approx(3 * 4 * layer / 0.25e12 * 1e6)


def test_a_job_that_computes_for_long_is_not_stuck() -> None:
    result, _ = run(gpu={"forward_us": 300_000.0}, parallel={"dp": 2})
    assert result.step_us[0] > 3_600_000


def test_the_answer_and_the_page_say_where_a_step_goes() -> None:
    result, (step,) = run(parallel={"dp": 4, "pp": 2, "micro_batches": 2})
    text = answer([[result]]).text
    assert text.startswith("A step takes, at the median, ") and "communication that nothing hides" in text
    assert "waiting for other ranks" in text and f"{100 * step.exposed_share:.1f} %" in text
    assert "Where a step goes" in report.page([result])


def test_the_command_prints_a_job(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(
        'question = "?"\n[fabric]\nhosts = 8\nhosts_per_leaf = 4\nspines = 2\n[workload]\nkind = "job"\n'
        "[workload.model]\nlayers = 1\nhidden = 64\n[workload.parallel]\ndp = 4\n"
    )
    shown = CliRunner().invoke(app, ["sim", str(file), "--quiet"])
    assert shown.exit_code == 0 and "exposed communication" in shown.output and "(MFU)" in shown.output
    found = json.loads(CliRunner().invoke(app, ["sim", str(file), "--json"]).output)
    (step,) = found["runs"][0]["job"]["steps"]
    assert step["step_us"] == pytest.approx(found["runs"][0]["step_us"][0])
    assert found["runs"][0]["job"]["calls_us"]["gradients"] > 0


WRONG = {
    "layers": ({"model": {"layers": 0, "hidden": 8}}, "workload.model.layers"),
    "misspelt": ({"parallel": {"overlapp": True}}, "Did you mean workload.parallel.overlap?"),
    "too many ranks": ({"parallel": {"dp": 17}}, "at most the fabric's 16 hosts, and makes 17"),
    "stages": ({"parallel": {"pp": 3}}, "must divide the number of layers, 4"),
    "experts over no experts": ({"parallel": {"dp": 4, "ep": 2}}, "1 where model.experts is 0"),
    "experts unevenly": ({"parallel": {"dp": 4, "ep": 3}}, "must divide dp = 4"),
    "few experts": ({"model": {"layers": 4, "hidden": 8, "experts": 1}}, "at most experts = 1"),
    "parameters": ({"model": {"layers": 4, "hidden": 256, "parameters": 1000.0}}, "workload.model.parameters"),
    "efficiency": ({"gpu": {"efficiency": 1.5}}, "workload.gpu.efficiency"),
    "endless": ({"steps": 10000, "parallel": {"dp": 16, "micro_batches": 60000}}, "workload.steps"),
    "no number": ({"gpu": {"flops": "fast"}}, "workload.gpu.flops"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name: str) -> None:
    changes, words = WRONG[name]
    with pytest.raises(ConfigError) as refused:
        sim.run(job(**changes))
    assert words in str(refused.value) and "job.toml" in str(refused.value)


def test_what_is_wrong_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(
        'question = "?"\n[workload]\nkind = "job"\n[workload.model]\nlayers = 3\nhidden = 8\n'
        "[workload.parallel]\npp = 2\n"
    )
    with pytest.raises(ConfigError, match=r"job\.toml:8: `workload\.parallel\.pp"):
        sim.run(file)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"workload": {"kind": "job", "model": {"layers": 2}}}, "workload.model.hidden"),
        ({"workload": {"kind": "job"}}, "workload.model`: is missing"),
        ({"transport": {"kind": "roce"}}, "RoCE, which has no collectives"),
    ],
)
def test_what_is_missing_is_named(table: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        sim.parse(TABLE | table)


def test_programs_that_do_not_fit_are_refused() -> None:
    def wrong(rank: int, task: int, words: str) -> ConfigError:
        return ConfigError(f"rank {rank}, task {task}", "it", words)

    def lay(*ranks: list[Task]) -> None:
        programs = Programs(len(ranks), wrong)
        for rank, tasks in enumerate(ranks):
            for task in tasks:
                programs.add(rank, task)
        lay_out(programs, TrafficPlan(), list(range(len(ranks))), 0)

    call = CollectiveTask("c", (), 0, 0, "g", (0, 1), "all_reduce", 4)
    other = CollectiveTask("c", (), 0, 0, "g", (0, 1), "all_reduce", 8)
    lay([call], [call])
    for ranks, words in (
        (([call], []), "a call of rank 1, too"),
        (([call], [other]), "as rank 0 calls it"),
        (([ReceiveTask("r", (), peer=1)], []), "rank 1 does not send"),
        (([SendTask("s", (), peer=1)], []), "with tag 0 that rank 1 does not receive"),
        (
            (
                [ReceiveTask("r", (), peer=1), SendTask("s", (0,), peer=1)],
                [ReceiveTask("r", (), peer=0), SendTask("s", (0,), peer=0)],
            ),
            "waits for",
        ),
        (([Task(COMPUTE, (0,))],), "waits for"),
    ):
        with pytest.raises(ConfigError, match=words):
            lay(*ranks)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_any_job_that_is_accepted_ends_and_its_parts_add_up(seed: int) -> None:
    draw = random.Random(f"jobs {seed}")
    dp, tp, pp = draw.choice([(4, 2, 2), (2, 2, 4), (8, 2, 1), (1, 4, 4), (8, 1, 2), (4, 4, 1)])
    experts = draw.choice([0, 8])
    model = {"layers": 4, "hidden": draw.choice([64, 130]), "sequence": draw.choice([33, 128]), "experts": experts}
    ep = draw.choice([one for one in (1, 2, 4) if dp % one == 0]) if experts else 1
    parallel = {
        "dp": dp, "tp": tp, "pp": pp, "ep": ep, "micro_batches": draw.randint(1, 5), "overlap": draw.random() < 0.5,
        "bucket_bytes": draw.choice([1000, 1 << 20]),
    }  # fmt: skip
    gpu = {"forward_us": draw.choice([0.0, 3.0]), "scale_up_bps": draw.choice([0.0, 1e12])}
    result, steps = run(steps=2, model=model, parallel=parallel, gpu=gpu, order=draw.choice(["hosts", "random"]))
    for step in steps:
        parts = step.computing_us + step.scale_up_us + step.waiting_us + step.exposed_us
        assert step.step_us == pytest.approx(parts) and step.waiting_us > -1e-6 and step.exposed_us > -1e-6
    assert (free_ends_ps(result.plan) <= result.flows["completed_ps"]).all(), "nothing is faster than without a network"


ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guides" / "training-jobs.md"


@pytest.mark.slow
def test_the_page_says_what_comes_out() -> None:
    """Of the worked example its first run; the others take longer."""
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    scenario = sim.load(ROOT / "scenarios" / "jobs" / "dense.toml")
    text = answer([[sim.run(scenario, name=scenario.name)]]).text
    first, parts = text.removesuffix(".").split(". ")
    assert f"{first};" in page and f"{parts};" in page, text


def test_the_toml_of_the_page_is_a_job() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    table = tomllib.loads(re.sub(r"^# ", "", text, flags=re.MULTILINE))
    assert isinstance(sim.parse(TABLE | table).workloads[0], Job)


def test_the_distribution_of_a_jobs_flows_leaves_out_computing() -> None:
    """It ended at a twentieth, because tasks in which nothing is sent counted as flows that never arrive."""
    result, _ = run(parallel={"pp": 4, "micro_batches": 8})
    assert not result.is_sent.all()
    assert y_of(report.fct_plot([result]))[-1] == 1
    alone, _ = run()
    assert not alone.is_sent.any() and "<h2>How long flows took</h2>" not in report.page([alone])


def test_a_job_is_refused_where_a_gpu_has_several_nics(tmp_path: Path) -> None:
    """Every NIC was a rank's GPU."""
    file = tmp_path / "f.toml"
    job = {"kind": "job", "model": {"layers": 2, "hidden": 256}, "parallel": {"dp": 4}}
    table = {"question": "?", "fabric": {"file": str(file)}, "workload": job}
    file.write_text("[fabric]\nhosts = 18\nhosts_per_leaf = 6\n[job]\ngpus = 17\n")
    assert sim.parse(table).fabric.nics_per_gpu == 1, "a NIC to spare"
    file.write_text("[fabric]\nhosts = 18\nhosts_per_leaf = 6\n[job]\ngpus = 8\n")
    with pytest.raises(ConfigError, match=r"workload.kind`: .*one NIC a GPU.* has 2.*.got 'job'"):
        sim.parse(table)
    assert sim.parse(table | {"workload": {"kind": "permutation"}}).fabric.nics_per_gpu == 2
