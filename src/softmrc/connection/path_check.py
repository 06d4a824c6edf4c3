"""Whether a peer answers, plane by plane, and what to say of the planes where it does not.

Data goes only where a peer has answered a question (`DeviceConfig.prove_addresses`), so a queue pair knows of every
plane whether it ever worked. Right after two sides have met that tells a cable in the wrong switch, a firewall or
planes in another order from a peer that is lost later.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence

from softmrc.config.interfaces import network_of
from softmrc.device import Device, Peer, QueuePair
from softmrc.device.peer import PeerPlane

log = logging.getLogger(__name__)

SILENT_S = 3.0  # a peer that has answered nowhere by then does not
GRACE_S = 0.2  # for the other planes once one has answered, and three times as long as that one took
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.0005, 0.02
MAX_NAMED = 2  # planes in one sentence; the rest is a number


def reached(qp: QueuePair) -> set[int]:
    """The planes that data may take now: up at both ends, and answered on."""
    mask: int = qp.query()["data_ports"]
    return {plane for plane in range(len(qp.device.local_planes)) if mask >> plane & 1}


def silent(qp: QueuePair) -> list[int]:
    """The planes that are up here and where the peer has not answered."""
    here = {number for number, row in enumerate(qp.device.planes()) if row["is_up"]}
    return sorted(here - reached(qp))


def pauses(pairs: Sequence[QueuePair], patience_s: float = SILENT_S, until: float = math.inf) -> Iterator[float]:
    """How long to wait before looking again whether the peers of these have answered everywhere; ends when they have,
    when it is too late for those that have not, or at that moment of `time.monotonic`."""
    start, first_s, pause_s = time.monotonic(), None, SHORTEST_PAUSE_S
    while any(silent(qp) or not reached(qp) for qp in pairs):  # links of this side may still be coming up
        spent_s = time.monotonic() - start
        if first_s is None and all(reached(qp) for qp in pairs):
            first_s = spent_s
        left_s = until - start - spent_s
        if left_s <= 0 or spent_s > (patience_s if first_s is None else 4 * first_s + GRACE_S):
            return
        yield min(pause_s, left_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def never_reached(qp: QueuePair, peer: Peer) -> str:
    """What an error says of a peer that has answered on no plane; empty where it has, or was not probed."""
    if reached(qp) or not qp.device.config.prove_addresses:
        return ""
    planes = silent(qp)
    if not planes:
        return "was never reached: no plane of this side is up"
    over, advice = few(_pairs(qp.device, peer, planes)), _advice(qp.device, peer, planes)
    return f"was never reached: nothing came back over {over}; {advice}"


def warn_of_links(device: Device) -> None:
    """One line for the links of this side that are down when it meets others; who uses a plane alone knows why."""
    rows = enumerate(device.planes())
    down = [plane for plane, row in rows if not row["is_link_up"] and plane not in device.known_silent]
    if not down:
        return
    device.known_silent.update(down)
    names = ", ".join(f"plane {plane} ({device.local_planes[plane]})" for plane in down)
    log.warning("the link of %s is down on this host; the other planes carry on, and it is used once it is up", names)


def warn_of_silence(qp: QueuePair, peer: Peer, name: str) -> None:
    """One line for the planes that never worked while others do, once for each of a device."""
    fresh = [plane for plane in silent(qp) if plane not in qp.device.known_silent]
    if not fresh or not qp.device.config.prove_addresses:
        return
    qp.device.known_silent.update(fresh)
    log.warning(
        "%s does not answer over %s; the other planes carry on. %s",
        name,
        ", ".join(_pairs(qp.device, peer, fresh)),
        _advice(qp.device, peer, fresh).capitalize(),
    )


def tried(device: Device, planes: Sequence[PeerPlane]) -> str:
    """What an error says of a peer that answers on no plane any longer: for how long it was probed, and where. Long
    errors are cut off, so the advice comes first."""
    rows = enumerate(zip(device.local_planes, planes, device.planes(), strict=True))
    over = [f"plane {plane} ({here} → {there.address})" for plane, (here, there, row) in rows if row["is_up"]]
    config = device.config
    patience = f"for {config.patience_s:.3g} s" if config.patience_s < float("inf") else "without end"
    return (
        f"silence is borne {patience}, or less where the host reports the port as unreachable (`retry_exponential` of "
        f"DeviceConfig ({config.retry_exponential}), also in SOFTMRC_CONFIG; each more doubles it); "
        + (f"nothing came back over {few(over)}" if over else "no plane of this side is up")
    )


def few(names: Sequence[str]) -> str:
    """The first of them, and how many there are besides."""
    more = [f"{len(names) - MAX_NAMED} more"] if len(names) > MAX_NAMED else []
    return " and ".join([", ".join(names[:MAX_NAMED]), *more])


def _pairs(device: Device, peer: Peer, planes: Sequence[int]) -> list[str]:
    places = [(plane, device.local_planes[plane], peer.planes[plane]) for plane in planes]
    return [f"plane {plane} ({here} → {there.address} UDP port {there.port})" for plane, here, there in places]


def _advice(device: Device, peer: Peer, planes: Sequence[int]) -> str:
    """Where to look first."""
    if all(device.local_planes[plane].address.is_loopback for plane in planes):
        return "loopback reaches no other host: where the peer is on one, SOFTMRC_PLANES has to name NICs"
    for plane in planes:
        here, there = device.local_planes[plane], peer.planes[plane].address
        network = None if here.address.is_loopback else network_of(here.address, here.link)
        if network is None or there in network or network.num_addresses == 1:
            continue
        for other, place in enumerate(peer.planes):
            if place.address in network:
                return f"its plane {other} is in the network of this side's plane {plane}: list them in the same order"
        return f"{there} is not in {network}, the network of {here}: is there a route, and is it the right interface?"
    return "look at firewalls, which must let UDP through, and at the cables"
