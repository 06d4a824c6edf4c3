"""Variables: those that are read, and the warning about those that are not."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest

from softmrc.config import environment
from softmrc.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def test_a_misspelt_name_gets_a_word_and_a_suggestion() -> None:
    said = environment.unknown_variables(
        {"SOFTMRC_PLANS": "eth0", "SOFTMRC_SECERT": "x", "SOFTMRC_QUUX": "1", "OTHER": "1"}
    )
    assert said == [
        "SOFTMRC_PLANS is set, and nothing reads it. Did you mean SOFTMRC_PLANES?",
        "SOFTMRC_QUUX is set, and nothing reads it",
        "SOFTMRC_SECERT is set, and nothing reads it. Did you mean SOFTMRC_SECRET?",
    ]
    assert "x" not in said[2].split(), "what was meant to be secret"


def test_a_fabric_without_a_host_is_said_and_so_is_a_host_without_a_fabric() -> None:
    for one, other in (("SOFTMRC_FABRIC", "SOFTMRC_HOST"), ("SOFTMRC_HOST", "SOFTMRC_FABRIC")):
        (said,) = environment.unknown_variables({one: "3", other: ""})
        assert said.startswith(f"{one} is set without {other}")
    assert environment.unknown_variables({"SOFTMRC_HOST": "1", "SOFTMRC_FABRIC": "x.toml"}) == []


def test_it_is_said_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_said", set())
    for _ in range(3):
        environment.warn_of_unknown_variables({"SOFTMRC_PLNES": "x"})
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_plane_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"SOFTMRC_PLANES.*names eth0 twice"):
        environment.read({"SOFTMRC_PLANES": "eth0,eth1, eth0"})


def test_a_key_that_is_nearly_one_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mrc.toml"
    file.write_text("plane = ['eth0']")
    with pytest.raises(ConfigError, match=r"Did you mean planes\?"):
        environment.read({"SOFTMRC_CONFIG": str(file)})


def test_every_variable_that_the_sources_read_is_in_the_list() -> None:
    """Else it would be called a mistake."""
    read = re.compile(r"""["'](SOFTMRC_[A-Z_]+)["']""")
    found: set[str] = set()
    for file in [*(ROOT / "src").rglob("*.py"), *(ROOT / "core").rglob("*.cpp"), *(ROOT / "core").rglob("*.h")]:
        found |= set(read.findall(file.read_text()))
    assert found <= set(environment.VARIABLES) | set(environment.OF_TESTS) | {environment.PREFIX}


DEBUG = """
from softmrc.device import Device
from softmrc.config import environment
environment.read()
Device(["127.0.0.1", "127.0.0.2"], why="because").close()
"""


@pytest.mark.process
def test_debug_tells_which_planes_and_why() -> None:
    """And without it nothing is said."""
    for value, words in (("1", ["planes 0 127.0.0.1, 1 127.0.0.2 (because)", "payload", "lane"]), ("", [])):
        done = subprocess.run(
            [sys.executable, "-c", DEBUG], capture_output=True, text=True, timeout=60, env={"SOFTMRC_DEBUG": value}
        )
        assert done.returncode == 0 and all(word in done.stderr for word in words), done.stderr
        assert len(done.stderr.splitlines()) == bool(words)
