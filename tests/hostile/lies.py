"""What a connector that knows the secret may say of itself that is not so: every field of an offer, with every lie."""

from __future__ import annotations

from typing import Any

from liar import changed_plane, honest


class Missing:
    """Stands for a field that is not there."""

    def __repr__(self) -> str:
        return "missing"


MISSING = Missing()
NUMBERS = {
    "qpn": (3, 0xFFFFFF),
    "first_psn": (0, 0xFFFFFF),
    "mtu": (512, 16384),
    "max_wimm": (1, 16384),
    "mpr": (8, 255),
}


def lies_about_a_number(least: int, most: int) -> list[Any]:
    return [
        *(least - 1, most + 1, -1, -(1 << 63), 1 << 64, 10**4000),
        *(True, False, 1.0, float(least), 1e308, float("nan"), float("inf")),
        *(str(least), "", None, [], {}, [least], {"n": least}, MISSING),
    ]


LIES: dict[str, dict[str, Any]] = {
    f"{key} {number}": honest(**{key: lie})
    for key, (least, most) in NUMBERS.items()
    for number, lie in enumerate(lies_about_a_number(least, most))
}
LIES |= {
    f"port {number}": changed_plane(port=lie, source_ports=[lie])
    for number, lie in enumerate(lies_about_a_number(1, 0xFFFF)[:-1])
}
LIES |= {
    f"source port {n}": changed_plane(source_ports=[9, lie])
    for n, lie in enumerate(lies_about_a_number(1, 0xFFFF)[:-1])
}
LIES |= {
    f"address {lie!r}": changed_plane(address=lie)
    for lie in (
        *("0.0.0.0", "0.1.2.3", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),  # of no one host
        *("10.0.0.1", "8.8.8.8", "::1", "::ffff:127.0.0.1", "fe80::1%lo"),  # not where our plane is
        *("localhost", "127.1", "127.0.0.1/8", " 127.0.0.1", "0x7f.0.0.1", "127.0.0.01", "", "1" * 10_000),
        *(2130706433, None, True, [], {}, ["127.0.0.1"], float("nan"), MISSING),
    )
}
LIES |= {
    f"source ports {name}": changed_plane(source_ports=lie)
    for name, lie in {
        "none": [],
        "too many": list(range(1, 258)),
        "not the one that is sent to": [10],
        "twice": [9, 9],
        "text": "9",
        "nothing": None,
        "lists": [[9]],
        "missing": MISSING,
    }.items()
}
LIES |= {
    f"planes {name}": honest(planes=lie)
    for name, lie in {
        "none": [],
        "two": [honest()["planes"][0], honest()["planes"][0] | {"address": "127.0.0.2"}],
        "one twice": honest()["planes"] * 2,
        "seventeen": [honest()["planes"][0] | {"address": f"127.0.0.{n}"} for n in range(1, 18)],
        "an object": {"0": honest()["planes"][0]},
        "text": "127.0.0.1",
        "lists": [["127.0.0.1", 9, [9]]],
        "numbers": [9],
        "missing": MISSING,
    }.items()
}
LIES |= {
    f"regions {name}": honest(regions=lie)
    for name, lie in {
        "too many": [[0, 64, 1]] * 1025,
        "without length": [[0, 0, 1]],
        "too long": [[0, (1 << 63) + 1, 1]],
        "beyond the end": [[(1 << 64) - 1, 2, 1]],
        "before the beginning": [[-1, 64, 1]],
        "wide key": [[0, 64, 1 << 32]],
        "negative key": [[0, 64, -1]],
        "two numbers": [[0, 64]],
        "four numbers": [[0, 64, 1, 1]],
        "true": [[0, True, 1]],
        "not a number": [[0, float("nan"), 1]],
        "text": [["0", "64", "1"]],
        "an object": {"va": 0},
        "nothing": None,
        "missing": MISSING,
    }.items()
}
LIES["port missing"] = changed_plane(port=MISSING)
LIES |= {f"port key {n}": honest(port_key=lie) for n, lie in enumerate(lies_about_a_number(0, (1 << 64) - 1)[:-1])}
SHARE = {"cipher": "AES_256_GCM", "share": "09" + "00" * 31}
SEALS = {
    "text": "on",
    "a number": 1,
    "true": True,
    "a list": [SHARE],
    "nothing in it": {},
    "no share": {"cipher": "AES_256_GCM"},
    "no cipher": {"share": SHARE["share"]},
    "another cipher": SHARE | {"cipher": "NULL"},
    "a cipher's number": SHARE | {"cipher": 0},
    "a short share": SHARE | {"share": "09"},
    "a long share": SHARE | {"share": "09" * 33},
    "a share that is no number": SHARE | {"share": "zz" * 32},
    "a share in capitals": SHARE | {"share": "AB" * 32},
    "a share of bytes": SHARE | {"share": list(range(32))},
    "of small order": SHARE | {"share": "00" * 32},
    "of small order, too": SHARE | {"share": "01" + "00" * 31},
}
LIES |= {f"seal {name}": honest(seal=lie) for name, lie in SEALS.items()}
LIES |= {f"icrc {lie!r}": honest(icrc=lie) for lie in (0, 1, "true", None, [], False, MISSING)}


def without_missing(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_missing(one) for key, one in value.items() if one is not MISSING}
    return [without_missing(one) for one in value] if isinstance(value, list) else value
