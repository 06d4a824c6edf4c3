"""Control servers whose answers have wrong types in them, or words that would move a cursor: one sentence, no
traceback, and nothing but text on the terminal."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.control.pretended import Pretended, a_device, home  # noqa: F401
from typer.testing import CliRunner

from softmrc.cli import app
from softmrc.errors import MrcError, RemoteError, on_terminal, words_of
from softmrc.ops import control
from softmrc.ops.agent.collect import Collector
from softmrc.ops.agent.state import state_of
from softmrc.ops.control import schema

WRONG: list[Any] = [None, "x", 7, -1.5, True, [], {}, [7], {"a": 7}, 10**30, "\x1b[2J"]
COMMANDS = [
    ["ctl", "devices"], ["ctl", "planes"], ["ctl", "qps"], ["ctl", "evs", "0x22"], ["ctl", "events"], ["ctl", "faults"],
    ["ctl", "capture", "--stop", "--all"], ["ctl", "deny", "--ev", "1", "--all"], ["ctl", "port", "0", "up", "--all"],
    ["explain", "-d", "4711-0"],
    ["top", "--duration", "0.01", "--interval", "0.05"],
]  # fmt: skip


class Answering(Pretended):
    """All that commands ask."""

    def on_faults(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"faults": [{"drop": 0.5, "black_hole": True}, {}]}

    def on_capture(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"capture": {"path": "/tmp/x", "packets": 7}}

    def on_bursts(self, _: dict[str, Any]) -> dict[str, Any]:
        burst = {"peer": "10.0.0.2", "begun": 1.7e9, "bytes": 8, "requests": 1, "waited_s": 0, "resent": 0}
        return {"bursts": [burst | {"number": number, "took_s": 0.1 * number} for number in (1, 1, 2, 3)]}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of everything that is in it."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*path, key)
        yield from places(one, (*path, key))


def changed(answer: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    answer = inner = copy.deepcopy(answer)
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return answer


def check_all(home: Path, op: str) -> None:  # noqa: F811
    device = Answering()
    device.tell("ev_state")
    right = {"ok": True} | getattr(device, f"on_{op}")({"plane": 0, "up": True, "evs": [1]})
    now: list[dict[str, Any]] = [right]

    def answer(request: dict[str, Any]) -> Any:
        return now[0] if request["op"] == op else device(request)

    asked = [command for command in COMMANDS if op in used_by(command)]
    with a_device(home, answer, "4711-0"):
        for command in asked:
            result = CliRunner().invoke(app, command)
            assert result.exception is None or isinstance(result.exception, SystemExit), (command, result.exception)
        for number, path in enumerate(path for path in places(right) if not set(path) & {1, 2, 3}):  # the first of each
            for value in [WRONG[(number + step) % len(WRONG)] for step in (0, 3, 6)]:
                now[0] = changed(right, path, value)
                for command in asked:
                    if command[0] != "top" or value in (None, "x", []):  # which takes a moment each time
                        check(command, (path, value))
            if number % 4 == 0:
                look()


def used_by(command: list[str]) -> set[str]:
    words = {"devices": "info", "planes": "stats", "qps": "qps", "evs": "qps", "events": "events", "faults": "faults"}
    words |= {"capture": "capture", "deny": "deny qps", "port": "port", "-d": "bursts events qps"}
    words |= {"--duration": "info stats qps"}
    return {op for word in command[1:2] for op in words[word].split()}


def check(command: list[str], what: Any) -> None:
    result = CliRunner().invoke(app, command)
    fine = result.exception is None or isinstance(result.exception, SystemExit | MrcError)
    assert fine, (command, what, repr(result.exception))
    shown = result.output + on_terminal(words_of(result.exception) if result.exception else "")
    assert all(c.isprintable() or c == "\n" for c in shown), (command, what, shown)


def look() -> None:
    """As the agent does, which says what it saw as JSON."""
    collector = Collector()
    try:
        json.dumps(state_of(collector, None), allow_nan=False).encode()
    finally:
        collector.close()


@pytest.mark.parametrize("op", ["info", "stats", "qps", "events", "faults", "capture", "deny", "bursts"])
def test_no_wrong_type_is_a_traceback(home: Path, op: str) -> None:  # noqa: F811
    check_all(home, op)


@pytest.mark.parametrize("text", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_what_is_no_number_to_json_is_none(home: Path, text: bytes) -> None:  # noqa: F811
    with (
        a_device(home, lambda _: b'{"ok": true, "took": ' + text + b"}\n"),
        control.find_device() as node,
        pytest.raises(RemoteError, match="invalid JSON"),
    ):
        node.ask("anything")


def test_the_right_answers_have_the_right_shape() -> None:
    device = Answering()
    device.tell("ev_state")
    for op in ("info", "stats", "qps", "events", "faults", "capture", "bursts"):
        schema.check(op, getattr(device, f"on_{op}")({}))
