"""Denylists: written, read, turned into EVs; and what is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.mapper.paper import PaperFabric

from softmrc.errors import ConfigError
from softmrc.fabric import AddressPlan, Shape
from softmrc.fabric.denylist import Denylist, DenylistEntry
from softmrc.ops.mapper import Components, Mapper, MapperSettings, denylist_of

SHAPE = Shape(planes=2, hosts=16, hosts_per_leaf=4, spines=4)
PLAN = AddressPlan(SHAPE)


def list_of(*names: str) -> Denylist:
    components = Components(SHAPE)
    fabric = PaperFabric(SHAPE)
    gone = np.array([link for name in names for link in components.named(name).links])
    fabric.gone = lambda _: gone
    return denylist_of("here", SHAPE, Mapper(fabric, MapperSettings(step_slots=20, window_slots=20)).step())


def test_a_list_survives_its_file_and_names_exactly_the_evs_that_cross(tmp_path: Path) -> None:
    file = tmp_path / "denylist.json"
    made = list_of("p0.leaf0-spine1", "p1.host9-leaf2")
    made.save(file)
    read = Denylist.load(file)
    assert read == made and {entry.name for entry in read.entries} == {"p0.leaf0-spine1", "p1.host9-leaf2"}
    assert read.evs(PLAN, 0, 5) == [PLAN.ev_of(0, 1)]
    assert read.evs(PLAN, 5, 0) == [PLAN.ev_of(0, 1)]  # the other direction of the cable
    assert read.evs(PLAN, 4, 8) == []
    assert read.evs(PLAN, 4, 9) == [PLAN.ev_of(1, path) for path in range(4)]


def test_one_direction_denies_one_direction() -> None:
    entry = DenylistEntry("p0.leaf0>spine1", "direction", "dead", 1.0, ("p0.leaf0>spine1",))
    one_way = Denylist("here", (entry,))
    assert one_way.evs(PLAN, 0, 5) == [PLAN.ev_of(0, 1)] and one_way.evs(PLAN, 5, 0) == []


def test_a_list_of_everything_denies_nothing() -> None:
    every = DenylistEntry("all", "plane", "dead", 1.0, ("p0.host0>leaf0", "p1.host0>leaf0"))
    assert Denylist("here", (every,)).evs(PLAN, 0, 5) == []


@pytest.mark.parametrize(
    "text, words",
    [
        ("{", "in JSON"),
        ("[" * 100_000, "in JSON"),
        ("[]", "is missing"),
        ('{"denylist": 2, "entries": []}', "is missing"),
        ('{"denylist": 1}', "no list of entries"),
        ('{"denylist": 1, "entries": [{"name": "x"}]}', "entry 0 has no links"),
        ('{"denylist": 1, "entries": [{"links": [7]}]}', "entry 0 has no links"),
        ('{"denylist": 1, "entries": [{"links": ["a"], "share": "x"}]}', "share must be a number"),
    ],
)
def test_what_is_no_list_is_refused_in_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        Denylist.load(file)


def test_links_that_the_fabric_does_not_have_are_refused() -> None:
    for name in ("p0.leaf0-spine1", "p0.leaf0>spine9", "nonsense>x", "p7.leaf0>spine1"):
        with pytest.raises(ConfigError):
            Denylist("here", (DenylistEntry("x", "link", "dead", 1.0, (name,)),)).evs(PLAN, 0, 5)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="no such file"):
        Denylist.load(Path("/nowhere/at/all"))
