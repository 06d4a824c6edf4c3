"""What comes with the package: scenarios and examples by name, the version, what the machine has."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import softmrc
from in_process import softmrc_here as run
from softmrc._support import resources
from softmrc.cli import app
from softmrc.cli import info as info_command
from softmrc.errors import ConfigError


@pytest.mark.process
def test_scenarios_are_found_by_name_wherever_one_stands(tmp_path: Path) -> None:
    for name in ("slow-link", "slow-link.toml", "scenarios/slow-link.toml"):
        done = run("sim", name, "--quiet", "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["question"]


def test_ones_own_file_goes_first(tmp_path: Path) -> None:
    (tmp_path / "slow-link").write_text("nonsense = 1")
    assert "nonsense" in run("sim", "slow-link", "--quiet", cwd=tmp_path).stderr


def test_a_name_that_is_nearly_one_is_suggested() -> None:
    with pytest.raises(ConfigError, match=r"Did you mean t1-reboot\?"):
        resources.find(Path("t1-rebot"), resources.SCENARIOS, "scenario")
    with pytest.raises(ConfigError, match="softmrc examples"):
        resources.find(Path("xyzzy"), resources.SCENARIOS, "scenario")


def test_every_example_is_listed_and_printed_as_it_is() -> None:
    listed = CliRunner().invoke(app, ["examples"]).output
    root = resources.folder(resources.EXAMPLES)
    assert root is not None
    for file in root.iterdir():
        if file.is_file():
            assert file.name in listed
            assert CliRunner().invoke(app, ["examples", file.name]).output == file.read_text()
    assert all(name in listed for name in resources.names(resources.SCENARIOS))


def test_the_version() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert done.exit_code == 0 and done.output.startswith(f"softmrc {softmrc.__version__} ")


def test_info_says_what_is_missing_and_what_fixes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info_command, "_sysctl", lambda name: 212_992)
    monkeypatch.setenv("SOFTMRC_PLANES", "127.0.0.1,nosuch0")
    monkeypatch.setenv("SOFTMRC_PLNES", "x")
    found = {fact["name"]: fact for fact in json.loads(CliRunner().invoke(app, ["info", "--json"]).output)["facts"]}
    assert "sysctl -w net.core.rmem_max=" in found["socket buffers"]["fix"]
    assert "no interface nosuch0" in found["planes"]["found"] and "set by SOFTMRC_PLANES" in found["planes"]["found"]
    assert "Did you mean SOFTMRC_PLANES" in found["environment"]["found"]
    shown = CliRunner().invoke(app, ["info"]).output
    lines = [line.strip().removeprefix("sudo ") for line in shown.splitlines()]
    assert any(line.startswith("sysctl -w") for line in lines)  # to copy as it is


def test_info_is_content_where_everything_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info_command, "_sysctl", lambda name: 1 << 30)
    monkeypatch.setenv("SOFTMRC_PLANES", "127.0.0.1")
    found = {fact["name"]: fact for fact in json.loads(CliRunner().invoke(app, ["info", "--json"]).output)["facts"]}
    assert found["socket buffers"]["is_good"] and found["planes"]["is_good"] and "environment" not in found


def test_info_says_what_seals_packets_and_how_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    sealing = info_command._sealing()
    if info_command._core.can_seal():
        assert re.fullmatch(
            r"(AES-256-GCM|CHACHA20-POLY1305), \d+\.\d GB/s a core now, OpenSSL [\d.]+\S*", sealing.found
        )
    monkeypatch.setattr(info_command._core, "can_seal", lambda: False)
    without = info_command._sealing()
    assert not without.is_good and "libssl-dev" in without.fix


@pytest.mark.parametrize("line", ["max_pending = 0", "max_connections = 99_999_999", 'seal = "maybe"', "rekey_s = 1"])
def test_info_names_a_setting_that_no_device_would_take(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "softmrc.toml"
    file.write_text(f"[device]\n{line}\n")
    monkeypatch.setenv("SOFTMRC_CONFIG", str(file))
    limits = info_command._limits()
    assert not limits.is_good and f"`{line.split()[0]}`: must be" in limits.found


def test_what_most_programs_need_is_in_the_package_with_words() -> None:
    for name in softmrc.__all__:
        found = getattr(softmrc, name)
        assert name in dir(softmrc)
        if inspect.isclass(found) or inspect.isfunction(found):
            assert inspect.getdoc(found), name
            home = importlib.import_module(softmrc._HOMES.get(name, "softmrc.errors"))
            assert getattr(home, name) is found
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        softmrc.nothing  # noqa: B018


# A real process: it is what a fresh interpreter imports.
@pytest.mark.process
def test_importing_the_package_imports_nothing_heavy() -> None:
    program = "import sys, softmrc; print(sorted(m for m in sys.modules if m.startswith(('softmrc', 'numpy'))))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "['softmrc', 'softmrc.errors']"


@pytest.mark.parametrize(
    ("command", "file", "words"),
    [
        ("study", "lab", r"must be a study, and is a fabric file .*Use `softmrc assess`"),
        ("study", "t1-reboot", r"must be a study, and is a scenario .*Use `softmrc sim`"),
        ("assess", "study", r"must be a fabric file, and is a study .*Use `softmrc study`"),
        ("assess", "t1-reboot", r"must be a fabric file, and is a scenario .*Use `softmrc sim`"),
        ("sim", "lab", r"must be a scenario, and is a fabric file .*Use `softmrc assess`"),
        ("sweep", "study", r"must be a scenario, and is a study .*Use `softmrc study`"),
    ],
)
def test_a_file_of_another_kind_is_named_as_what_it_is(command: str, file: str, words: str) -> None:
    vary = ["--vary", "fabric.planes=1,2"] if command == "sweep" else []
    done = CliRunner().invoke(app, [command, file, *vary])
    assert isinstance(done.exception, ConfigError) and re.search(words, str(done.exception))


def test_only_files_of_the_kind_that_is_asked_for_are_listed() -> None:
    for command, listed, other in (("study", "Built in: study", "lab"), ("assess", "Built in: lab, large", "study")):
        said = str(CliRunner().invoke(app, [command, "xyzzy"]).exception)
        assert listed in said and other not in said.removeprefix("study")
