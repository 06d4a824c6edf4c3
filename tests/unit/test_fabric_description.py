"""Fabric files: what they may say, and what is said about one that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

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
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[fabric]\nhost_per_leaf = 4", r"fabric\.host_per_leaf = 4 .* did you mean hosts_per_leaf"),
        ("[fabrics]\nhosts = 4", "fabrics .* did you mean fabric"),
        ("[fabric]\nhosts = 8.5", r"fabric\.hosts = 8\.5 .*whole number"),
        ("[fabric]\nhosts = true", "whole number"),
        ("[fabric]\nhost_link_bps = 'fast'", "100G"),
        ("[fabric]\nhosts = 8\n[switch]\necn = 1", r"switch\.ecn = 1 .*true or false"),
        ("[fabric]\nhosts = 8\n[addressing]\nplane_in = 'port'", "one of block, usid"),
        ("[fabric]\nhosts = 8\n[addressing]\nblock = 'fcbb::/16'", "32 bits"),
        ("[fabric]\nhosts = 8\n[failures]\nlink_per_year = -1", "0 to"),
        ("[fabric]\nhosts = 8\n[lab]\nmtu = 500", "1280"),
        ("name = 'a/b'\n[fabric]\nhosts = 8", "letters, digits"),
        ("fabric = 3", "section"),
        ("name = 'x'", r"a section \[fabric\]"),
        ("[fabric\n", "TOML"),
    ],
)
def test_mistakes_are_named(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(text)
