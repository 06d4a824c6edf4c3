"""Chakra execution traces as bytes: the protobuf form (`.et`) and the JSON form, read into nodes, and written.

An `.et` file is a row of messages, each after its length as a varint: one GlobalMetadata, then Nodes. Only the fields
that a simulation needs are declared here; protobuf, of the extra `chakra`, skips the others. Whatever a file holds,
reading it takes memory in proportion to its size, and ends with nodes or a ConfigError that says where it went wrong.
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from softmrc._support.files import read_bytes
from softmrc.errors import MISSING, ConfigError, UsageError

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

# The fields that are read: name, number, type.
NODE_FIELDS = (
    ("id", 1, "uint64"), ("name", 2, "string"), ("type", 3, "NodeType"), ("ctrl_deps", 4, "uint64s"),
    ("data_deps", 5, "uint64s"), ("duration_micros", 7, "uint64"), ("attr", 10, "Attribute"),
)  # fmt: skip
# An attribute has one of these values, or a list, which nothing here needs.
VALUE_FIELDS = tuple(
    (f"{kind}_val", number, kind)
    for number, kind in (
        (3, "double"), (5, "float"), (7, "int32"), (9, "int64"), (11, "uint32"), (13, "uint64"), (15, "sint32"),
        (17, "sint64"), (19, "fixed32"), (21, "fixed64"), (23, "sfixed32"), (25, "sfixed64"), (27, "bool"),
        (29, "string"),
    )
)  # fmt: skip

WRITTEN_AS = {bool: "bool", int: "int64", float: "double", str: "string"}

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
            raise ConfigError(
                "id", node.id, "must be an id that no other node of the rank has", where=f"{path}: {node.where}"
            )
        if len(nodes) == MAX_NODES:
            raise ConfigError(
                "nodes", MISSING, f"must be at most {MAX_NODES:,}", "Trace a step or two, not a whole run.", str(path)
            )
        seen.add(node.id)
        nodes.append(node)
    if not nodes:
        raise ConfigError("nodes", MISSING, "must be at least one", where=str(path))
    return nodes


class Schema(NamedTuple):
    """Classes of protobuf's messages."""

    metadata: Any
    node: Any


@functools.cache
def schema() -> Schema:
    """Made of the fields above when the first trace is read or written."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        words = "execution traces are read with protobuf, which is not installed: pip install 'softmrc[chakra]'"
        raise UsageError(words) from None
    file = descriptor_pb2.FileDescriptorProto(name="softmrc/chakra.proto", package="softmrc.chakra", syntax="proto3")
    kinds = file.enum_type.add(name="NodeType")
    for number, name in enumerate(TYPES):
        kinds.value.add(name=name, number=number)

    def declare(name: str, fields: tuple[tuple[str, int, str], ...]) -> Any:
        message = file.message_type.add(name=name)
        for field_name, number, kind in fields:
            one = message.field.add(name=field_name, number=number, label=1)
            if kind[0].isupper():
                one.type_name = f".softmrc.chakra.{kind}"
                one.type = one.TYPE_ENUM if kind == "NodeType" else one.TYPE_MESSAGE
            else:
                one.type = getattr(one, f"TYPE_{kind.removesuffix('s').upper()}")
            if kind in ("uint64s", "Attribute"):
                one.label = one.LABEL_REPEATED
        return message

    declare("Metadata", (("version", 1, "string"),))
    attribute = declare("Attribute", (("name", 1, "string"), *VALUE_FIELDS))
    attribute.oneof_decl.add(name="value")
    for value in attribute.field[1:]:
        value.oneof_index = 0
    declare("Node", NODE_FIELDS)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    messages = (pool.FindMessageTypeByName(f"softmrc.chakra.{name}") for name in ("Metadata", "Node"))
    return Schema(*map(message_factory.GetMessageClass, messages))


def _node(message: Any, where: str) -> ChakraNode:
    kind = TYPES[message.type] if 0 <= message.type < len(TYPES) else f"type {message.type}"
    after = tuple(dict.fromkeys([*message.ctrl_deps, *message.data_deps]))
    attributes = {one.name: getattr(one, has) for one in message.attr if (has := one.WhichOneof("value")) is not None}
    return ChakraNode(message.id, kind, message.name, after, message.duration_micros, attributes, where)


def _binary_nodes(data: bytes, source: str) -> Iterator[ChakraNode]:
    kind, node_kind = schema()
    from google.protobuf import message, proto

    stream = io.BytesIO(data)
    while (at := stream.tell()) < len(data):
        try:
            found = proto.parse_length_prefixed(kind, stream)
        except (message.DecodeError, ArithmeticError, EOFError, ValueError):
            words = "must end inside the file"
            raise ConfigError("message", MISSING, words, where=f"{source}: byte {at}") from None
        if kind is node_kind:
            yield _node(found, f"byte {at}")
        kind = node_kind  # only the first message is metadata


def write_nodes(path: Path, nodes: list[ChakraNode]) -> None:
    """The protobuf form."""
    metadata_kind, node_kind = schema()
    from google.protobuf import proto

    stream = io.BytesIO()
    proto.serialize_length_prefixed(metadata_kind(version="0.0.4"), stream)
    for node in nodes:
        message = node_kind(id=node.id, name=node.name, type=TYPES.index(node.type), data_deps=node.after)
        message.duration_micros = node.duration_us
        for name, value in node.attributes.items():
            message.attr.add(name=name, **{f"{WRITTEN_AS[type(value)]}_val": value})
        proto.serialize_length_prefixed(message, stream)
    path.write_bytes(stream.getvalue())


# The JSON form: protobuf's own, metadata and nodes one after the other, or in a list.


def _json_nodes(data: bytes, source: str) -> Iterator[ChakraNode]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError("text", MISSING, "must be UTF-8", where=f"{source}: byte {error.start}") from None
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
            raise ConfigError(
                "text", MISSING, f"invalid JSON: {error.msg}", where=f"{source}:{error.lineno}:{error.colno}"
            ) from None
        except (RecursionError, ValueError):
            raise ConfigError(
                "text", MISSING, "must be JSON without deep nesting and without huge numbers", where=f"{source}:{line}"
            ) from None
        for one in found if isinstance(found, list) else [found]:
            if not isinstance(one, dict):
                raise ConfigError("node", one, "must be an object: metadata or a node", where=f"{source}:{line}")
            if "type" in one or "id" in one:
                yield _json_node(one, source, line)


def _json_node(table: dict[str, Any], source: str, line: int) -> ChakraNode:
    kind = schema().node
    from google.protobuf import json_format

    if "attrs" in table:  # as some writers call them
        table = {**table, "attr": table["attrs"]}
    try:
        message = json_format.ParseDict(table, kind(), ignore_unknown_fields=True)
    except (json_format.ParseError, ArithmeticError, AttributeError, RecursionError, TypeError, ValueError) as error:
        raise ConfigError(
            "node",
            MISSING,
            f"must be a node as protobuf writes it in JSON ({str(error)[:200]})",
            where=f"{source}:{line}",
        ) from None
    return _node(message, f"line {line}")
