"""When a queue marks, trims and drops: worked out from the rate and the round trip where a file does not say."""

from __future__ import annotations

from softmrc.fabric.config.ports import Port, Thresholds
from softmrc.fabric.description import Description

# A lab's round trip is a few packets of a slow link, not microseconds of glass.
LAB_RATE_BPS = 1_000_000_000
LAB_RTT_US, FABRIC_RTT_US = 4000.0, 8.0
LEAST_PACKETS = 8


def base_rtt_us(description: Description, port: Port) -> float:
    """The round trip of an empty network, as given, or by the speed of the port."""
    slow = LAB_RTT_US if port.rate_bps <= LAB_RATE_BPS else FABRIC_RTT_US
    return description.switch.base_rtt_us or slow


def thresholds(description: Description, port: Port) -> Thresholds:
    """The bytes at which this port acts. One unit is a bandwidth-delay product, and never less than a few packets."""
    s = description.switch
    unit = max(int(port.rate_bps * base_rtt_us(description, port) / 8e6), LEAST_PACKETS * description.lab.mtu)
    given = s.trim_last_hop_bytes if port.is_last_hop else s.trim_bytes
    return Thresholds(
        ecn_min=s.ecn_min_bytes or unit // 5,
        ecn_max=s.ecn_max_bytes or unit * 4 // 5,
        trim=given or (unit * 3 // 2 if port.is_last_hop else unit),
        limit=s.queue_bytes or 4 * unit,
    )
