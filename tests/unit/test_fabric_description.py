"""Fabric files: what they may say, and what is said about one that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from softmrc._support.files import line_of
from softmrc.errors import ConfigError
from softmrc.fabric import load, parse

GOOD = """
name = "eight"
[fabric]
planes = 4
hosts = 8
hosts_per_leaf = 2
spines = 4
host_link_bps = "20M"
[switch]
ecn = true
[job]
communication_share = "40%"
"""


def test_a_file_becomes_a_description() -> None:
    found = parse(GOOD)
    assert found.name == "eight" and found.fabric.planes == 4 and found.fabric.host_link_bps == 20_000_000
    assert found.switch.ecn and not found.switch.trim and found.job.communication_share == 0.4


def test_a_fabric_without_a_name_has_its_files(tmp_path: Path) -> None:
    (tmp_path / "my lab.toml").write_text("[fabric]\nhosts = 8\n")
    assert load(tmp_path / "my lab.toml").name == "my-lab"
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[fabric]\nhost_per_leaf = 4", r"fabric\.host_per_leaf`.*.got 4.*Did you mean fabric.hosts_per_leaf"),
        ("[fabrics]\nhosts = 4", "fabrics`: .* Did you mean fabric"),
        ("[fabric]\nhosts = 8.5", r"fabric\.hosts`: .*whole number.*.got 8\.5"),
        ("[fabric]\nhosts = true", "whole number"),
        ("[fabric]\nhost_link_bps = 'fast'", "100G"),
        ("[fabric]\nhosts = 8\n[switch]\necn = 1", r"switch\.ecn`: .*true or false.*.got 1"),
        ("[fabric]\nhosts = 8\n[addressing]\nplane_in = 'port'", "one of block, usid"),
        ("[fabric]\nhosts = 8\n[addressing]\nblock = 'fcbb::/16'", "32 bits"),
        ("[fabric]\nhosts = 8\n[failures]\nlink_per_year = -1", "0 to"),
        ("[fabric]\nhosts = 8\n[lab]\nmtu = 500", "1280"),
        ("name = 'a/b'\n[fabric]\nhosts = 8", "letters, digits"),
        ("fabric = 3", "a table"),
        ("name = 'x'", r"a section \[fabric\]"),
        ("[fabric\n", "TOML"),
    ],
)
def test_mistakes_are_named(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[fabric]\nhosts = 8\n\nspnies = 4\n", ":4: `fabric.spnies`: unknown key (got 4)"),
        (
            "[fabric]\nhosts = 8\n[job]\n# note\nrestart_min = -1\n",
            ":5: `job.restart_min`: must be 0.01 to 100000 (got -1",
        ),
        ("[fabric]\nhosts = 7\nhosts_per_leaf = 2\n", ":2: `fabric.hosts`: must be a multiple"),
        ("name = 'x'\n", "`fabric`: is missing"),
        ("[fabric]\nhosts = \n", ":2:9: invalid TOML"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_file_line_and_key(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "bad.toml")
    assert "bad" in str(caught.value) and words in str(caught.value) and "\n" not in str(caught.value)


def test_lines_of_keys_are_found_in_lists_of_tables() -> None:
    text = """question = "x"
[fabric]
planes = 2
[[faults.events]]
kind = "down"
[[faults.events]]
kind = "down"
port = { plane = 0, host = 3 }
[[compare]]
name = "one"
[[compare]]
name = "two"
fabric.planes = 3
[[compare.faults.events]]
kind = "dwon"
"""
    keys = {
        "question": 1, "fabric.planes": 3, "fabric.nothing": 2, "faults.events[0].kind": 5, "faults.events[1].kind": 7,
        "faults.events[1].port.host": 8, "compare[1].fabric.planes": 13, "compare[1].faults.events[0].kind": 15,
        "compare[0].name": 10, "nowhere.at.all": None,
    }  # fmt: skip
    assert {key: line_of(text, key) for key in keys} == keys
