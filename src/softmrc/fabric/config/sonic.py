"""SONiC: config_db.json with static SIDs (SRV6_MY_LOCATORS, SRV6_MY_SIDS), static routes, ECN and trimming.

Ports are called Ethernet0, Ethernet1 … in the order downlinks, uplinks; lanes and speeds are the platform's business
and stay out. Hosts run Linux, so a host's file has only its links, to be read by whatever provisions it.
"""

from __future__ import annotations

import json
from typing import Any

from softmrc.fabric.address import AddressPlan
from softmrc.fabric.config.ports import Port, ports_of
from softmrc.fabric.config.queues import thresholds
from softmrc.fabric.description import Description
from softmrc.fabric.routes import Action, table_of
from softmrc.fabric.shape import Node, Tier
from softmrc.wire import DscpMap

LOCATOR = "MRC"
DATA_QUEUE, CONTROL_QUEUE = "3", "6"
TRIM_SIZE_BYTES = 128  # outer and inner IPv6, UDP, and the packet's headers through RETH fit
TYPES = {Tier.HOST: "Server", Tier.T0: "ToRRouter", Tier.T1: "LeafRouter", Tier.T2: "SpineRouter"}
Tables = dict[str, dict[str, dict[str, Any]]]


def text(description: Description, plan: AddressPlan, node: Node) -> str:
    """The config_db.json of a node."""
    ports = ports_of(plan, node)
    tables: Tables = {
        "DEVICE_METADATA": {
            "localhost": {
                "hostname": plan.shape.name_of(node).replace(".", "-"),
                "type": TYPES[node.tier],
                "docker_routing_config_mode": "unified",
            }
        },
        "PORT": {_name(p): {"admin_status": "up", "mtu": "9100"} for p in ports},
        "INTERFACE": {},
        "DEVICE_NEIGHBOR": {},
    }
    for port in ports:
        tables["INTERFACE"][_name(port)] = {"ipv6_use_link_local_only": "enable"}
        tables["INTERFACE"][f"{_name(port)}|{port.address}/64"] = {}
        neighbour = {"name": plan.shape.name_of(port.neighbour), "port": _far_name(plan, port)}
        tables["DEVICE_NEIGHBOR"][_name(port)] = neighbour
    if node.tier is not Tier.HOST:
        _add_routes(plan, node, ports, tables)
        _add_queues(description, ports, tables)
    return json.dumps(tables, indent=2) + "\n"


def _name(port: Port) -> str:
    return f"Ethernet{port.number}"


def _far_name(plan: AddressPlan, port: Port) -> str:
    if port.neighbour.tier is Tier.HOST:
        return f"p{port.plane}"
    up, down = plan.shape.links_of(plan.shape.cable_of(port.link))
    return f"Ethernet{plan.port_of(port.neighbour, down if port.link == up else up)}"


def _add_routes(plan: AddressPlan, node: Node, ports: list[Port], tables: Tables) -> None:
    plane, own = node.plane, plan.usid(node)
    by_link = {port.link: port for port in ports}
    locator = plan.prefix(plane, own)
    sids = {f"{LOCATOR}|{locator}": {"action": "uN", "decap_dscp_mode": "pipe"}}
    routes: dict[str, dict[str, Any]] = {}
    for entry in table_of(plan, node).entries:
        if entry.link is None:
            continue
        port = by_link[entry.link]
        if entry.action is Action.UA:
            sid = plan.prefix(plane, own, int(entry.prefix.network_address) >> 80 & 0xFFFF)
            sids[f"{LOCATOR}|{sid}"] = {"action": "uA", "interface": _name(port), "adj": port.next_hop}
        else:
            routes[f"default|{entry.prefix}"] = {"nexthop": port.next_hop, "ifname": _name(port)}
    block = plan.block(plane)
    routes[f"default|{block >> 16:x}:{block & 0xFFFF:x}::/32"] = {"blackhole": "true"}
    tables["SRV6_MY_LOCATORS"] = {LOCATOR: {"prefix": str(locator.network_address), "func_len": "0"}}
    tables["SRV6_MY_SIDS"] = sids
    tables["STATIC_ROUTE"] = routes


def _add_queues(description: Description, ports: list[Port], tables: Tables) -> None:
    """ECN inside the fabric but not on the last hop, and trimming everywhere: both by the data queue's profiles."""
    dscp = DscpMap()
    data = {str(code): DATA_QUEUE for code in (dscp.no_trim, dscp.trimmable, dscp.trimmable_retx)}
    control = {str(code): CONTROL_QUEUE for code in (dscp.trimmed, dscp.trimmed_last_hop, dscp.control)}
    tables["DSCP_TO_TC_MAP"] = {LOCATOR: data | control}
    tables["TC_TO_QUEUE_MAP"] = {LOCATOR: {queue: queue for queue in (DATA_QUEUE, CONTROL_QUEUE)}}
    tables["PORT_QOS_MAP"] = {_name(p): {"dscp_to_tc_map": LOCATOR, "tc_to_queue_map": LOCATOR} for p in ports}
    inner = [p for p in ports if not p.is_last_hop]
    if description.switch.ecn and inner:
        at = thresholds(description, inner[0])
        tables["WRED_PROFILE"] = {
            LOCATOR: {
                "ecn": "ecn_all",
                "wred_green_enable": "true",
                "green_min_threshold": str(at.ecn_min),
                "green_max_threshold": str(at.ecn_max),
                "green_drop_probability": "100",
            }
        }
        tables["QUEUE"] = {f"{_name(p)}|{DATA_QUEUE}": {"wred_profile": LOCATOR} for p in inner}
    if description.switch.trim:
        trimmed = {"size": str(TRIM_SIZE_BYTES), "dscp_value": str(dscp.trimmed), "queue_index": CONTROL_QUEUE}
        tables["SWITCH_TRIMMING"] = {"GLOBAL": trimmed}
        tables["BUFFER_POOL"] = {"egress_lossy_pool": {"mode": "dynamic", "type": "egress"}}
        profiles, queues = {}, {}
        for port in ports:
            profile = f"{LOCATOR}_{'last_hop' if port.is_last_hop else 'fabric'}"
            size = str(thresholds(description, port).trim)
            buffer = {"pool": "egress_lossy_pool", "size": "0", "static_th": size}
            profiles[profile] = buffer | {"packet_discard_action": "trim"}
            queues[f"{_name(port)}|{DATA_QUEUE}"] = {"profile": profile}
        tables["BUFFER_PROFILE"], tables["BUFFER_QUEUE"] = profiles, queues
