"""One MRC packet: everything between the UDP header and the ICRC."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from softmrc._core import wire as _native
from softmrc.errors import ConfigError, RemoteError, UsageError
from softmrc.wire.fields import as_named
from softmrc.wire.headers import (
    Body,
    Bth,
    EndpointRequest,
    EndpointResponse,
    Nack,
    Sack,
    Write,
    body_type,
)
from softmrc.wire.names import Opcode

ENDPOINT_QPN = 2
_BTH_FIELDS = frozenset(f.name for f in fields(Bth)) - {"opcode", "pad", "timestamped"}


class Refused(RemoteError):
    """Bytes that are no MRC packet; `reason` says what is wrong with them."""

    def __init__(self, what: str, reason: str, size: int) -> None:
        super().__init__(f"{size} bytes are no MRC {what}: {reason}")
        self.reason = reason


class Packet:
    """An MRC packet, built from its fields by name, compared by value, never changed.

    The fields of BTH and of the body that the opcode calls for are given side by side, and read the same way:

    >>> p = Packet(Opcode.WRITE_ONLY, dqp=0x11, psn=5, va=0x1000, rkey=7, payload=b"hello")
    >>> p
    <Packet WRITE_ONLY qp 000011 psn 5 msn 0 va 1000 rkey 7 len 5/5>
    >>> p.psn, p.body.payload, len(bytes(p))
    (5, b'hello', 40)
    >>> Packet.parse(bytes(p)) == p
    True
    """

    __slots__ = ("body", "bth")
    bth: Bth
    body: Body

    def __init__(self, opcode: Opcode | int | str, *, body: Body | None = None, **given: Any) -> None:
        op = as_named("opcode", opcode, Opcode)
        assert isinstance(op, Opcode)
        in_bth = {name: given.pop(name) for name in list(given) if name in _BTH_FIELDS}
        if body is None:
            body = _build_body(op, given)
        elif given:
            raise ConfigError("body", body, f"cannot be combined with its fields {', '.join(given)}")
        if not isinstance(body, body_type(op)):
            raise ConfigError("body", body, f"must be a {body_type(op).__name__}, which is what {op.name} carries")
        bth = Bth(op, **(_defaults(body) | in_bth))
        if isinstance(body, Write):
            _check_imm(op, body)
            bth = replace(bth, pad=-body.payload_size % 4, timestamped=body.timestamp is not None)
        object.__setattr__(self, "bth", bth)
        object.__setattr__(self, "body", body)

    @classmethod
    def parse(cls, data: bytes, *, icrc: bool = False, trimmed: bool = False, elided_payload: int = 0) -> Packet:
        """Read a packet; bytes that are none raise `Refused`.

        `icrc` says that the last four bytes are the ICRC (which `softmrc.wire.verify` checks, not this), `trimmed`
        that a switch has cut the packet after RETH, `elided_payload` that so many payload bytes were sent but are
        not here.
        """
        native: Any = _native.parse(bytes(data), icrc, trimmed, elided_payload)
        if isinstance(native, str):
            raise Refused("packet", native, len(data))
        return native

    @staticmethod
    def _of(bth: Bth, body: Body) -> Packet:
        packet = Packet.__new__(Packet)
        object.__setattr__(packet, "bth", bth)
        object.__setattr__(packet, "body", body)
        return packet

    @property
    def opcode(self) -> Opcode:
        return self.bth.opcode

    @property
    def trimmed(self) -> bool:
        """Whether a switch cut the payload off."""
        return isinstance(self.body, Write) and self.body.trimmed

    def replace(self, **changes: Any) -> Packet:
        """The same packet with other values for some fields."""
        body_names = {f.name for f in fields(self.body)}
        unknown = set(changes) - body_names - _BTH_FIELDS
        if unknown:
            raise ConfigError("replace", ", ".join(sorted(unknown)), "no such field", _known_fields(type(self.body)))
        in_body = {name: value for name, value in changes.items() if name in body_names}
        if "payload" in in_body:
            in_body.setdefault("payload_size", 0)
        bth = {name: getattr(self.bth, name) for name in _BTH_FIELDS}
        bth |= {name: value for name, value in changes.items() if name in _BTH_FIELDS}
        return Packet(self.opcode, body=replace(self.body, **in_body), **bth)

    def describe(self) -> str:
        """One line in words, its columns aligned with those of other packets."""
        line: str = _native.describe(self)
        return line

    def __getattr__(self, name: str) -> Any:
        # Reached only for what is neither a slot nor a method. Body before BTH, as the body is the more specific.
        if not name.startswith("_"):
            for part in (self.body, self.bth):
                if hasattr(part, name):
                    return getattr(part, name)
        raise AttributeError(f"a {self.bth.opcode.name} packet has no field {name!r}")

    def __setattr__(self, name: str, value: object) -> None:
        raise UsageError(f"packets do not change; packet.replace({name}={value!r}) makes a new one")

    def __bytes__(self) -> bytes:
        data: bytes = _native.emit(self)
        return data

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Packet):
            return NotImplemented
        return self.bth == other.bth and self.body == other.body

    def __hash__(self) -> int:
        return hash((self.bth, self.body))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Packet._of, (self.bth, self.body))

    def __repr__(self) -> str:
        return f"<Packet {' '.join(self.describe().split())}>"

    def __str__(self) -> str:
        return self.describe()


def _known_fields(kind: type[Body]) -> str:
    return f"Its fields: {', '.join(sorted({f.name for f in fields(kind)} | _BTH_FIELDS))}."


def _build_body(opcode: Opcode, given: dict[str, Any]) -> Body:
    kind = body_type(opcode)
    unknown = set(given) - {f.name for f in fields(kind)}
    if unknown:
        name = sorted(unknown)[0]
        raise ConfigError(name, given[name], f"no such field of {opcode.name}", _known_fields(kind))
    return kind(**given)


def _defaults(body: Body) -> dict[str, int]:
    """What BTH says when the caller does not: the PSN that the body repeats, or the node's own queue pair."""
    if isinstance(body, Sack):
        return {"psn": body.cack_psn}
    if isinstance(body, Nack):
        return {"psn": body.nack_psn}
    if isinstance(body, EndpointRequest | EndpointResponse):
        return {"dqp": ENDPOINT_QPN}
    return {}


def _check_imm(opcode: Opcode, body: Write) -> None:
    if body.trimmed:
        return
    if opcode.has_imm and body.imm is None:
        raise ConfigError("Write.imm", None, f"must be 0 to 4294967295: {opcode.name} carries an immediate")
    if not opcode.has_imm and body.imm is not None:
        raise ConfigError("Write.imm", body.imm, f"must be None: {opcode.name} carries no immediate")
