"""Whatever stands behind an option: taken if it means something, and otherwise refused in a line, before anything is
done. A row is a command, an option, and the odd values that it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from softmrc.cli import app
from softmrc.cli.ping import split_address
from softmrc.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = "127.0.0.1:1"
FABRIC, SCENARIO = str(ROOT / "examples" / "lab.toml"), str(ROOT / "scenarios" / "slow-link.toml")
LONG = "1" * 5000
NUMBERS = ("inf", "-inf", "nan", "-1", "0", "1e300", str(1 << 70), LONG, "", "x", "ü", "²", "None", "1.5")
ROWS: list[tuple[list[str], str, set[str]]] = [
    (["ping", NOWHERE], "--count", set()),
    (["ping", NOWHERE], "--interval-ms", {"1.5"}),
    (["perf", NOWHERE], "--seconds", {"1.5"}),
    (["perf"], "--port", {"0"}),
    (["perf", NOWHERE], "--lanes", {"0", "3"}),
    (["top", "--load", NOWHERE], "--seconds", {"0", "1.5"}),
    (["top", "--load", NOWHERE], "--interval-s", {"1.5"}),
    (["top", "--load", NOWHERE], "--loss", {"0"}),
    (["demo", "--engine"], "--seed", {"0", "-1", str(1 << 70)}),
    (["demo"], "--steps", {"0", str(1 << 70)}),
    (["plan"], "--gpus", {str(1 << 70)}),
    (["plan"], "--nic", set()),
    (["plan"], "--switch", set()),
    (["plan"], "--planes", set()),
    (["plan"], "--tiers", set()),
    (["plan"], "--oversubscription", {"1.5"}),
    (["plan"], "--nics-per-gpu", {str(1 << 70)}),
    (["assess", FABRIC], "--trials", {"0"}),
    (["assess", FABRIC], "--seed", {"0", str(1 << 70)}),
    (["fabric", "routes", FABRIC, "--from", "host0", "--to", "host1"], "--ev", {"0"}),
    (["sim", SCENARIO, "--quiet"], "--seed", {"0"}),
    (["sweep", SCENARIO, "--vary", "fabric.planes=1"], "--seeds", set()),
    (["sweep", SCENARIO, "--vary", "fabric.planes=1"], "--workers", {"0"}),
    (["mapper", "sim", FABRIC], "--seconds", {"1.5"}),
    (["mapper", "sim", FABRIC], "--seed", {"0"}),
    (["mapper", "sim", FABRIC], "--lanes", set()),
    (["mapper", "sim", FABRIC], "--break", set()),
    (["mapper", "lab"], "--seconds", {"1.5"}),
    (["ctl", "planes"], "--watch", {"0", "1.5"}),
    (["ctl", "deny"], "--ev", {"0"}),
    (["ctl", "deny"], "--qpn", {"0"}),
    (["agent"], "--listen", set()),
    (["dash"], "--listen", set()),
    (["dissect", FABRIC], "--limit", set()),
    (["dissect", FABRIC], "--port", set()),
]


@pytest.mark.parametrize(("command", "option", "taken"), ROWS, ids=[f"{row[0][0]} {row[1]}" for row in ROWS])
def test_what_makes_no_sense_is_refused(command: list[str], option: str, taken: set[str]) -> None:
    for value in NUMBERS:
        if value in taken:
            continue
        result = CliRunner().invoke(app, [*command, option, value])
        is_usage = result.exit_code == 2 and option in result.output
        assert is_usage or isinstance(result.exception, ConfigError), f"{value}: {result.exception!r} {result.output}"


@pytest.mark.parametrize(
    "text", ["", ":", ":1", "x", "x:", "x:y", "x:-1", "x:1.5", "x:²", "x:１２", f"x:{LONG}", "[::1]:", "x: 1", "x:1\n"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        split_address(text)


@pytest.mark.parametrize(
    "text", ["127.0.0.1:²", "a..b:19470", f"127.0.0.1:{LONG}", "." * 300 + ":1", "x" * 64 + ".y:1"]
)
def test_where_no_agent_can_listen_is_said(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTMRC_TOKEN", "0123456789abcdef")
    for command in ("agent", "dash"):
        error = CliRunner().invoke(app, [command, "--listen", text]).exception
        assert isinstance(error, ConfigError) and "ADDRESS:PORT" in str(error), repr(error)
