"""Studies: the front is Pareto-optimal, everything else has a reason, and mistakes are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from softmrc._support.units import share_text
from softmrc.errors import ConfigError
from softmrc.planner import study as studies
from softmrc.planner.plan import DesignSpec, Prices, design, shape_of
from softmrc.planner.report import planes_rows, study_html

PRICES = Prices.load()
SMALL = {
    "gpus": 1024,
    "vary": {"oversubscription": [1, 3], "switch_bps": ["25.6T", "51.2T"], "spare_share": [0.0, 0.01]},
}
EXAMPLE = Path(__file__).parents[2] / "examples" / "study.toml"


@pytest.fixture(scope="module")
def points() -> list[studies.Point]:
    return studies.explore(studies.parse(SMALL), PRICES)


def test_every_combination_is_there_once(points: list[studies.Point]) -> None:
    assert len(points) == 4 * 3 * 2 * 2 * 2 == len({p.name for p in points})


def test_nobody_beats_the_front_and_everybody_else_is_beaten_or_impossible(points: list[studies.Point]) -> None:
    front = [p for p in points if not p.out]
    assert front
    for p in points:
        limit = p.lost_share + studies.NO_DIFFERENCE
        better = [q for q in front if q.cost_usd <= p.cost_usd and q.lost_share <= limit and q.name != p.name]
        if not p.out:
            assert not better
        elif not p.out.startswith("not feasible"):
            assert better and any(q.name in p.out for q in better)


def test_what_is_not_wanted_says_what_it_is_and_what_may_be() -> None:
    asked = studies.parse(SMALL | {"keep": {"power_w": 100e3, "lost_share": 0.1}})
    points = studies.explore(asked, PRICES)
    refused = [p for p in points if p.out.startswith("not wanted")]
    assert refused and all("more than 100 kW: " in p.out or "more than 10 %: " in p.out for p in refused)
    said = [line for line in studies.outs(points) if "not wanted" in line]
    assert said and all(any(p.name in line for p in refused) for line in said), "the design has a name"
    assert all(p.power_w <= 100e3 and p.lost_share <= 0.1 for p in points if not p.out)


def test_spares_cost_what_standing_by_costs(points: list[studies.Point]) -> None:
    same = {"planes": 4, "tiers": 2, "oversubscription": 1, "nic_bps": "800G", "switch_bps": "51.2T"}
    without, with_ = (next(p for p in points if p.varied == same | {"spare_share": s}) for s in (0.0, 0.01))
    hours = PRICES.energy.years * 8766
    bare, full = (
        design(DesignSpec(1024, 800 * 10**9, 512 * 10**11, spare_share=s), PRICES, planes=4, tiers=2)
        for s in (0.0, 0.01)
    )
    ports = full.cost_usd + full.energy_usd - bare.cost_usd - bare.energy_usd
    assert ports > 0 and with_.cost_usd - without.cost_usd == pytest.approx(11 * 2.5 * hours + ports)
    assert with_.lost_share < without.lost_share


def test_the_parts_of_the_loss_are_whose_they_are(points: list[studies.Point]) -> None:
    built = [p for p in points if not p.out.startswith("not feasible")]
    for p in built:
        left = (1 - p.hosts_share) * (1 - p.network_share) * (1 - p.uplinks_share)
        assert p.lost_share == pytest.approx(1 - left)
        assert p.hosts_share > 0 and p.network_share > 0
        assert (p.uplinks_share == 0) == (p.varied["oversubscription"] == 1)
    calm = {
        "link_per_year": 0,
        "nic_port_per_year": 0,
        "optic_per_year": 0,
        "switch_per_year": 0,
        "flap_per_link_year": 0,
    }
    for p in studies.explore(studies.parse(SMALL | {"failures": calm}), PRICES):
        assert p.network_share == pytest.approx(0, abs=1e-9)


def test_no_network_changes_what_hosts_lose(points: list[studies.Point]) -> None:
    """A power feed was as large as a leaf, so that switches with more ports had fewer feeds above the same hosts."""
    for spares in (0.0, 0.01):
        built = [p for p in points if p.is_built and p.varied["spare_share"] == spares]
        assert len(built) > 4 and len({round(p.hosts_share, 12) for p in built}) == 1


def test_what_the_network_takes_does_not_shrink_because_hosts_take_more() -> None:
    """It was the last slice: 1.1 % of a job that had lost three quarters of its time before, and a quarter of what the
    same network takes of one that had not."""
    table = {"gpus": 32768, "vary": {"planes": 8, "tiers": 2}}
    calm, rough = (
        studies.explore(studies.parse(table | {"failures": {"gpu_per_year": rate}}), PRICES)[0] for rate in (0.01, 0.6)
    )
    assert calm.hosts_share < 0.1 and rough.hosts_share > 0.7
    assert 0.7 < rough.network_share / calm.network_share < 1.3


@pytest.mark.parametrize("crossing", [1, 0.5, 1 / 3, 0.1])
def test_lean_uplinks_hold_up_only_what_leaves_its_leaf(crossing: float) -> None:
    asked = studies.parse(SMALL | {"job": {"crossing_share": crossing}})
    lean = [p for p in studies.explore(asked, PRICES) if p.varied["oversubscription"] == 3 and p.cost_usd]
    assert lean
    for p in lean:
        stretch = max(1.0, p.built_oversubscription * crossing)
        left = (1 - p.hosts_share) * (1 - p.network_share)
        share = asked.job.communication_share
        assert 1 - p.lost_share == pytest.approx(left / (1 - share + share * stretch))


def test_a_second_plane_takes_most_of_what_the_network_loses(points: list[studies.Point]) -> None:
    alike = {"tiers": 2, "oversubscription": 1, "nic_bps": "800G", "switch_bps": "51.2T", "spare_share": 0.01}
    found = {p.varied["planes"]: p.network_share for p in points if p.varied.items() >= alike.items()}
    assert found[2] < 0.7 * found[1], "then a port is not a host"
    assert found[2] < found[4] < found[8], "each plane has its own cables and ports, that break"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, "`gpus`: must be a whole number of at least 2"),
        ({"gpus": 64, "vary": {"plane": [1]}}, r"vary\.plane`.*Did you mean vary\.planes"),
        ({"gpus": 64, "vary": {"planes": []}}, "at least one value"),
        ({"gpus": 64, "vary": {"planes": [0]}}, r"vary\.planes`: .*.got 0"),
        ({"gpus": 64, "vary": {"nic_bps": "800"}}, "Did you mean 800G"),
        ({"gpus": 64, "keep": {"cost": 3}}, "Did you mean keep.cost_usd"),
        ({"gpus": 64, "vary": {"planes": list(range(1, 9000))}}, "at most 20,000"),
        ({"gpus": 64, "limits": {}}, "Known keys: "),
        ({"gpus": 64, "job": {"crossing_share": 1.5}}, "crossing_share"),
        ({"gpus": 64, "job": {"gpus": 32}}, r"job\.gpus`: .*at the top of the file"),
        ({"gpus": 64, "nics_per_gpu": 2, "job": {"gpus_per_host": 8}}, "several GPUs share a NIC"),
        ({"gpus": 64, "vary": {"nic_bps": 800}}, r"vary\.nic_bps`.*.got 800.*Did you mean 800G"),
        ({"gpus": 64, "vary": {"nic_bps": [True]}}, r"vary\.nic_bps`: .*.got True"),
        ({"gpus": 64, "keep": {"power_w": -1}}, r"keep\.power_w`: .* more than 0 .got -1"),
        ({"gpus": 64, "keep": {"power_w": 0}}, r"keep\.power_w`: .* more than 0 .got 0"),
        ({"gpus": 64, "keep": {"cost_usd": float("nan")}}, r"keep\.cost_usd`: .*a number.*.got nan"),
        ({"gpus": 64, "evs": []}, r"evs`: .*at least one number.*.got \[\]"),
        ({"gpus": 64, "vary": {"evs": [8]}}, r"vary\.evs`: .*at the top of the file"),
        ({"gpus": 64, "planes": [1, 2]}, r"planes`: .*in \[vary\]"),
        ({"gpus": 64, "kept": {"power_w": 1}}, r"kept`.*.got '\[kept\]'.*Did you mean keep"),
    ],
)
def test_mistakes_are_named(table: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        studies.parse(table)


def test_a_mistake_in_a_file_has_its_line(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text("gpus = 64\n[vary]\nplanes = [1, 0]\n")
    with pytest.raises(ConfigError, match=r"s\.toml:3: `vary\.planes`: .*.got 0"):
        studies.load(tmp_path / "s.toml")


def test_the_example_has_a_front_and_a_page() -> None:
    asked = studies.load(EXAMPLE)
    points = studies.explore(asked, PRICES)
    page = study_html(asked, points, PRICES)
    assert any(not p.out for p in points) and "<circle" in page and "Pareto-optimal" in page


def test_a_study_judges_every_design_that_can_be_priced() -> None:
    """Two planes of three tiers were out because a file could not number them."""
    for gpus, planes, tiers in ((8192, [2], [3]), (131072, [2, 4, 8], [2, 3])):
        points = studies.explore(studies.parse({"gpus": gpus, "vary": {"planes": planes, "tiers": tiers}}), PRICES)
        built = {p.varied["planes"] for p in points if p.is_built}
        assert built == set(planes), [p.out for p in points]


def test_a_study_prices_and_judges_the_same_fabric() -> None:
    found = design(DesignSpec(16384, 800 * 10**9, 512 * 10**11), PRICES, planes=4, tiers=2, oversubscription=3)
    asked = studies.parse({"gpus": 16384, "vary": {"planes": 4, "tiers": 2, "oversubscription": 3, "spare_share": 0}})
    (point,) = studies.explore(asked, PRICES)
    assert point.cost_usd == found.cost_usd + found.energy_usd
    assert point.switches == found.switches == shape_of(found).switches


def test_the_answer_says_whose_the_loss_is_and_what_it_is_worth(points: list[studies.Point]) -> None:
    said = studies.answer(studies.parse(SMALL), points)
    best = min((p for p in points if p.is_built), key=lambda p: p.useful_hour_usd)
    assert best.name in said and share_text(best.hosts_share) in said and share_text(best.network_share) in said
    hours = 1024 * PRICES.energy.years * 8766
    assert best.useful_hour_usd == pytest.approx((best.cost_usd / hours + 2.5) / (1 - best.lost_share))
    assert studies.answer(studies.parse({"gpus": 10**9}), studies.explore(studies.parse({"gpus": 10**9}), PRICES)) == (
        "No design can be built."
    )


def test_every_number_of_planes_has_its_row_and_every_reason_its_designs() -> None:
    asked = studies.parse({"gpus": 8192, "vary": {"planes": [1, 2], "tiers": [2], "spare_share": 0}})
    points = studies.explore(asked, PRICES)
    assert planes_rows(points)[0][0] == "1 plane: none can be built, or is wanted" and planes_rows(points)[1][1]
    assert any(line.startswith("1 out (1 × 2): not feasible: too few: 2 tiers") for line in studies.outs(points))


def test_uplinks_are_those_of_the_fabric_that_is_built() -> None:
    """3:1 that is not full was charged as 3:1: 1 000 GPUs hang on 11 leaves of 91 with 33 uplinks each."""
    asked = studies.parse(
        {"gpus": 1000, "vary": {"planes": 2, "tiers": 2, "oversubscription": [1, 3], "spare_share": 0}}
    )
    lean = next(p for p in studies.explore(asked, PRICES) if p.varied["oversubscription"] == 3)
    stretch = asked.job.communication_share * (91 / 33 - 1)
    left = (1 - lean.hosts_share) * (1 - lean.network_share)
    assert 1 - lean.lost_share == pytest.approx(left / (1 + stretch))
    assert lean.name == "2 planes × 2 tiers, 91:33 (3:1 asked)"
    assert lean.to_json()["built_oversubscription"] == pytest.approx(91 / 33)


def test_a_ratio_that_is_built_as_asked_is_named_once() -> None:
    front = [p for p in studies.explore(studies.load(EXAMPLE), PRICES) if not p.out]
    for p in front:
        assert ("asked" in p.name) == (p.built_oversubscription != p.varied["oversubscription"])
    assert {"asked" in p.name for p in front} == {True, False}


def test_what_cannot_be_built_has_no_figures() -> None:
    """It cost 0.0, and looked like the cheapest."""
    (point,) = studies.explore(studies.parse({"gpus": 4096, "vary": {"planes": 1, "tiers": 1}}), PRICES)
    found = point.to_json()
    assert found["out"] and found["varied"]["planes"] == 1
    figures = set(found) - {"name", "varied", "out"}
    assert {"cost_usd", "power_w", "lost_share", "switches", "policy"} < figures
    assert all(found[key] is None for key in figures)


def test_gpus_are_counted_and_not_their_nics() -> None:
    """NICs of a second kind, and those that fill the last leaves, are no GPUs that fail or cost anything an hour."""
    one, two = (
        studies.explore(
            studies.parse({"gpus": 1000, "nics_per_gpu": n, "vary": {"planes": 4, "tiers": 2, "spare_share": 0.01}}),
            PRICES,
        )[0]
        for n in (1, 2)
    )
    hours = PRICES.energy.years * 8766
    for p in (one, two):
        assert p.useful_hour_usd == pytest.approx((p.cost_usd / hours / 1000 + 2.5) / (1 - p.lost_share))
    assert two.hosts_share == pytest.approx(one.hosts_share, rel=0.05), "as many GPUs, so as many of them break"
    assert two.switches > 1.5 * one.switches


def test_a_page_of_nothing_has_no_empty_tables() -> None:
    asked = studies.parse({"gpus": 100_000, "vary": {"tiers": 1}})
    page = study_html(asked, studies.explore(asked, PRICES), PRICES)
    assert "No design can be built." in page and "a switch has 64 ports" in page
    assert not any(f"<h2>{title}</h2>" in page for title in ("The front", "By planes", "What the network loses"))
