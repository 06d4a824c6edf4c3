"""Applying a denylist to running devices: each denies the EVs whose paths cross a listed link."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from softmrc.errors import UsageError
from softmrc.ops.control.client import DeviceClient

if TYPE_CHECKING:
    from softmrc.fabric import AddressPlan
    from softmrc.fabric.denylist import Denylist


@dataclass(frozen=True)
class PushResult:
    """What a device did with a list."""

    denied: int
    allowed: int
    skipped: int  # queue pairs whose peer is no host of the fabric, or which use no paths of it
    failed: int = 0  # paths that could be neither


def push(node: DeviceClient, denylist: Denylist, plan: AddressPlan) -> PushResult:
    """Deny what the list says, and allow again what was denied and is no longer on it."""
    hosts = _hosts_by_address(plan)
    planes = node.info().get("planes") or [{}]
    source = hosts.get(_address(str(planes[0].get("address", ""))))
    if source is None:
        raise UsageError(f"device {node.name} is at no address of the fabric")
    denied = allowed = skipped = failed = 0
    for qp in node.queue_pairs():
        peer = qp.get("peer") or {}
        reached_at = (peer.get("planes") or [""])[0]
        destination = hosts.get(_address(reached_at.rpartition(":")[0]))
        evs = qp.get("evs", [])
        if destination is None or destination == source or len(evs) > plan.evs(source, destination):
            skipped += 1
            continue
        values = {_value(plan, source, destination, ev) for ev in denylist.evs(plan, source, destination)}
        wanted = {int(one["ev"]) for one in evs if str(one["value"])[:32] in values}
        now = {int(one["ev"]) for one in evs if one["state"] == "denied"}
        if fresh := sorted(wanted - now):
            batch = node.deny(fresh, qpn=qp["qpn"])
            denied, failed = denied + batch.done, failed + len(batch.failed)
        if over := sorted(now - wanted):
            batch = node.allow(over, qpn=qp["qpn"])
            allowed, failed = allowed + batch.done, failed + len(batch.failed)
    return PushResult(denied, allowed, skipped, failed)


def _value(plan: AddressPlan, source: int, destination: int, ev: int) -> str:
    """How a device tells of the path: the carrier, in hexadecimal."""
    return plan.carrier(source, destination, *plan.place_of(ev)).packed.hex()


def _address(text: str) -> Any:
    try:
        return ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None


def _hosts_by_address(plan: AddressPlan) -> dict[Any, int]:
    shape = plan.shape
    return {plan.nic_address(host, plane): host for host in range(shape.hosts) for plane in range(shape.planes)}
