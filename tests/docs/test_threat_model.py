"""Every line of the threat model names tests that exist, and its versions are those of the code."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from softmrc import _core
from softmrc.collectives.store_rendezvous import OLDER_UNPROVED_S, UNPROVED_S, StoreRendezvous
from softmrc.config import DeviceConfig

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
TEST = re.compile(r"`((?:[\w/]+/)?\w+\.(?:py|cpp)(?:::\w+)?)`")


@cache
def functions(file: Path) -> set[str]:
    return set(re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE))


def wrong(name: str) -> str:
    """Why there is no such test; '' if there is."""
    path, _, function = name.partition("::")
    file = ROOT / path if "/" in path else ROOT / "tests" / "hostile" / path
    if not file.is_file():
        return f"there is no {path}"
    if function and function not in functions(file):
        return f"{path} has no {function}"
    return ""


def rows() -> list[tuple[str, str]]:
    """Of tables whose last column is of tests: the first cell, and the last."""
    found, is_of_tests = [], False
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("|") else []
        if not cells:
            is_of_tests = False
        elif cells[-1] == "test":
            is_of_tests = True
        elif is_of_tests and not line.startswith("|---"):
            found.append((cells[0], cells[-1]))
    return found


def test_the_check_can_fail() -> None:
    assert wrong("test_nothing.py") == "there is no test_nothing.py"
    assert (
        wrong("tests/docs/test_threat_model.py::test_nothing") == "tests/docs/test_threat_model.py has no test_nothing"
    )
    assert not wrong("tests/docs/test_threat_model.py::test_the_check_can_fail") and len(rows()) > 60


@pytest.mark.parametrize(("line", "tests"), rows(), ids=lambda cell: cell[:60])
def test_every_line_names_tests_that_exist(line: str, tests: str) -> None:
    names = TEST.findall(tests)
    assert ", ".join(f"`{name}`" for name in names) == tests, f"{line}: {tests}"
    assert [why for why in map(wrong, names) if why] == []


def test_every_test_in_a_sentence_exists() -> None:
    assert [why for why in map(wrong, TEST.findall(PAGE)) if why] == []


def test_the_versions_are_those_of_the_code() -> None:
    last = re.findall(r"^\| [\d.]+ \| (\d+) \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)[-1]
    assert tuple(map(int, last)) == (_core.HANDSHAKE_VERSION, _core.WIRE_VERSION, StoreRendezvous.VERSION)


def test_the_limits_are_those_of_the_code() -> None:
    config = DeviceConfig()
    assert f"after {UNPROVED_S:g} s ({OLDER_UNPROVED_S:g} s for a nonce" in PAGE
    assert f"a process holds {config.max_pending}, and the oldest" in PAGE
    assert f"({config.max_pending_per_address} from that client's address)" in PAGE
    assert f"hold {config.max_connections_per_address:,} (`max_connections_per_address`)" in PAGE
    assert f"all peers together {config.max_connections:,}" in PAGE
