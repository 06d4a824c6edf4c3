"""What failures cost a job: arithmetic that can be done by hand, drawn months that agree with it, a fair comparison."""

from __future__ import annotations

import math
import random
from dataclasses import fields, replace

import pytest

from softmrc.errors import ConfigError
from softmrc.fabric import Description, Shape
from softmrc.fabric.description import Failures, JobSettings
from softmrc.planner import assess as judge
from softmrc.planner import closed_form, monte_carlo
from softmrc.planner.availability import PARTS, POLICIES, TRANSPORTS
from softmrc.planner.sensitivity import find, verdict

LAB = Shape(planes=4, hosts=8, hosts_per_leaf=2, spines=4)
TREE = Shape(planes=2, hosts=24, hosts_per_leaf=2, spines=2, pods=3, cores_per_spine=2)
THICK = replace(TREE, cables_per_link=3, cables_per_core_link=2)
ALONE = Shape(planes=4, hosts=8, hosts_per_leaf=8, spines=0)
NEVER = Failures(**{f.name: 0.0 for f in fields(Failures) if f.name.endswith("_year")})  # type: ignore[arg-type]
PLAIN = JobSettings(checkpoint_s=0, detect_min=0, warmup_min=0)


def drawn(seed: int) -> Description:
    """Some fabric, some rates, some job."""
    r = random.Random(seed)
    planes = r.choice([1, 2, 4, 8])
    leaves, below = r.choice([4, 8, 16]), r.choice([4, 16, 64])
    rates = {f.name: r.uniform(0, 0.2) for f in fields(Failures) if f.name.endswith("_year")}
    rates["gpu_per_year"] = r.uniform(0, 2)
    job = JobSettings(
        communication_share=r.uniform(0, 0.8),
        checkpoint_every_min=r.uniform(5, 60),
        detect_min=r.uniform(0, 10),
        restart_min=r.uniform(1, 20),
        warmup_min=r.uniform(0, 10),
        spare_share=0.2,
    )
    failures = Failures(**rates, planes_per_cable=r.choice([1, planes]), dispatch_h=r.uniform(0, 8))  # type: ignore[arg-type]
    shape = Shape(planes=planes, hosts=leaves * below, hosts_per_leaf=below, spines=below)
    return Description(fabric=shape, failures=failures, job=job)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_job_to_which_nothing_happens_loses_its_checkpoints_only(transport: str, policy: str) -> None:
    d = Description(fabric=LAB, failures=NEVER, job=JobSettings(checkpoint_every_min=30, checkpoint_s=18))
    expected = 18 / (1800 + 18)
    for found in (closed_form.losses(d, transport, policy), monte_carlo.draw_long(d, transport, policy, 1000)):
        assert found.lost == pytest.approx(expected, rel=1e-3) and found.checkpoints == pytest.approx(found.lost)


def test_a_job_whose_hosts_fail_loses_what_daly_says() -> None:
    """An interval takes e^(λ·restart) · (e^(λ·interval) − 1) / λ."""
    failures = replace(NEVER, gpu_per_year=100.0, gpu_repair_h=0.01, dispatch_h=0.0)
    d = Description(fabric=LAB, failures=failures, job=replace(PLAIN, spare_share=1.0))
    rate = 8 * 100 / closed_form.YEAR_H
    interval = math.exp(rate / 6) * math.expm1(rate * 0.5) / rate
    for transport in TRANSPORTS:
        assert closed_form.losses(d, transport, "repair").lost == pytest.approx(1 - 0.5 / interval, rel=1e-3)


@pytest.mark.parametrize("planes", [1, 4])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_nic_that_dies_takes_its_host_however_many_planes_it_has(transport: str, planes: int) -> None:
    """The published rate was charged for each port, and no NIC with several was ever lost whole."""
    job = replace(PLAIN, spare_share=1.0)
    nic = replace(NEVER, nic_per_year=100.0, nic_repair_h=0.01, dispatch_h=0.0)
    gpu = replace(NEVER, gpu_per_year=100.0, gpu_repair_h=0.01, dispatch_h=0.0)
    shape = replace(LAB, planes=planes)
    as_nic, as_gpu = (Description(fabric=shape, failures=one, job=job) for one in (nic, gpu))
    assert closed_form.losses(as_nic, transport, "repair") == closed_form.losses(as_gpu, transport, "repair")
    drawn_losses = monte_carlo.draw_long(as_nic, transport, "repair", 100_000)
    assert drawn_losses.lost == pytest.approx(closed_form.losses(as_nic, transport, "repair").lost, rel=0.03)


FAILED_OPTICS = replace(NEVER, optic_per_year=3.0)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_hosts_behind_an_optic_are_replaced_like_any_other_host(transport: str) -> None:
    """With one plane, a job waited five hours for a transceiver while spares stood idle."""
    shape = Shape(planes=1, hosts=32, hosts_per_leaf=8, spines=8, host_link_bps=200 * 10**9)
    few, enough = (
        Description(
            fabric=shape, failures=replace(FAILED_OPTICS, links_per_optic=4), job=JobSettings(spare_share=share)
        )
        for share in (2 / 32, 12 / 32)
    )
    waited = closed_form.losses(few, transport, "repair").waiting
    assert closed_form.losses(enough, transport, "repair").waiting < 0.05 * waited
    for d in (few, enough):
        closed, seen = (
            closed_form.losses(d, transport, "repair"),
            monte_carlo.draw_long(d, transport, "repair", 400_000),
        )
        assert closed.lost == pytest.approx(seen.lost, rel=0.03)
        assert closed.waiting == pytest.approx(seen.waiting, rel=0.1, abs=0.001)


@pytest.mark.parametrize(
    ("planes", "gbps", "links", "of_nic"),
    [(1, 800, 1, 1), (2, 400, 2, 2), (8, 100, 8, 8), (16, 100, 8, 8), (3, 400, 2, 1)],
)
def test_optics_that_fail_are_those_that_are_bought(planes: int, gbps: int, links: int, of_nic: int) -> None:
    """A transceiver of 800G had four links, whatever their rate, and no NIC had one."""
    shape = Shape(planes=planes, hosts=64, hosts_per_leaf=16, spines=4, host_link_bps=gbps * 10**9)
    d = Description(fabric=shape)
    assert (d.links_of_an_optic, d.planes_of_an_optic) == (links, of_nic)
    parts = {one.what: one for one in judge.domains(d)}
    ends = parts["leaf's optic"], parts["NIC's optic"]
    assert [one.hosts for one in ends] == [links, 1] and ends[1].share == of_nic / planes
    assert ends[0].count == 64 * planes // links and ends[1].count == 64 * planes // of_nic
    theirs = Description(fabric=shape, failures=Failures(links_per_optic=4, planes_per_optic=1))
    assert (theirs.links_of_an_optic, theirs.planes_of_an_optic) == (4, 1)
    assert closed_form.losses(d, "mrc", "repair").stops_per_month >= (
        closed_form.losses(theirs, "mrc", "repair").stops_per_month
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_optic_of_a_nic_takes_the_planes_that_it_holds(transport: str, policy: str) -> None:
    """Half of a NIC's planes, or all: by either way of counting."""
    for each in (2, 4):
        failures = replace(NEVER, optic_per_year=1.0, planes_per_optic=each, links_per_optic=1, maintenance_days=2.0)
        d = Description(fabric=LAB, failures=failures, job=JobSettings(spare_share=0.5))
        closed, seen = closed_form.losses(d, transport, policy), monte_carlo.draw_long(d, transport, policy, 400_000)
        assert closed.lost == pytest.approx(seen.lost, rel=0.04)


def test_one_dead_port_costs_a_share_of_the_communication() -> None:
    """In every tenth moment one of 32 ports is broken; then 0.3 of a step takes a third longer."""
    out_h = 5.0
    per_year = 1 / (320 * out_h) * closed_form.YEAR_H
    failures = replace(NEVER, nic_port_per_year=per_year, dispatch_h=0.0, nic_port_repair_h=out_h)
    d = Description(fabric=LAB, failures=failures, job=replace(PLAIN, communication_share=0.3))
    chance = per_year / closed_form.YEAR_H * out_h
    broken = 1 - (1 / (1 + chance)) ** 32
    slow = 1 - 1 / (0.7 + 0.3 / 0.75)
    found = closed_form.losses(d, "mrc", "repair")
    assert found.degraded == pytest.approx(broken * slow, rel=0.02)  # now and then two ports of one host
    assert found.lost == found.degraded and found.stops_per_month == 0


def test_cables_side_by_side_break_one_by_one() -> None:
    """As many cables to fewer spines lose as much to cables, and less to spines, of which there are fewer."""
    wide, thick = (Shape(planes=2, hosts=32, hosts_per_leaf=8, spines=n, cables_per_link=8 // n) for n in (8, 2))
    for key, is_same in (("link_per_year", True), ("switch_per_year", False)):
        failures = replace(NEVER, **{key: 1.0})
        both = (Description(fabric=one, failures=failures) for one in (wide, thick))
        lost = [closed_form.losses(one, "mrc", "repair").lost for one in both]
        assert (lost[0] == pytest.approx(lost[1])) == is_same
    assert wide.cables == thick.cables and wide.switches > thick.switches


def test_above_a_single_switch_nothing_breaks() -> None:
    parts = {one.what for one in judge.domains(Description(fabric=ALONE))}
    of_nic = {"NIC", "NIC's optic", "NIC port", "host cable"}
    assert parts == {"plane", "leaf", "leaf's optic", "power feed", "host"} | of_nic
    assert (ALONE.switches, ALONE.tiers) == (4, 1)


@pytest.mark.parametrize("seed", range(40))
def test_mrc_never_loses_more_than_what_stops_as_well(seed: int) -> None:
    """The same parts break, the same policy is followed: riding a failure out is not worse than stopping, unless it is
    ridden out only to stop for a swap after all."""
    d = drawn(seed)
    for policy in POLICIES:
        mrc, roce = (closed_form.losses(d, t, policy) for t in TRANSPORTS)
        for found in (mrc, roce):
            assert all(getattr(found, part) >= -1e-12 for part in PARTS) and 0 <= found.lost <= 1 + 1e-9, "shares"
        if policy != "swap":
            assert mrc.lost <= roce.lost + 1e-9
            assert mrc.stops_per_month <= roce.stops_per_month + 1e-9


@pytest.mark.parametrize(("planes", "hosts"), [(1, 32768), (4, 8192)])
def test_restarting_does_not_beat_riding_it_out_by_free_spares(planes: int, hosts: int) -> None:
    """Two fabrics of which it was said that MRC loses ten times as much, because only the other had spares."""
    d = Description(fabric=Shape(planes=planes, hosts=hosts, hosts_per_leaf=128, spines=128))
    losses = judge.compare(d)
    best = {t: min(row[t].lost for row in losses.values()) for t in TRANSPORTS}
    assert best["mrc"] <= best["roce"]
    if planes == 1:  # a host has one port: nothing can be ridden out but what lies above the leaves
        assert best["roce"] - best["mrc"] < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("shape", [LAB, TREE, THICK, ALONE], ids=["lab", "tree", "thick", "alone"])
def test_drawn_months_agree_with_the_closed_form(shape: Shape, transport: str, policy: str) -> None:
    """With rates so high that a few years hold thousands of failures of a small fabric."""
    failures = Failures(
        link_per_year=0.5, nic_per_year=0.2, nic_port_per_year=0.3, optic_per_year=0.3, switch_per_year=0.2,
        gpu_per_year=5.0, power_per_year=0.2, flap_per_link_year=3.0, maintenance_days=2.0,
    )  # fmt: skip
    d = Description(fabric=shape, failures=failures, job=JobSettings(spare_share=0.3))
    closed, seen = closed_form.losses(d, transport, policy), monte_carlo.draw_long(d, transport, policy, 400_000)
    assert closed.lost == pytest.approx(seen.lost, rel=0.04)
    assert closed.stops_per_month == pytest.approx(seen.stops_per_month, rel=0.04)
    for part in PARTS:
        assert getattr(closed, part) == pytest.approx(getattr(seen, part), rel=0.2, abs=0.002), part


def test_the_same_seed_draws_the_same_months() -> None:
    d = Description(fabric=LAB, failures=Failures(link_per_year=5.0, gpu_per_year=3.0))
    first, again, other = (monte_carlo.draw(d, "mrc", "swap", 3, seed) for seed in (1, 1, 2))
    assert first == again and first != other


@pytest.mark.parametrize("seed", range(20))
def test_the_slowest_host_is_found_however_failures_lie_on_one_another(seed: int) -> None:
    """Compared with a count that starts again each time, from the cables of every host."""
    r = random.Random(seed)
    shape = r.choice([LAB, TREE])
    failures = Failures(links_per_optic=r.choice([1, 2, 3]), planes_per_optic=r.choice([1, 2]))
    d = Description(fabric=shape, failures=failures)
    slowest = monte_carlo.SlowestHost(d)
    broken: list[monte_carlo.FailedPart] = []
    per_leaf = -(-shape.hosts_per_leaf // d.failures.links_per_optic)
    p = shape.planes
    counts = {
        "port": shape.hosts * p, "cable": shape.hosts * p,
        "nic-optic": shape.hosts * p // failures.planes_per_optic, "optic": shape.leaves * per_leaf * p,
        "leaf": shape.leaves * p, "uplink": shape.leaves * shape.spines * p, "t1": shape.t1_switches * p,
    }  # fmt: skip
    for _ in range(60):
        if broken and r.random() < 0.4:
            slowest.change(broken.pop(r.randrange(len(broken))), -1)
        else:
            kind = r.choice(list(counts))
            broken.append(monte_carlo.FailedPart(kind, r.randrange(counts[kind])))
            slowest.change(broken[-1], +1)
        assert slowest.capacity() == pytest.approx(counted_anew(d, broken))


def counted_anew(d: Description, broken: list[monte_carlo.FailedPart]) -> float:
    s, p = d.fabric, d.fabric.planes
    together = d.failures.links_per_optic
    least = 1.0
    for host in range(s.hosts):
        leaf, seat = divmod(host, s.hosts_per_leaf)
        optic = leaf * -(-s.hosts_per_leaf // together) + seat // together
        mine = {"port": host, "cable": host, "leaf": leaf, "optic": optic}
        above = {"uplink": leaf, "t1": leaf // s.leaves_per_pod if s.pods else 0}
        each = d.failures.planes_per_optic
        optics = [which * each for kind, which in broken if kind == "nic-optic" and which * each // p == host]
        dark = {(first + i) % p for first in optics for i in range(each)}
        dark |= {which % p for kind, which in broken if kind in mine and which // p == mine[kind]}
        thin = sum(kind in above and which // (p * s.spines) == above[kind] for kind, which in broken)
        least = min(least, 1 - len(dark) / p - thin / (p * s.spines))
    return max(0.0, least)


def test_crews_that_cannot_keep_up_are_refused_with_how_many_it_takes() -> None:
    d = Description(fabric=LAB, failures=replace(NEVER, gpu_per_year=3000.0, gpu_repair_h=10.0, crews=5))
    with pytest.raises(ConfigError, match=r"failures.crews`: .*at least 31.*.got 5"):
        closed_form.losses(d, "mrc", "repair")


def test_fewer_crews_make_everything_wait_longer() -> None:
    failures = replace(NEVER, nic_port_per_year=40.0, nic_port_repair_h=5.0)
    lost = [
        closed_form.losses(Description(fabric=LAB, failures=replace(failures, crews=crews)), "mrc", "repair").lost
        for crews in (1, 2, 8, 0)
    ]
    assert lost == sorted(lost, reverse=True) and lost[0] > 1.2 * lost[3]


def test_rates_that_cannot_be_drawn_are_refused() -> None:
    wide = Shape(planes=8, hosts=131072, hosts_per_leaf=256, spines=256)
    with pytest.raises(ConfigError, match="at most 4,000,000 failures"):
        monte_carlo.draw(Description(fabric=wide, failures=Failures(link_per_year=1000.0)), "mrc", "swap", 1)


@pytest.mark.slow
def test_what_flips_the_answer_does() -> None:
    """Where a flip is said to be, the verdict is another one, and a little before it is not."""
    d = Description(fabric=Shape(planes=4, hosts=8192, hosts_per_leaf=128, spines=128))
    now = verdict(d)
    found = find(d).flips
    assert now.winner == "mrc" and found
    for flip in found:
        section, key = flip.key.split(".")

        def at(value: float, section: str = section, key: str = key) -> Description:
            return replace(d, **{section: replace(getattr(d, section), **{key: value})})

        beyond = verdict(at(flip.flips_at))
        assert (beyond.winner, beyond.policy) == (flip.winner, flip.policy) and beyond != now
        assert verdict(at(flip.value + 0.5 * (flip.flips_at - flip.value))) in (now, beyond)
        assert flip.changes_winner == (beyond.winner != now.winner)


@pytest.mark.slow
def test_no_change_of_the_winner_is_hidden_by_a_change_of_policy_or_by_whole_numbers() -> None:
    """It was said that no assumption changes who loses less, where MRC's policy changed first, or where the number of
    planes that share a cable did."""
    d = Description(fabric=Shape(planes=4, hosts=1024, hosts_per_leaf=64, spines=64))
    now = verdict(d)
    said = {flip.key for flip in find(d).flips if flip.changes_winner}
    moves: dict[str, list[float]] = {"failures.planes_per_cable": [2, 4], "failures.crews": [1, 2, 5, 10]}
    for key in ("failures.gpu_per_year", "failures.gpu_repair_h", "failures.link_per_year", "job.checkpoint_every_min"):
        section, name = key.split(".")
        value = getattr(getattr(d, section), name)
        moves[key] = [value * 5, value * 99, value / 5, value / 99]
    flipped = set()
    for key, values in moves.items():
        section, name = key.split(".")
        for value in values:
            there = verdict(replace(d, **{section: replace(getattr(d, section), **{name: value})}))
            flipped |= {key} if there.winner != now.winner else set()
    assert "failures.planes_per_cable" in flipped and len(flipped) > 2
    assert flipped <= said


@pytest.mark.slow
def test_an_assumption_is_moved_as_far_as_crews_can_mend_and_no_further() -> None:
    failures = Failures(crews=4, gpu_per_year=10.0, gpu_repair_h=100.0)
    found = find(Description(fabric=LAB, failures=failures))
    most = found.ends["failures.gpu_repair_h"]
    busy = 80 / closed_form.YEAR_H * most
    assert 3.5 < busy < 4 and "failures.flap_s" not in found.ends


@pytest.mark.slow
def test_money_hours_and_watts_are_of_the_same_loss() -> None:
    d = Description(fabric=LAB, job=JobSettings(gpus_per_host=8, gpu_hour_usd=2.0, gpu_w=1000.0))
    price = judge.assess(d, trials=1).price(0.1)
    assert price.gpu_h == pytest.approx(0.1 * 64 * 720) and price.usd == pytest.approx(2 * price.gpu_h)
    assert price.watts == pytest.approx(6400) and price.mwh == pytest.approx(6400 * 720 / 1e6)
