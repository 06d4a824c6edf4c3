"""The arithmetic of designs, against the figures that were published for them, and what is refused."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path

import pytest

from softmrc._support.units import (
    as_duration_ns,
    as_rate_bps,
    as_share,
    money_text,
    power_text,
    rate_text,
    ratio_text,
    share_text,
)  # fmt: skip
from softmrc.errors import ConfigError
from softmrc.fabric import Description, Tier, parse
from softmrc.planner.assess import domains
from softmrc.planner.plan import DesignSpec, Impossible, Prices, compare, design, fabric_file, lay_out, shape_of
from softmrc.planner.report import lane_notes, plan_cell

PRICES = Prices.load()
NIC, SWITCH = as_rate_bps("nic", "800G"), as_rate_bps("switch", "51.2T")
TREE = design(DesignSpec(65536, NIC, SWITCH), PRICES, planes=1, tiers=3)
PLANES = design(DesignSpec(131072, NIC, SWITCH), PRICES, planes=8, tiers=2)


def test_designs_are_those_that_were_published() -> None:
    assert (TREE.radix, TREE.max_nics, TREE.switches) == (64, 65536, 5120)
    assert (PLANES.radix, PLANES.max_nics, PLANES.switches) == (512, 131072, 6144)
    assert (PLANES.downlinks, PLANES.uplinks) == (256, 256)
    assert PLANES.switches_by_tier == (8 * 512, 8 * 256)
    four_tiers = design(DesignSpec(131072, NIC, SWITCH), PRICES, planes=1, tiers=4)
    assert [d.longest_path_switches for d in (PLANES, TREE, four_tiers)] == [3, 5, 7]
    assert (TREE.neighbours_one_hop, PLANES.neighbours_one_hop) == (32, 256)
    assert round(100 * TREE.link_share_in_plane) == 3
    assert round(100 * PLANES.link_share_in_plane, 1) == 0.4
    assert TREE.port_share == 1 and PLANES.port_share == 0.125
    four_planes = design(DesignSpec(131072, NIC, SWITCH), PRICES, planes=4, tiers=3)
    assert four_planes.port_share == 0.25


def test_published_costs_are_relative() -> None:
    for what, share in (("optics_800g", Fraction(2, 3)), ("switches", Fraction(3, 5))):
        planes, tree = (Fraction(getattr(one, what)) / one.nics for one in (PLANES, TREE))
        assert planes / tree == share


def test_a_comparison_keeps_the_fewest_tiers_and_says_what_cannot_be() -> None:
    found = compare(DesignSpec(131072, NIC, SWITCH), PRICES, planes=(1, 3, 8), tiers=(2, 3))
    one, three, eight = found
    assert isinstance(one, Impossible) and "65,536" in one.reason and "131,072" in one.reason
    assert isinstance(three, Impossible) and "800G" in three.reason
    assert not isinstance(eight, Impossible) and eight.tiers == 2


@pytest.mark.parametrize(
    ("planes", "tiers", "oversubscription", "words"),
    [
        (3, 2, 1, "800G"),
        (8, 2, 2, "341.3 down and 170.7 up"),
        (1, 2, 1, "2,048 NICs, and 131,072"),
        (8, 2, Fraction(1, 2), "at least 1"),
        (0, 2, 1, "at least 1"),
        (8, 0, 1, "at least 1"),
        (8, 1, 1, "512 ports for 131,072 NICs"),
        (8, 1, 2, "no uplinks"),
    ],
)
def test_impossible_designs_are_refused_with_the_numbers(
    planes: int, tiers: int, oversubscription: Fraction, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        design(DesignSpec(131072, NIC, SWITCH), PRICES, planes, tiers, oversubscription)


def test_oversubscription_trades_uplinks_for_hosts() -> None:
    slim = design(DesignSpec(131072, NIC, SWITCH), PRICES, planes=8, tiers=2, oversubscription=3)
    assert (slim.downlinks, slim.uplinks, slim.max_nics) == (384, 128, 196608)
    assert slim.switches < PLANES.switches and slim.optics_800g < PLANES.optics_800g


def test_a_price_file_with_a_typo_names_the_nearest_key(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("[optic]\ncost_uds = 5.0\n")
    with pytest.raises(ConfigError, match=r"optic\.cost_uds.*Did you mean optic.cost_usd"):
        Prices.load(tmp_path / "p.toml")
    (tmp_path / "q.toml").write_text("[optics]\n")
    with pytest.raises(ConfigError, match="Did you mean optic"):
        Prices.load(tmp_path / "q.toml")
    (tmp_path / "r.toml").write_text("[optic]\ncost_usd = 5\n")
    assert not Prices.load(tmp_path / "r.toml").are_assumptions


@pytest.mark.parametrize(
    ("text", "bps"), [("100G", 10**11), ("51.2T", 512 * 10**11), ("20Mbit/s", 2 * 10**7), (10**11, 10**11)]
)
def test_rates(text: object, bps: int) -> None:
    assert as_rate_bps("x", text) == bps
    assert as_rate_bps("x", rate_text(bps)) == bps


@pytest.mark.parametrize("text", ["", "fast", "-1G", "0", "00", "1.5", "10X", None, True, 1.5, "800", " 800 ", 800])
def test_rates_refused(text: object) -> None:
    with pytest.raises(ConfigError, match="100G") as caught:
        as_rate_bps("nic", text)
    assert text not in ("0", "00") or "Did you mean" not in str(caught.value)


def test_durations_and_shares() -> None:
    assert as_duration_ns("x", "50ms") == 50_000_000 and as_share("x", "1%") == 0.01 and as_share("x", 0.5) == 0.5
    for refused in ("50", "ms", "0s"):
        with pytest.raises(ConfigError):
            as_duration_ns("x", refused)
    for refused in ("150%", "1ms", "-1"):
        with pytest.raises(ConfigError):
            as_share("x", refused)
    assert [share_text(x) for x in (0, 1, 0.125, 0.0039)] == ["0", "100 %", "12.5 %", "0.39 %"]


def test_a_single_tier_is_one_switch_a_plane() -> None:
    small = design(DesignSpec(8, NIC, SWITCH), PRICES, planes=2, tiers=1)
    assert (small.switches_by_tier, small.links, small.uplinks, small.paths) == ((2,), 16, 0, 2)
    assert small.longest_path_switches == 1 and small.link_share == small.t1_share == 0 and small.port_share == 0.5
    found = compare(DesignSpec(8, NIC, SWITCH), PRICES, tiers=(1, 2, 3, 4))
    assert [d.tiers for d in found] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("gpus", "planes", "tiers", "switch", "ratio"),
    [
        (131072, 8, 2, "51.2T", 1),
        (8, 2, 1, "51.2T", 1),
        (1000, 4, 2, "51.2T", 1),
        (1024, 1, 3, "12.8T", 1),
        (900, 1, 3, "12.8T", 1),
        (16384, 4, 2, "51.2T", 1),
        (16384, 4, 2, "51.2T", 3),
        (8192, 2, 3, "51.2T", 1),
        (8192, 8, 3, "51.2T", 3),
        (131072, 4, 3, "51.2T", 1),
    ],
)
def test_what_is_priced_is_what_is_written(gpus: int, planes: int, tiers: int, switch: str, ratio: int) -> None:
    question = DesignSpec(gpus, NIC, as_rate_bps("switch", switch))
    found = design(question, PRICES, planes, tiers, ratio)
    shape = parse(fabric_file(question, found)).fabric
    assert (shape.switches, shape.cables, shape.hosts) == (found.switches, found.links, found.hosts)
    assert gpus <= shape.hosts < gpus + shape.leaves, "leaves have as many NICs, and no leaf one that it need not have"
    assert shape.planes * shape.host_link_bps == NIC and (shape.planes, shape.tiers) == (planes, tiers)
    assert shape.planes * shape.paths(0, shape.hosts - 1) == found.paths
    parts = {d.what: d for d in domains(Description(fabric=shape))}
    if tiers > 1:
        word = shape.tier_word(Tier.T1)
        assert parts[word].share == pytest.approx(found.t1_share)
        assert parts[f"leaf–{word} cable"].share == pytest.approx(found.link_share)
    assert sum(parts[word].count for word in ("leaf", "spine", "agg", "core") if word in parts) == found.switches


@pytest.mark.parametrize(("gpus", "planes", "tiers"), [(16384, 4, 2), (8192, 2, 3), (131072, 4, 3), (65536, 1, 3)])
def test_a_fabric_has_no_more_switches_than_its_ports_fill(gpus: int, planes: int, tiers: int) -> None:
    found = design(DesignSpec(gpus, NIC, SWITCH), PRICES, planes, tiers)
    assert found.switches == (2 * tiers - 1) * gpus * planes // found.radix


def _every_layout(nics: int, tiers: int, k: int, ratio: Fraction) -> list[int]:
    """Switches of every regular layout whose switches have ports enough, found by trying all numbers."""
    found = []
    for leaves in range(2, k * (k // 2) ** (tiers - 2) + 1):
        h = -(-nics // leaves)
        for spines, cables in itertools.product(range(1, k + 1), repeat=2):
            if h + spines * cables > k or spines * cables * ratio < h or (spines == 1 and h > ratio):
                continue
            if tiers == 2:
                found += [leaves + spines] if leaves * cables <= k else []
                continue
            for pods in range(2, min(leaves, k) + 1):
                rising = leaves // pods * cables
                if leaves % pods or 2 * rising > k:
                    continue
                cores = [n for n in range(1, k) for side in (-(-rising // n),) if rising + n * side <= k >= pods * side]
                found += [leaves + pods * spines + spines * min(cores)] if cores else []
    return found


@pytest.mark.parametrize(("tiers", "radix"), [(2, 12), (2, 16), (3, 8)])
def test_no_regular_layout_has_fewer_switches(tiers: int, radix: int) -> None:
    """Only the fewest leaves were tried, with all their uplinks and cables that divide them: 1,032 switches for 16,500
    GPUs, where 816 do."""
    for nics, ratio in itertools.product((17, 23, 40, 50, 61), (Fraction(1), Fraction(3))):
        if tiers == 3 and nics == 61 and ratio == 3:
            continue
        everything = _every_layout(nics, tiers, radix, ratio)
        if not everything or nics > int(radix * ratio / (1 + ratio)) * (radix // 2) ** (tiers - 2) * radix:
            continue
        one = lay_out(nics, tiers, radix, ratio)
        assert one is not None and sum(one.by_tier) == min(everything), (nics, ratio, one)


def test_a_fabric_that_is_not_full_is_laid_out_anew() -> None:
    found = design(DesignSpec(16500, NIC, SWITCH), PRICES, planes=8, tiers=2)
    assert found.switches <= 816 and found.cost_usd < 108e6


def test_no_switch_of_a_layout_has_more_cables_than_ports() -> None:
    for nics, tiers, radix, ratio in itertools.product((2, 100, 900, 1100), (2, 3), (16, 48, 64), (1, 2, 3)):
        if nics > int(Fraction(radix * ratio, 1 + ratio)) * (radix // 2) ** (tiers - 2) * radix or nics < radix:
            continue
        one = lay_out(nics, tiers, radix, Fraction(ratio))
        assert one is not None and one.spines > 1
        assert one.hosts_per_leaf + one.spines * one.cables <= radix
        assert one.hosts_per_leaf <= ratio * one.spines * one.cables
        if one.pods:
            down, rising = one.leaves // one.pods * one.cables, one.cores_per_spine * one.core_cables
            assert down <= rising <= radix - down and one.pods * one.core_cables <= radix
        else:
            assert one.leaves * one.cables <= radix


def test_spares_have_ports_and_a_file_says_so() -> None:
    """Designs were exactly full, and spares stood by without a port."""
    for planes, tiers in ((2, 2), (8, 2)):
        gpus = 8192 if planes == 2 else 131072
        design(DesignSpec(gpus, NIC, SWITCH), PRICES, planes, tiers)
        with pytest.raises(ConfigError, match="of them for spares"):
            design(DesignSpec(gpus, NIC, SWITCH, spare_share=0.01), PRICES, planes, tiers)
    asked = DesignSpec(1000, NIC, SWITCH, 2, 0.02)
    found = design(asked, PRICES, planes=2, tiers=2)
    d = parse(fabric_file(asked, found), "x")
    assert (asked.spares, d.spares, d.gpus, d.nics) == (20, 20, 1000, 2000) and d.places >= 20
    assert d.fabric.hosts >= 2040 and 2000 <= d.spanned.fabric.hosts < 2000 + d.fabric.leaves
    tiny = DesignSpec(2, NIC, SWITCH, spare_share=0.5)
    assert parse(fabric_file(tiny, design(tiny, PRICES, 1, 1)), "x").nics == 2


def test_a_switch_has_no_more_ports_than_lanes() -> None:
    """51.2T were sold as 1,024 ports of 50G."""
    slow = DesignSpec(4096, NIC // 2, SWITCH)
    found = design(slow, PRICES, planes=8, tiers=2)
    assert (found.radix, found.port_bps) == (512, 50 * 10**9)
    assert "512 lanes of 100G" in lane_notes(slow, [found])[0] and not lane_notes(slow, [PLANES])
    fine = design(DesignSpec(4096, NIC // 2, SWITCH, lane_bps=50 * 10**9), PRICES, planes=8, tiers=2)
    assert fine.radix == 1024


def test_a_design_beyond_a_fabric_file_is_refused_with_the_numbers() -> None:
    question = DesignSpec(65536, NIC, SWITCH)
    with pytest.raises(ConfigError, match="at most 3 in a fabric file"):
        fabric_file(question, design(question, PRICES, planes=1, tiers=4))
    with pytest.raises(ConfigError, match=r"at most 16,384 ports, and has 64,000,000"):
        design(DesignSpec(64, 800_000, SWITCH, lane_bps=800_000), PRICES, planes=1, tiers=2)


@pytest.mark.parametrize("gpus", [64, 100, 1000, 8192])
@pytest.mark.parametrize("oversubscription", [1, 3])
@pytest.mark.parametrize("planes", [1, 2, 8])
def test_a_design_names_the_ratio_that_it_has(gpus: int, oversubscription: int, planes: int) -> None:
    """It printed 1:1, or the requested ratio, wherever leaves were not full."""
    for found in compare(DesignSpec(gpus, NIC, SWITCH), PRICES, (planes,), (1, 2, 3), (Fraction(oversubscription),)):
        if isinstance(found, Impossible):
            continue
        built = shape_of(found).oversubscription
        assert found.down_up == (built or None)
        assert plan_cell(found, "split") == (ratio_text(built) if built else "–")
        assert built <= oversubscription


@pytest.mark.parametrize("planes", [1, 8])
@pytest.mark.parametrize("tiers", [2, 3, 4])
def test_nothing_is_built_above_a_single_leaf(planes: int, tiers: int) -> None:
    """32 spines were bought above one leaf, which no packet has to leave."""
    with pytest.raises(ConfigError, match=r"tiers.* must be 1: a single leaf connects all 20 NICs"):
        design(DesignSpec(20, NIC, SWITCH), PRICES, planes, tiers)


def test_three_tiers_have_several_pods() -> None:
    for nics in (33, 64, 100, 2048):
        found = design(DesignSpec(nics, NIC, SWITCH), PRICES, planes=1, tiers=3)
        assert found.layout is not None and found.layout.pods > 1, "no packet crosses cores above a single pod"


def test_a_file_says_how_many_gpus_there_are() -> None:
    for gpus, nics in ((1000, 1), (1000, 2), (1024, 1)):
        asked = DesignSpec(gpus, NIC, SWITCH, nics)
        found = design(asked, PRICES, planes=2, tiers=2)
        description = parse(fabric_file(asked, found), "x")
        assert description.gpus == gpus and description.fabric.hosts == found.hosts
        counts = {d.what: d.count for d in domains(description)}
        assert counts["GPU" if nics > 1 else "host"] == gpus and counts["NIC port"] == 2 * found.hosts


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (0, "$ 0"), (0.4, "$ 0"), (999, "$ 999"), (999.9, "$ 1 k"), (1234, "$ 1.23 k"), (999_499, "$ 999 k"),
        (999_700, "$ 1 M"),
        (18.7e6, "$ 18.7 M"), (999.9e6, "$ 1 G"), (1.5e12, "$ 1,500 G"), (-2500, "$ -2.5 k"),
    ],
)  # fmt: skip
def test_money_is_three_digits_and_no_power_of_ten(usd: float, text: str) -> None:
    """It was $ 1e+03 k just below a million."""
    assert money_text(usd) == text


def test_power_is_three_digits_too() -> None:
    texts = {0: "0 W", 12: "12 W", 999.6: "1 kW", 999_900: "1 MW", 18.4e6: "18.4 MW", 2e9: "2 GW"}
    assert {w: power_text(w) for w in texts} == texts
