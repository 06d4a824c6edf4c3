"""What is broken, from what came back: on paper, where everything is known."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from tests.mapper.paper import PaperFabric

from softmrc.errors import ConfigError
from softmrc.fabric import Shape
from softmrc.ops.mapper import ComponentKind, Components, Mapper, MapperSettings
from softmrc.ops.mapper.probes import Prober

TWO = Shape(planes=2, hosts=32, hosts_per_leaf=8, spines=4)
THREE = Shape(planes=2, hosts=64, hosts_per_leaf=4, spines=2, pods=4, cores_per_spine=2)
SETTINGS = MapperSettings(slot_s=0.01, step_slots=20, window_slots=100, lanes=4)


def said(fabric: PaperFabric, steps: int = 4, settings: MapperSettings = SETTINGS) -> set[tuple[str, str, str]]:
    mapper = Mapper(fabric, settings)
    for _ in range(steps):
        found = mapper.step()
    return {(one.component.kind.value, one.component.name, one.state.value) for one in found}


@pytest.mark.parametrize("shape", [TWO, THREE], ids=["two tiers", "three tiers"])
def test_rounds_walk_the_fabric_and_leave_no_link_out(shape: Shape) -> None:
    prober = Prober(Components(shape))
    crossed = np.zeros(shape.links, dtype=int)
    for number in range(8):
        batch = prober.round(number)
        np.add.at(crossed, batch.links[batch.links >= 0], 1)
        for i in range(0, len(batch), 7):
            ends = [shape.ends(int(link)) for link in batch.links[i] if link >= 0]
            assert ends[0][0].index == batch.source[i] and ends[-1][1].index == batch.destination[i]
            assert all(here[1] == there[0] for here, there in pairwise(ends))
    assert crossed.min() >= 8


@pytest.mark.parametrize("shape", [TWO, THREE], ids=["two tiers", "three tiers"])
def test_components_have_names_that_lead_back_and_carry_the_links_they_should(shape: Shape) -> None:
    components = Components(shape, lanes=4)
    seen = set()
    for number in range(len(components)):
        component = components.component(number)
        assert component.name not in seen
        seen.add(component.name)
        if number % 5 == 0:
            assert components.named(component.name) == component
        planes = {shape.plane_of(link) for link in component.links}
        assert len(planes) == (shape.planes if component.kind is ComponentKind.HOST else 1)
        size = {
            ComponentKind.DIRECTION: 1,
            ComponentKind.LINK: 2,
            ComponentKind.PORT: 2,
            ComponentKind.HOST: 2 * shape.planes,
        }.get(component.kind)
        assert size is None or len(component.links) == size
    with pytest.raises(ConfigError, match="Name a link, port"):
        components.named("nonsense")


@pytest.mark.parametrize("shape", [TWO, THREE], ids=["two tiers", "three tiers"])
def test_a_sound_fabric_has_nothing_broken(shape: Shape) -> None:
    assert said(PaperFabric(shape)) == set()


ONE_EACH = [
    "p0.leaf1-spine2", "p1.leaf3>spine0", "p1.spine3>leaf0", "p0.host5-leaf0", "p1.host9>leaf1", "p1.leaf2>host17",
    "p0.leaf2", "p1.spine1", "host12", "plane 1", "p1.host0-leaf0…host3", "p0.leaf1-spine0…p0.spine3",
]  # fmt: skip


@pytest.mark.parametrize("name", ONE_EACH)
@pytest.mark.parametrize("how", ["dead", "lossy", "corrupting", "flapping"])
def test_one_broken_component_is_named_and_nothing_else(name: str, how: str) -> None:
    fabric = PaperFabric(TWO, seed=len(name))
    component = Components(TWO, lanes=4).named(name)
    links = np.array(component.links)
    if how == "dead":
        fabric.gone = lambda now: links if now > 0.1 else links[:0]
    elif how == "flapping":
        fabric.gone = lambda now: links if int(now / 0.06) % 2 else links[:0]
    else:
        (fabric.loss if how == "lossy" else fabric.corrupt)[links] = 0.05
    assert said(fabric) == {(component.kind.value, name, how)}


@pytest.mark.parametrize("name", [n for n in ONE_EACH if "host9>" not in n and ">host17" not in n])
def test_a_slow_component_is_named(name: str) -> None:
    fabric = PaperFabric(TWO, seed=5)
    component = Components(TWO, lanes=4).named(name)
    fabric.rate[list(component.links)] = 0.4
    assert said(fabric) == {(component.kind.value, name, "slow")}


def test_which_way_of_a_nics_cable_is_slow_nobody_can_tell() -> None:
    fabric = PaperFabric(TWO)
    fabric.rate[TWO.host_up(0, 9)] = 0.3
    assert said(fabric) == {("port", "p0.host9-leaf1", "slow")}


@pytest.mark.parametrize("name", ["p0.agg3-core3", "p1.agg2>core0", "p1.core2>agg5", "p0.core3", "p1.agg4", "p0.leaf7"])
@pytest.mark.parametrize("how", ["dead", "lossy"])
def test_three_tiers(name: str, how: str) -> None:
    fabric = PaperFabric(THREE, seed=3)
    component = Components(THREE).named(name)
    if how == "dead":
        fabric.gone = lambda _: np.array(component.links)
    else:
        fabric.loss[list(component.links)] = 0.03
    found = said(fabric, settings=MapperSettings(slot_s=0.01, step_slots=20, window_slots=100))
    assert found == {(component.kind.value, name, how)}


def test_two_lossy_cables_of_a_switch_are_not_taken_for_the_switch() -> None:
    fabric = PaperFabric(TWO, seed=2)
    components = Components(TWO, lanes=4)
    names = {"p0.leaf1-spine0", "p0.host8-leaf1"}
    for name in names:
        fabric.loss[list(components.named(name).links)] = 0.1
    assert {name for _, name, _ in said(fabric)} == names


def test_what_was_mended_is_forgotten_with_the_window() -> None:
    fabric = PaperFabric(TWO)
    links = np.array(Components(TWO).named("p0.leaf0-spine0").links)
    fabric.gone = lambda now: links if now < 0.5 else links[:0]
    mapper = Mapper(fabric, MapperSettings(slot_s=0.01, step_slots=20, window_slots=40))
    states = [{one.state.value for one in mapper.step()} for _ in range(6)]
    assert states[0] == {"dead"} and states[-1] == set()


def test_the_evidence_says_who_is_hit_and_how_much() -> None:
    fabric = PaperFabric(TWO)
    components = Components(TWO, lanes=4)
    fabric.loss[list(components.named("p0.leaf1>spine2").links)] = 0.2
    mapper = Mapper(fabric, SETTINGS)
    for _ in range(4):
        (found,) = mapper.step()
    assert found.hosts == tuple(range(8, 16))
    assert 0.15 < found.share < 0.25
    assert found.accused / (found.accused + found.vouched) == pytest.approx(found.share, abs=0.05)


@pytest.mark.parametrize(
    "field, value",
    [("slot_s", 0), ("step_slots", 0), ("window_slots", 1), ("train", 0), ("burst_bytes", 1 << 20), ("floor", 2)],
)
def test_settings_that_make_no_sense_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        MapperSettings(**{field: value})
