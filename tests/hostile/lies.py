"""What a connector that knows the secret may say of itself that is not so: every field of an offer, with every lie."""

from __future__ import annotations

from typing import Any

from liar import changed_plane, encoded, honest, plane

# The least and the most that is allowed, and how many bits the field has.
NUMBERS = {
    "mtu": (512, 16384, 32),
    "icrc": (0, 1, 8),
    "encrypted": (0, 1, 8),
    "cipher": (0, 1, 8),
    "max_wimm": (1, 16384, 32),
    "mpr": (8, 255, 32),
    "qpn": (3, 0xFFFFFF, 32),
    "first_psn": (0, 0xFFFFFF, 32),
}


def lies_about_a_number(least: int, most: int, bits: int) -> list[int]:
    end = (1 << bits) - 1
    candidates = {0, least - 1, most + 1, end >> 1, (end >> 1) + 1, end - 1, end}
    return sorted(lie for lie in candidates if 0 <= lie <= end and not least <= lie <= most)


LIES: dict[str, dict[str, Any]] = {
    f"{key} {lie}": honest(**{key: lie}) for key, limits in NUMBERS.items() for lie in lies_about_a_number(*limits)
}
LIES |= {"icrc off": honest(icrc=0), "encrypted on": honest(encrypted=1)}  # which the listener is not
LIES |= {
    f"address {lie}": changed_plane(address=lie)
    for lie in (
        *("0.0.0.0", "0.1.2.3", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),  # of no one host
        *("10.0.0.1", "8.8.8.8", "::1", "::ffff:127.0.0.1", "fe80::1"),  # not where our plane is
    )
}
LIES |= {f"family {lie}": changed_plane(family=lie) for lie in (0, 2, 4, 6, 255)}
LIES |= {
    f"source ports {name}": changed_plane(**lie)
    for name, lie in {
        "none": {"source_ports": []},
        "too many": {"source_ports": list(range(1, 258))},
        "not the one that is sent to": {"source_ports": [10]},
        "twice": {"source_ports": [9, 9]},
        "zero": {"source_ports": [9, 0]},
        "and port zero": {"port": 0, "source_ports": [0]},
        "more than it says": {"source_ports": [9, 10], "port_count": 1},
        "none of what it says": {"port_count": 0xFFFF},
    }.items()
}
LIES |= {
    f"planes {name}": honest(**lie)
    for name, lie in {
        "none": {"planes": []},
        "two": {"planes": [plane(), plane(address="127.0.0.2")]},
        "one twice": {"planes": [plane()] * 2},
        "seventeen": {"planes": [plane(address=f"127.0.0.{n}") for n in range(1, 18)]},
        "fewer than it says": {"plane_count": 2},
        "more than it says": {"planes": [plane(), plane(address="127.0.0.2")], "plane_count": 1},
    }.items()
}
LIES |= {
    f"queue pairs {name}": honest(**lie)
    for name, lie in {
        "none": {"copies": 0},
        "too many": {"copies": 65},
        "fewer than it says": {"qp_count": 2},
        "none of what it says": {"copies": 0, "qp_count": 1},
    }.items()
}
LIES |= {
    f"regions {name}": honest(**lie)
    for name, lie in {
        "too many": {"regions": [(0, 64, 1)] * 1025},
        "without length": {"regions": [(0, 0, 1)]},
        "too long": {"regions": [(0, (1 << 63) + 1, 1)]},
        "as long as can be": {"regions": [(0, (1 << 64) - 1, 1)]},
        "beyond the end": {"regions": [((1 << 64) - 1, 2, 1)]},
        "beyond the end, and long": {"regions": [((1 << 63) + 1, 1 << 63, 1)]},
        "fewer than it says": {"region_count": 2},
        "none of what it says": {"regions": [], "region_count": 0xFFFF},
    }.items()
}

TRUE = encoded(honest())
# Offers that end too soon. What comes after an offer is the application's own.
CUT = [TRUE[:size] for size in range(len(TRUE))]
