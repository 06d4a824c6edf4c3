"""Judging a fabric: counts that can be checked by hand, months that repeat, and pictures that stay readable."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from softmrc._support.units import share_text
from softmrc.errors import ConfigError
from softmrc.fabric import Description, Shape, parse
from softmrc.fabric.description import Failures, JobSettings
from softmrc.fabric.drawing import draw
from softmrc.planner import assess as judge
from softmrc.planner import summary
from softmrc.planner.plan import DesignSpec, Prices, compare
from softmrc.planner.report import assess_html, plan_html
from softmrc.planner.sensitivity import BreakEven

LAB = Shape(planes=4, hosts=8, hosts_per_leaf=2, spines=4)
TREE = Shape(planes=2, hosts=12, hosts_per_leaf=2, spines=2, pods=3, cores_per_spine=2)
LARGEST = Shape(planes=8, hosts=131072, hosts_per_leaf=256, spines=256)


def test_diversity_counts_pairs_and_paths() -> None:
    near, far = judge.diversity(LAB)
    assert (near.paths, far.paths_per_plane, far.paths) == (4, 4, 16)
    assert near.share_of_pairs == pytest.approx(1 / 7) and far.share_of_pairs == pytest.approx(6 / 7)
    tree = judge.diversity(TREE)
    assert [d.switches for d in tree] == [1, 3, 5] and [d.paths for d in tree] == [2, 4, 8]
    assert sum(d.share_of_pairs for d in tree) == pytest.approx(1)


@pytest.mark.parametrize("shape", [LAB, TREE, LARGEST], ids=["lab", "tree", "largest"])
def test_domains_add_up_to_the_fabric(shape: Shape) -> None:
    found = {d.what: d for d in judge.domains(Description(fabric=shape))}
    cables = sum(d.count for what, d in found.items() if what.endswith("cable"))
    switches = sum(d.count for what, d in found.items() if what in ("leaf", "spine", "agg", "core"))
    assert cables == shape.cables and switches == shape.switches
    assert found["plane"].fabric_hosts * shape.planes == pytest.approx(shape.hosts)
    # All leaves of a plane make the plane, all spines too.
    per_plane = found["leaf"].count / shape.planes
    assert found["leaf"].fabric_hosts * per_plane == pytest.approx(found["plane"].fabric_hosts)


@pytest.mark.parametrize(
    "shape",
    [
        LAB,
        TREE,
        LARGEST,
        Shape(planes=1, hosts=2, hosts_per_leaf=1, spines=1),
        Shape(planes=16, hosts=2048, spines=512),
    ],
    ids=["lab", "tree", "largest", "smallest", "wide"],
)
def test_a_drawing_is_well_formed_and_stays_small(shape: Shape) -> None:
    picture = draw(shape, "a <fabric> & more")
    root = ElementTree.fromstring(picture)
    width, height = (float(root.attrib[key]) for key in ("width", "height"))
    assert width < 1400 and height < 1100 and len(picture) < 200_000
    assert f"{shape.hosts:,} NICs" in picture
    for text in root.iter("{http://www.w3.org/2000/svg}text"):
        assert float(text.attrib["font-size"]) >= 9


def test_what_is_broken_is_red() -> None:
    def red(picture: str) -> int:
        return len(re.findall("#dc2626", picture))

    assert red(draw(LAB)) == 0
    assert red(draw(LAB, broken=["p0.leaf0-spine1"])) == 1
    assert red(draw(LAB, broken=["p0.leaf0-spine1", "p3.spine2", "p2.host0-leaf0"])) == 3
    assert "plane 6 of 8" in draw(Shape(planes=8, hosts=8, hosts_per_leaf=2), broken=["p6.spine1"])


def test_reports_are_one_file_each() -> None:
    description = parse("[fabric]\nplanes = 2\nhosts = 8\nhosts_per_leaf = 2\nspines = 2\n", "x")
    question = DesignSpec(131072, 800 * 10**9, 51200 * 10**9)
    prices = Prices.load()
    for page in (assess_html(judge.assess(description, 2)), plan_html(question, compare(question, prices), prices)):
        assert page.startswith("<!doctype html>") and page.rstrip().endswith("</html>")
        assert not re.findall(r"<(link|img)\b|src=", page) and "http" not in page.replace("http://www.w3.org", "")
        assert "prefers-color-scheme:dark" in page and "data-plot" in page
        assert "<svg" in page


@pytest.mark.slow
def test_a_published_rate_is_not_called_assumed() -> None:
    found = judge.assess(Description(fabric=LAB, failures=Failures(optic_per_year=0.5)), trials=1)
    origins = {key: who for key, _, who in summary.assumption_rows(found)}
    assert origins["failures.gpu_per_year"] == "published" and origins["failures.power_per_year"] == "assumed"
    assert origins["failures.optic_per_year"] == "the file's"
    assert "failures.optic_per_year" in summary.assess_note(found)
    flip = BreakEven("failures.gpu_per_year", 0.156, 1.0, "mrc", "swap", False)
    assert "(published: 0.156)" in summary.flip_line(flip)
    assert "(the file's: 0.2)" in summary.flip_line(replace(flip, value=0.2))
    crews = BreakEven("failures.crews", 0, 2, "mrc", "swap", False)
    assert "failures.crews of 2 (assumed: as many as it takes)" in summary.flip_line(crews)
    assert origins["failures.links_per_optic"] == "from the rates"


def test_what_hits_a_job_that_is_down_is_not_called_ridden_out() -> None:
    """With one plane and nothing above its leaf, nothing can be: what hit the job while it was down was counted."""
    alone = Shape(planes=1, hosts=64, hosts_per_leaf=64, spines=0)
    found = judge.assess(Description(fabric=alone, failures=Failures(gpu_per_year=40.0)), trials=1)
    assert (found.ridden_out("mrc"), found.ridden_out("roce")) == (0, 0)
    assert found.of_best("mrc").stops_per_month < 0.9 * sum(d.a_month for d in found.domains)
    (said,) = [line for line in summary.answer_lines(found) if line.startswith("A month brings")]
    assert "0 are such as a job goes on without with MRC and 0 with RoCE" in said
    lab = judge.assess(Description(fabric=LAB), trials=1)
    above = sum(d.a_month for d in lab.domains if d.what in ("spine", "leaf–spine cable"))
    below = sum(d.a_month for d in lab.domains if d.what in ("leaf", "leaf's optic", "NIC port", "host cable"))
    assert lab.ridden_out("roce") == pytest.approx(above) and lab.ridden_out("mrc") == pytest.approx(above + below)


@pytest.mark.slow
def test_roce_is_also_judged_on_the_planes_that_it_would_have() -> None:
    """Its loss on eight planes, of which each port stops its job, was all that was said."""
    shape = Shape(planes=8, hosts=8192, hosts_per_leaf=256, spines=256)
    d = Description(fabric=shape)
    elsewhere = judge.roce_elsewhere(d)
    here = min(row["roce"].lost for row in judge.compare(d).values())
    assert not elsewhere.is_here and elsewhere.planes < 8 and elsewhere.lost < here
    assert elsewhere.switch_bps == shape.switch_bps == 51_200_000_000_000
    found = judge.assess(replace(d, fabric=replace(shape, hosts=1024)), trials=1)
    first, second = summary.answer_lines(found)[:2]
    assert "on this same fabric RoCE costs" in first and "RoCE loses least on another fabric" in second
    alone = judge.assess(Description(fabric=Shape(planes=1, hosts=64, hosts_per_leaf=64, spines=0)), trials=1)
    assert alone.roce_elsewhere.is_here


@pytest.mark.slow
def test_lean_uplinks_are_said_and_charged_as_a_study_charges_them() -> None:
    lean = Shape(planes=2, hosts=48, hosts_per_leaf=12, spines=4)
    found = judge.assess(Description(fabric=lean), trials=1)
    (said,) = [line for line in summary.answer_lines(found) if "Uplinks are lean, 3:1" in line]
    took = found.uplinks_share
    assert took == pytest.approx(1 - 1 / 1.6) and share_text(took) in said
    assert found.to_json()["uplinks_share"] == took and found.to_json()["fabric"]["oversubscription"] == 3
    local = judge.assess(Description(fabric=lean, job=JobSettings(crossing_share=0.3)), trials=1)
    assert local.uplinks_share == 0
    assert not any("lean" in line for line in summary.answer_lines(judge.assess(Description(fabric=LAB), trials=1)))


def test_pods_may_have_less_above_them_than_leaves() -> None:
    narrow = Shape(planes=1, hosts=16, hosts_per_leaf=2, spines=2, pods=4, cores_per_spine=1)
    assert (TREE.oversubscription, narrow.oversubscription) == (1, 2)
    assert replace(narrow, cables_per_core_link=2).oversubscription == 1
    assert replace(LAB, fabric_link_bps=LAB.host_link_bps // 4).oversubscription == 2


@pytest.mark.slow
def test_what_no_packet_crosses_does_not_slow_a_job() -> None:
    """Spines above a single leaf failed, and took capacity that did not exist."""
    alone = Shape(planes=2, hosts=8, hosts_per_leaf=8, spines=0)
    useless = replace(alone, spines=4, cables_per_link=2)
    a, b = (judge.assess(Description(fabric=shape), trials=1) for shape in (alone, useless))
    assert a.losses == b.losses and a.domains == b.domains and (a.idle_switches, b.idle_switches) == (0, 8)
    assert any("8 switches that no packet has to cross" in line for line in summary.answer_lines(b))
    pod = Shape(planes=2, hosts=8, hosts_per_leaf=2, spines=2, pods=1, cores_per_spine=2)
    assert judge.assess(Description(fabric=pod), trials=1).idle_switches == 8 and pod.crossed.switches == 12


def test_gpus_of_a_file_are_what_fails_and_what_is_paid_for() -> None:
    one, two = (Description(fabric=replace(LAB, hosts=n), job=JobSettings(gpus=8)) for n in (8, 16))
    a, b = (judge.assess(d, trials=1) for d in (one, two))
    assert a.price(0.1) == b.price(0.1) and b.price(0.1).gpu_h == pytest.approx(0.1 * 8 * 720)
    host = next(d for d in b.domains if d.what == "GPU")
    assert (host.count, host.hosts, host.per_year) == (8, 2, Failures().gpu_per_year)
    assert "8 GPUs, 16 NICs" in summary.summary(b) and "GPUs" not in summary.summary(a)
    with pytest.raises(ConfigError, match=r"job\.gpus`: .*at most 8.*.got 9"):
        Description(fabric=LAB, job=JobSettings(gpus=9))
