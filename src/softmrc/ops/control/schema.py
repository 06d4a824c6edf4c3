"""The schema of a device's answers: readers need not check types.

An answer may have fields that are not named here. Those that are have the type that is said, everywhere in the answer;
a `?` at the end of a name says that the field may be missing, `??` that it may also be null.
"""

from __future__ import annotations

import json
import math
import reprlib
from typing import Any, Final, NoReturn

from softmrc._core import EvState

Spec = Any  # a type below, a set of words, a dictionary of fields, or a list with what each of its entries is
FLAG: Final = "true or false"
TEXT: Final = "text"
WHOLE: Final = "a whole number of at most 64 bits"
NUMBER: Final = "a number"
MOMENT: Final = "seconds since 1970"
VALUE: Final = "a whole number or text"
ALL: Final = "*"  # in the place of a name: whatever else is there
LATEST = 1 << 33  # seconds since 1970 that every clock can show

EV_STATES = frozenset(state.name.lower() for state in EvState)
CAPTURE = {"path": TEXT, "packets": WHOLE}
PLANES = [
    {
        "is_up": FLAG, "is_admin_up?": FLAG, "is_link_up?": FLAG, "packets_sent": WHOLE, "packets_received": WHOLE,
        "bytes_sent": WHOLE, "bytes_received": WHOLE, "bad_icrc?": WHOLE, "faulted?": {ALL: NUMBER},
        "source_ports?": [WHOLE], "link_mtu?": WHOLE, "path_mtu?": WHOLE, "interface?": TEXT,
    }
]  # fmt: skip
EVS = [{"ev": WHOLE, "value": VALUE, "plane": WHOLE, "state": EV_STATES, "drops?": WHOLE, "is_spare?": FLAG}]
PAIR = {
    "qpn": WHOLE, "state": TEXT, "lane?": WHOLE, "dest_qpn?": WHOLE, "peer??": {"number?": WHOLE, "planes?": [TEXT]},
    "bytes_in_flight?": NUMBER, "smoothed_rtt_us?": NUMBER, "window_bytes?": NUMBER, "port_window_bytes?": [NUMBER],
    "ev_profile?": WHOLE, "cc_profile?": WHOLE, "stats?": {ALL: NUMBER}, "evs?": EVS,
}  # fmt: skip
EVENT = {
    "at": MOMENT, "type": TEXT, "text?": TEXT, "qpn?": WHOLE, "plane?": WHOLE, "ev?": WHOLE, "psn?": WHOLE,
    "code?": WHOLE, "value?": WHOLE, "took?": WHOLE,
}  # fmt: skip
BURST = {
    "number": WHOLE, "peer": TEXT, "begun": MOMENT, "took_s": NUMBER, "bytes": WHOLE, "requests": WHOLE,
    "waited_s": NUMBER, "resent": WHOLE,
}  # fmt: skip
BATCH = {"done?": WHOLE, "failed??": [{"qpn?": WHOLE, "ev?": WHOLE, "profile?": WHOLE, "error?": TEXT}]}
SHAPES: dict[str, dict[str, Spec]] = {
    "info": {
        "program?": TEXT, "kind?": TEXT, "pid?": WHOLE, "number?": WHOLE,
        "planes?": [{"address?": TEXT, "interface?": TEXT, "link?": TEXT, "speed_bps?": NUMBER}],
    },
    "stats": {"planes": PLANES, "lanes?": [{ALL: NUMBER}], "capture??": CAPTURE, **dict.fromkeys(
        ("queue_pairs?", "peers?", "regions?"), WHOLE)},
    "qps": {"qps": [PAIR]},
    "events": {"events": [EVENT], "lost?": WHOLE},
    "bursts": {"bursts": [BURST]},
    "port": {"planes": PLANES},
    "faults": {"faults": [{ALL: NUMBER}]},
    "capture": {"capture?": CAPTURE},
    "probe": {"asked": WHOLE},
    "deny": BATCH,
    "allow": BATCH,
}  # fmt: skip


class SchemaError(ValueError):
    """A field of an answer is something else than agreed."""


def parse(data: bytes) -> Any:
    """JSON as it is defined: Python's own also takes NaN, and makes infinity of a number that is too large."""

    def refuse(text: str) -> NoReturn:
        raise ValueError(f"{text} is no number")

    def finite(text: str) -> float:
        value = float(text)
        return value if math.isfinite(value) else refuse(text)

    return json.loads(data, parse_constant=refuse, parse_float=finite)


def check(op: str, answer: dict[str, Any]) -> None:
    """Raise `SchemaError` with the first field that is not as agreed."""
    _check(answer, SHAPES.get(op, {}), "")


def _check(value: Any, spec: Spec, name: str) -> None:
    if isinstance(spec, dict):
        _check_object(value, spec, name)
    elif isinstance(spec, list):
        if not isinstance(value, list):
            raise SchemaError(f"{name} is {reprlib.repr(value)}, and no list")
        for number, one in enumerate(value):
            _check(one, spec[0], f"{name}[{number}]")
    elif not _is(value, spec):
        allowed = f"one of {', '.join(sorted(spec))}" if isinstance(spec, frozenset) else spec
        raise SchemaError(f"{name} is {reprlib.repr(value)}, and not {allowed}")


def _check_object(value: Any, spec: dict[str, Spec], name: str) -> None:
    if not isinstance(value, dict):
        raise SchemaError(f"{name} is {reprlib.repr(value)}, and no object")
    within = f"{name}." if name else ""
    for field, its in spec.items():
        key = field.rstrip("?")
        if field == ALL:
            for other, one in value.items():
                _check(one, its, within + reprlib.repr(other))
        elif key not in value:
            if not field.endswith("?"):
                raise SchemaError(f"{within}{key} is missing")
        elif value[key] is not None or not field.endswith("??"):
            _check(value[key], its, within + key)


def _is(value: Any, spec: Spec) -> bool:
    if isinstance(spec, frozenset):
        return isinstance(value, str) and value in spec
    if spec in (TEXT, FLAG):
        return isinstance(value, str if spec == TEXT else bool)
    is_whole = isinstance(value, int) and abs(value) < 1 << 64
    if spec in (WHOLE, VALUE):
        return (is_whole and not isinstance(value, bool)) or (spec == VALUE and isinstance(value, str))
    is_number = is_whole or isinstance(value, float)
    return is_number and (spec != MOMENT or 0 <= value <= LATEST)
