"""Flows from files: CSV, TOML, and the connection matrices (.cm) of htsim.

    CSV    source,destination,bytes,start_us,id,after     a header line names the columns; the last three may be missing
    TOML   [[flow]] with the same keys
    .cm    Nodes, Connections, `0->5 id 1 start 0 size 2000000`, triggers

`after` names the flows that must be delivered first, by id, several separated by spaces. A flow's id is its number from
1 where none is given.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softmrc._support.files import parse_toml, read_text
from softmrc._support.tables import known_keys, refuse
from softmrc.errors import MISSING, ConfigError

PS_PER_US = 1_000_000
_COLUMNS = ("source", "destination", "bytes", "start_us", "id", "after")


@dataclass(frozen=True)
class FlowLine:
    source: int
    destination: int
    bytes: int
    start_ps: int
    after: tuple[int, ...] = ()  # positions of earlier flows


def read_flow_file(path: Path, hosts: int) -> list[FlowLine]:
    readers = {".csv": _read_csv, ".toml": _read_toml, ".cm": _read_matrix}
    if path.suffix not in readers:
        raise ConfigError("workload.path", str(path), "must be a file that ends in " + ", ".join(readers))
    flows = readers[path.suffix](read_text(path, "workload.path"), str(path), hosts)
    if not flows:
        raise ConfigError("workload.path", str(path), "must be a file with at least one flow")
    return flows


def _number(text: Any, source: str, key: str, low: float, high: float, whole: bool = True) -> Any:
    try:
        value = int(text) if whole else float(text)
    except (TypeError, ValueError):
        raise refuse(source, key, text, "must be a whole number" if whole else "must be a number") from None
    if not low <= value <= high:
        raise refuse(source, key, text, f"must be {low} to {high}")
    return value


def _read_csv(text: str, source: str, hosts: int) -> list[FlowLine]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    try:
        rows = list(csv.DictReader(lines, skipinitialspace=True))
    except csv.Error as error:
        raise ConfigError("workload.path", source, f"invalid CSV: {error}") from None
    return _from_rows(rows, source, hosts)


def _read_toml(text: str, source: str, hosts: int) -> list[FlowLine]:
    rows = parse_toml(text, source).get("flow", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise refuse(source, "flow", rows, "must be [[flow]] tables")
    return _from_rows(rows, source, hosts)


def _from_rows(rows: list[dict[str, Any]], source: str, hosts: int) -> list[FlowLine]:
    ids: dict[str, int] = {}
    flows = []
    for i, row in enumerate(rows):
        where = f"flow {i + 1}"
        for name in row:
            if name not in _COLUMNS:
                raise refuse(
                    source, f"{where}.{name}", row[name], "unknown key", known_keys(str(name), list(_COLUMNS), where)
                )
        ends = [_number(row.get(end), source, f"{where}.{end}", 0, hosts - 1) for end in ("source", "destination")]
        if ends[0] == ends[1]:
            raise refuse(source, f"{where}.destination", ends[1], "must be another host than the source")
        size = _number(row.get("bytes"), source, f"{where}.bytes", 1, 2**32 - 1)
        start = _number(row.get("start_us") or 0, source, f"{where}.start_us", 0, 1e12, whole=False)
        given = row.get("after") or ""
        names = given if isinstance(given, list) else str(given).split()
        missing = [str(one) for one in names if str(one) not in ids]
        if missing:
            raise refuse(source, f"{where}.after", missing[0], "must be the id of an earlier flow")
        ids[str(row.get("id") or i + 1)] = i
        after = tuple(ids[str(one)] for one in names)
        flows.append(FlowLine(ends[0], ends[1], size, round(start * PS_PER_US), after))
    return flows


@dataclass
class _Connection:
    """A line of a connection matrix."""

    where: str
    source: int
    destination: int
    words: dict[str, int]


def _read_matrix(text: str, source: str, hosts: int) -> list[FlowLine]:
    """htsim's format: start is in picoseconds, size in bytes. A trigger fires when its flows are done: one of them, or
    for a barrier all. The sender's and the receiver's end of a flow are one moment here, the delivery."""
    connections = []
    announced = {"Nodes": 0, "Connections": 0}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        where = f"line {number}"
        if not words or words[0].startswith("#") or words[0] == "Triggers" or words[0] == "trigger":
            continue
        if words[0] in announced:
            announced[words[0]] = _number(words[1] if len(words) > 1 else None, source, where, 1, 2**31)
        elif "->" in words[0]:
            connections.append(_connection(words, source, where, hosts))
        else:
            raise refuse(source, where, line.strip(), "must be Nodes, Connections, Triggers, a connection or a trigger")
    if announced["Nodes"] > hosts:
        raise refuse(source, "Nodes", announced["Nodes"], f"must be at most the fabric's {hosts} hosts")
    if announced["Connections"] != len(connections):
        raise refuse(source, "Connections", announced["Connections"], f"must be {len(connections)}, as many as follow")
    return _ordered(connections, source)


def _connection(words: list[str], source: str, where: str, hosts: int) -> _Connection:
    known = ("id", "start", "size", "trigger", "send_done_trigger", "recv_done_trigger", "prio")
    ends = [_number(end, source, where, 0, hosts - 1) for end in words[0].split("->", 1)]
    if ends[0] == ends[1]:
        raise refuse(source, where, words[0], "must be two different hosts")
    if len(words) % 2 == 0:
        raise refuse(source, where, " ".join(words), "must have pairs of a word and a number after the hosts")
    values = {}
    for word, value in zip(words[1::2], words[2::2], strict=True):
        if word not in known:
            raise refuse(source, where, word, "unknown word", known_keys(word, list(known), ""))
        values[word] = _number(value, source, f"{where}: {word}", 0, 2**63)
    if not 1 <= values.get("size", 0) < 2**32:
        raise refuse(
            source,
            f"{where}: size",
            values.get("size", 0),
            f"must be 1 to {2**32 - 1}",
            "Endless flows cannot be simulated.",
        )
    if ("start" in values) == ("trigger" in values):
        raise refuse(source, where, " ".join(words), "must have either start or trigger")
    return _Connection(where, ends[0], ends[1], values)


def _ordered(connections: list[_Connection], source: str) -> list[FlowLine]:
    """A flow comes after all flows that fire its trigger, wherever the file has them."""
    firing: dict[int, list[int]] = {}
    for i, one in enumerate(connections):
        for word in ("send_done_trigger", "recv_done_trigger"):
            if word in one.words:
                firing.setdefault(one.words[word], []).append(i)
    place: dict[int, int] = {}
    flows: list[FlowLine] = []
    waiting = list(range(len(connections)))
    while waiting:
        still = []
        for i in waiting:
            one = connections[i]
            trigger = one.words.get("trigger")
            before = firing.get(trigger, []) if trigger is not None else []
            if trigger is not None and not before:
                raise refuse(source, f"{one.where}: trigger", trigger, "must be a trigger that some connection fires")
            if any(j not in place for j in before):
                still.append(i)
                continue
            place[i] = len(flows)
            after = tuple(place[j] for j in before)
            flows.append(FlowLine(one.source, one.destination, one.words["size"], one.words.get("start", 0), after))
        if len(still) == len(waiting):
            raise refuse(
                source, connections[still[0]].where, MISSING, "triggers must not wait for each other in a circle"
            )
        waiting = still
    return flows
