"""Chakra execution traces as bytes: the protobuf form (`.et`) and the JSON form, read into nodes, and written.

An `.et` file is a row of messages, each after its length as a varint: one GlobalMetadata, then Nodes. Only the fields
that a simulation needs are read; the others are skipped by their wire type. Whatever a file holds, reading it takes
memory in proportion to its size, and ends with nodes or with a ConfigError that says where it went wrong.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from softmrc._support.files import read_bytes
from softmrc.errors import ConfigError

MAX_BYTES = 256 << 20  # of a file
MAX_NODES = 1_000_000  # of a rank
TYPES = (
    "INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE", "COMM_SEND_NODE", "COMM_RECV_NODE",
    "COMM_COLL_NODE",
)  # fmt: skip
COMPUTE, SEND, RECEIVE, COLLECTIVE = TYPES[4:8]
COLLECTIVES = (
    "ALL_REDUCE", "REDUCE", "ALL_GATHER", "GATHER", "SCATTER", "BROADCAST", "ALL_TO_ALL", "REDUCE_SCATTER",
    "REDUCE_SCATTER_BLOCK", "BARRIER",
)  # fmt: skip

# Attributes: number of the field, its name in JSON, and how its value is written.
_VALUES = {
    3: ("doubleVal", "double"), 5: ("floatVal", "float"), 7: ("int32Val", "int"), 9: ("int64Val", "int"),
    11: ("uint32Val", "uint"), 13: ("uint64Val", "uint"), 15: ("sint32Val", "zigzag"), 17: ("sint64Val", "zigzag"),
    19: ("fixed32Val", "<I"), 21: ("fixed64Val", "<Q"), 23: ("sfixed32Val", "<i"), 25: ("sfixed64Val", "<q"),
    27: ("boolVal", "bool"), 29: ("stringVal", "string"),
}  # fmt: skip
_FIXED = {"double": "<d", "float": "<f"}

Value = int | float | bool | str


@dataclass(frozen=True)
class ChakraNode:
    """What one rank does at one point of its trace."""

    id: int
    type: str = "INVALID_NODE"
    name: str = ""
    after: tuple[int, ...] = ()  # control and data dependencies
    duration_us: int = 0
    attributes: dict[str, Value] = field(default_factory=dict)
    where: str = ""  # in its file


def read_nodes(path: Path) -> list[ChakraNode]:
    """All nodes of one rank."""
    data = read_bytes(path, "execution trace", MAX_BYTES)
    form = _json_nodes if path.suffix == ".json" else _binary_nodes
    nodes: list[ChakraNode] = []
    seen: set[int] = set()
    for node in form(data, str(path)):
        if node.id in seen:
            raise ConfigError(f"{path}: {node.where}: id", node.id, "an id that no other node of the rank has")
        if len(nodes) == MAX_NODES:
            raise ConfigError(str(path), f"more than {MAX_NODES:,} nodes", "fewer: a step or two, not a whole run")
        seen.add(node.id)
        nodes.append(node)
    if not nodes:
        raise ConfigError(str(path), "no nodes", "an execution trace with at least one")
    return nodes


# The protobuf form.


class _Broken(Exception):
    """The bytes are not what they should be; with the offset."""


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            raise _Broken(at, "a number that ends")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
    raise _Broken(at, "a number of at most ten bytes")


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, Any, int]]:
    """Number, wire type, value (of wire type 2: where it begins and ends) and offset of each field."""
    while at < end:
        begin = at
        tag, at = _varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        value: Any
        if wire == 0:
            value, at = _varint(data, at, end)
        elif wire == 2:
            size, at = _varint(data, at, end)
            value = (at, at + size)
            at += size
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value = data[at : at + size]
            at += size
        else:
            raise _Broken(begin, "a field of wire type 0, 1, 2 or 5")
        if at > end or not number:
            raise _Broken(begin, "a field that lies inside its message")
        yield number, wire, value, begin


def _text(data: bytes, span: tuple[int, int]) -> str:
    return data[span[0] : span[1]].decode(errors="backslashreplace")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _attribute(data: bytes, span: tuple[int, int]) -> tuple[str, Value | None]:
    name = ""
    found: Value | None = None
    for number, wire, value, at in _fields(data, *span):
        if number == 1 and wire == 2:
            name = _text(data, value)
        if number not in _VALUES:
            continue
        how = _VALUES[number][1]
        expected = 2 if how == "string" else 0 if how in ("int", "uint", "zigzag", "bool") else None
        if expected is not None and wire != expected:
            raise _Broken(at, f"field {number} with wire type {expected}")
        if how == "string":
            found = _text(data, value)
        elif how == "bool":
            found = bool(value)
        elif how == "zigzag":
            found = (value >> 1) ^ -(value & 1)
        elif wire == 0:
            found = _signed(value) if how == "int" else value
        else:
            form = _FIXED.get(how, how)
            if not isinstance(value, bytes) or len(value) != struct.calcsize(form):
                raise _Broken(at, f"field {number} with {struct.calcsize(form)} bytes")
            found = struct.unpack(form, value)[0]
    return name, found


def _ids(data: bytes, wire: int, value: Any) -> list[int]:
    """Numbers of nodes, one to a field or packed into one."""
    if wire == 0:
        return [value]
    if wire != 2:
        raise _Broken(0, "dependencies as varints")
    found = []
    at, end = value
    while at < end:
        one, at = _varint(data, at, end)
        found.append(one)
    return found


def _node(data: bytes, at: int, end: int) -> ChakraNode:
    numbers = {"id": 0, "type": 0, "duration": 0}
    name, after, attributes = "", [], {}
    for number, wire, value, _ in _fields(data, at, end):
        if wire == 0 and number in (1, 3, 7):
            numbers[{1: "id", 3: "type", 7: "duration"}[number]] = value
        elif number == 2 and wire == 2:
            name = _text(data, value)
        elif number in (4, 5):
            after += _ids(data, wire, value)
        elif number == 10 and wire == 2:
            key, found = _attribute(data, value)
            if found is not None:
                attributes[key] = found
    kind = TYPES[numbers["type"]] if numbers["type"] < len(TYPES) else f"type {numbers['type']}"
    where = f"byte {at}"
    return ChakraNode(numbers["id"], kind, name, tuple(dict.fromkeys(after)), numbers["duration"], attributes, where)


def _binary_nodes(data: bytes, source: str) -> Iterator[ChakraNode]:
    at, is_first = 0, True
    try:
        while at < len(data):
            begin = at
            size, at = _varint(data, at, len(data))
            if size > len(data) - at:
                raise _Broken(begin, f"a message that ends inside the file; this one says {size:,} bytes")
            if is_first:
                for _ in _fields(data, at, at + size):  # of the metadata nothing is needed
                    pass
            else:
                yield _node(data, at, at + size)
            at, is_first = at + size, False
    except _Broken as broken:
        offset, words = broken.args
        raise ConfigError(f"{source}: byte {offset}", "what is there", words) from None


def write_nodes(path: Path, nodes: list[ChakraNode]) -> None:
    """The protobuf form."""
    parts = [_delimited(_bytes_field(1, b"0.0.4"))]
    parts += [_delimited(_node_bytes(node)) for node in nodes]
    path.write_bytes(b"".join(parts))


def _number(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _delimited(message: bytes) -> bytes:
    return _number(len(message)) + message


def _bytes_field(number: int, value: bytes) -> bytes:
    return _number(number << 3 | 2) + _delimited(value)


def _node_bytes(node: ChakraNode) -> bytes:
    def plain(number: int, value: int) -> bytes:
        return _number(number << 3) + _number(value)

    parts = [plain(1, node.id), _bytes_field(2, node.name.encode()), plain(3, TYPES.index(node.type))]
    if node.after:
        parts.append(_bytes_field(5, b"".join(_number(one) for one in node.after)))
    if node.duration_us:
        parts.append(plain(7, node.duration_us))
    for name, value in node.attributes.items():
        written = _bytes_field(1, name.encode())
        if isinstance(value, bool):
            written += plain(27, value)
        elif isinstance(value, int):
            written += plain(9, value)
        elif isinstance(value, float):
            written += _number(3 << 3 | 1) + struct.pack("<d", value)
        else:
            written += _bytes_field(29, value.encode())
        parts.append(_bytes_field(10, written))
    return b"".join(parts)


# The JSON form: protobuf's own, metadata and nodes one after the other, or in a list. 64-bit numbers may be texts.


def _json_nodes(data: bytes, source: str) -> Iterator[ChakraNode]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: byte {error.start}", "what is there", "UTF-8") from None
    decoder, at, counted, line = json.JSONDecoder(), 0, 0, 1
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at == len(text):
            return
        line += text.count("\n", counted, at)
        counted = at
        try:
            found, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{source}: line {error.lineno}", error.msg, "JSON") from None
        except (RecursionError, ValueError):
            raise ConfigError(
                f"{source}: line {line}", "what is there", "JSON, not nested deeply and without huge numbers"
            ) from None
        for one in found if isinstance(found, list) else [found]:
            if not isinstance(one, dict):
                raise ConfigError(f"{source}: line {line}", one, "an object: metadata or a node")
            if "type" in one or "id" in one:
                yield _json_node(one, source, line)


def _json_node(table: dict[str, Any], source: str, line: int) -> ChakraNode:
    def wrong(key: str, value: object, allowed: str) -> ConfigError:
        return ConfigError(f"{source}: line {line}: {key}", value, allowed)

    def whole(key: str, value: object) -> int:
        try:
            if isinstance(value, bool | float):
                raise ValueError
            number = int(str(value)[:40])
        except ValueError:
            raise wrong(key, value, "a whole number") from None
        if not 0 <= number < 1 << 64:
            raise wrong(key, value, "a whole number of 64 bits")
        return number

    def several(key: str, other: str) -> list[Any]:
        value = table.get(key, table.get(other, []))
        if not isinstance(value, list):
            raise wrong(key, value, "a list")
        return value

    kind = table.get("type", "INVALID_NODE")
    if isinstance(kind, int) and not isinstance(kind, bool) and 0 <= kind < len(TYPES):
        kind = TYPES[kind]
    if not isinstance(kind, str):
        raise wrong("type", kind, "one of " + ", ".join(TYPES))
    attributes: dict[str, Value] = {}
    for one in several("attr", "attrs"):
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            raise wrong("attr", one, "an object with a name")
        value = _json_value(one, wrong)
        if value is not None:
            attributes[one["name"]] = value
    after = [whole("dependencies", one) for one in several("ctrlDeps", "ctrl_deps") + several("dataDeps", "data_deps")]
    duration = whole("durationMicros", table.get("durationMicros", table.get("duration_micros", 0)))
    name = str(table.get("name", ""))
    ends = tuple(dict.fromkeys(after))
    return ChakraNode(whole("id", table.get("id", 0)), kind, name, ends, duration, attributes, f"line {line}")


def _json_value(attribute: dict[str, Any], wrong: Any) -> Value | None:
    for key, how in _VALUES.values():
        snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)
        value = attribute.get(key, attribute.get(snake))
        if value is None:
            continue
        if how == "string":
            return str(value)
        if how == "bool":
            return bool(value)
        try:
            return float(value) if how in _FIXED else int(str(value)[:40])
        except (TypeError, ValueError, OverflowError):
            raise wrong(f"attr {attribute['name']}", value, "a number") from None
    return None
