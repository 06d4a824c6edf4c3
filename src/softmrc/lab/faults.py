"""Breaking a lab and repairing it.

    down        the cable is cut: the far end from the hosts goes down, the other sees its carrier go
    blackhole   packets are dropped silently at both ends
    loss=1%     so many of them vanish
    corrupt=1%  a bit of so many of them is flipped (needs the switches' program)
    slow=25%    so much of its rate is left, without any notice
    flap=50ms   down and up in turn, by a separate process, until healed
    reboot      a switch or host: all its ports go down at once

What goes down loses its routes, so healing replays the lines of the ports concerned, and no others.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from softmrc._support.subprocesses import python_command
from softmrc._support.units import as_duration_ns, as_share
from softmrc.errors import ConfigError, DeviceError, UsageError
from softmrc.fabric import Cable, Node, Tier, cable_name
from softmrc.fabric.config.linux import LinuxPort, slow_lines
from softmrc.lab import kernel, state

if TYPE_CHECKING:
    from softmrc.lab.lab import Lab

CABLE_MODES = "down, blackhole, loss=1%, corrupt=1%, slow=25% or flap=50ms"
NODE_MODES = "reboot or blackhole"
MAX_FLAP_S = 600.0
_TABLE = "softmrc"


def usual_mode(target: str) -> str:
    """The default fault of a cable or a node."""
    return "down" if _is_cable(target) else "reboot"


def _is_cable(target: str) -> bool:
    return "-" in target


def fail(lab: Lab, target: str, mode: str, plane: int = 0) -> str:
    """Break a cable or a node; its full name."""
    with state.locked():
        found = lab.record = state.the_one(lab.name)
        if _is_cable(target):
            cable = lab.shape.parse_cable(target, plane)
            name = cable_name(lab.shape, cable)
            if name in found.failures:
                _repair(lab, name)
            _fail_cable(lab, cable, name, mode)
        else:
            node = lab.shape.parse_node(target, plane)
            name = lab.shape.name_of(node)
            _fail_node(lab, node, mode)
        found.failures[name] = mode
        found.save()
    return name


def _fail_cable(lab: Lab, cable: Cable, name: str, mode: str) -> None:
    kind, _, argument = mode.partition("=")
    if mode == "down":
        node, port = _upper_end(lab, cable)
        _set_down(lab, node, [port])
    elif mode == "blackhole":
        _lose(lab, _ends(lab, cable), 1.0)
    elif kind == "loss" and argument:
        _lose(lab, _ends(lab, cable), as_share("mode loss", argument))
    elif kind == "corrupt" and argument:
        _corrupt(lab, _ends(lab, cable), as_share("mode corrupt", argument))
    elif kind == "slow" and argument:
        share = as_share("mode slow", argument)
        if share <= 0:
            raise ConfigError("mode slow", argument, "must be a share of the rate above 0%")
        _slow(lab, _ends(lab, cable), share)
    elif kind == "flap" and argument:
        _start_flapper(lab, name, as_duration_ns("mode flap", argument) / 1e9)
    else:
        raise ConfigError("mode", mode, f"must be {CABLE_MODES}, for a cable")


def _fail_node(lab: Lab, node: Node, mode: str) -> None:
    ports = lab.nodes[node].ports
    if mode == "reboot":
        _set_down(lab, node, ports)
    elif mode == "blackhole":
        _lose(lab, [(node, port) for port in ports], 1.0)
    else:
        raise ConfigError("mode", mode, f"must be {NODE_MODES}, for a node")


def heal(lab: Lab, target: str | None = None, plane: int = 0) -> list[str]:
    """Repair one thing, or everything that is broken."""
    with state.locked():
        found = lab.record = state.the_one(lab.name)
        if target is None:
            wanted = list(found.failures)
        elif _is_cable(target):
            wanted = [cable_name(lab.shape, lab.shape.parse_cable(target, plane))]
        else:
            wanted = [lab.shape.name_of(lab.shape.parse_node(target, plane))]
        for name in wanted:
            if name not in found.failures:
                broken = ", ".join(found.failures) or "nothing"
                raise UsageError(f"{name} is not broken; {broken} is")
            _repair(lab, name)
        found.save()
    return wanted


def _repair(lab: Lab, name: str) -> None:
    mode = lab.record.failures.pop(name)
    if _is_cable(name):
        cable = lab.shape.parse_cable(name)
        ends = _ends(lab, cable)
        if name in lab.record.flappers:
            _stop_flapper(*lab.record.flappers.pop(name))
        if mode == "down" or mode.startswith("flap"):
            _bring_up(lab, ends)
        elif mode.startswith("slow"):
            _slow(lab, ends, 1.0)
        elif mode.startswith("corrupt"):
            _corrupt(lab, ends, 0.0)
        else:
            _lose(lab, ends, 0.0)
        return
    node = lab.shape.parse_node(name)
    own = [(node, port) for port in lab.nodes[node].ports]
    if mode == "reboot":
        _bring_up(lab, own + [_far_end(lab, port) for _, port in own])
    else:
        _lose(lab, own, 0.0)


# Ends of cables.


def _port_of(lab: Lab, node: Node, link: int) -> LinuxPort:
    return next(port for port in lab.nodes[node].ports if port.port.link == link)


def _ends(lab: Lab, cable: Cable) -> list[tuple[Node, LinuxPort]]:
    up, down = lab.shape.links_of(cable)
    return [(cable.lower, _port_of(lab, cable.lower, up)), (cable.upper, _port_of(lab, cable.upper, down))]


def _upper_end(lab: Lab, cable: Cable) -> tuple[Node, LinuxPort]:
    return _ends(lab, cable)[1]


def _far_end(lab: Lab, port: LinuxPort) -> tuple[Node, LinuxPort]:
    cable = lab.shape.cable_of(port.port.link)
    return next(end for end in _ends(lab, cable) if end[1].port.link != port.port.link)


# Down and up.


def _set_down(lab: Lab, node: Node, ports: list[LinuxPort] | LinuxPort) -> None:
    several = ports if isinstance(ports, list) else [ports]
    with kernel.inside(lab.namespace(node)):
        kernel.batch("ip", [f"link set {port.port.name} down" for port in several], lab.shape.name_of(node))


def _bring_up(lab: Lab, ends: list[tuple[Node, LinuxPort]]) -> None:
    """Replay the lines of these ports, node by node; a port that another failure holds down stays down."""
    by_node: dict[Node, list[LinuxPort]] = {}
    for node, port in ends:
        if not _is_held_down(lab, node, port):
            by_node.setdefault(node, []).append(port)
    for node, ports in by_node.items():
        links = {port.port.link for port in ports}
        lines = [line for port in lab.node_config(node).ports if port.port.link in links for line in port.ip]
        with kernel.inside(lab.namespace(node)):
            kernel.batch("ip", lines, lab.shape.name_of(node))
            kernel.write_sysctls([s for s in lab.nodes[node].sysctls if any(f"/{p.port.name}/" in s[0] for p in ports)])


def _is_held_down(lab: Lab, node: Node, port: LinuxPort) -> bool:
    broken = lab.record.failures
    if broken.get(lab.shape.name_of(node)) == "reboot":
        return True
    cable = lab.shape.cable_of(port.port.link)
    mode = broken.get(cable_name(lab.shape, cable), "")
    return node.tier is not Tier.HOST and node == cable.upper and (mode == "down" or mode.startswith("flap"))


# Silent loss.


def _lose(lab: Lab, ends: list[tuple[Node, LinuxPort]], share: float) -> None:
    """At the sending side of each port; by the program's map where there is one, by nftables otherwise."""
    from softmrc.lab.lab import FIRST_INDEX

    with lab.maps() as maps:
        for node, port in ends:
            if maps is not None:
                index = FIRST_INDEX + port.port.link
                maps.change(index, black_hole=share >= 1, loss=share if share < 1 else 0.0)
            else:
                with kernel.inside(lab.namespace(node)):
                    _filter(port.port.name, share)


def _corrupt(lab: Lab, ends: list[tuple[Node, LinuxPort]], share: float) -> None:
    from softmrc.lab.lab import FIRST_INDEX

    with lab.maps() as maps:
        if maps is None:
            why = lab.record.without or "its file asks for neither ECN nor trimming"
            raise UsageError(f"lab {lab.name} runs without the switches' program, which flips bits: {why}")
        for _, port in ends:
            maps.change(FIRST_INDEX + port.port.link, corrupt=share)


def _slow(lab: Lab, ends: list[tuple[Node, LinuxPort]], share: float) -> None:
    for node, port in ends:
        with kernel.inside(lab.namespace(node)):
            is_switch = lab.nodes[node].is_switch
            kernel.batch("tc", slow_lines(lab.description, port.port, is_switch, share), port.port.name)


def _filter(port: str, share: float) -> None:
    kernel.require_tools("nft")
    chain = f"netdev {_TABLE} {port}"
    lines = [f"add table netdev {_TABLE}", f"add chain {chain} {{ type filter hook egress device {port} priority 0; }}"]
    lines.append(f"flush chain {chain}")
    if share >= 1:
        lines.append(f"add rule {chain} drop")
    elif share:
        lines.append(f"add rule {chain} numgen random mod 1000000 < {round(share * 1e6)} drop")
    done = kernel.run(["nft", "-f", "-"], lines)
    if done.returncode:
        raise DeviceError(f"nft cannot drop packets at {port}: {' '.join(done.stderr.split())[:200]}")


# Flapping.


def _start_flapper(lab: Lab, name: str, period_s: float) -> None:
    if not 0.001 <= period_s <= 60:
        raise ConfigError("mode flap", f"{period_s:g}s", "must be 1ms to 60s")
    command = python_command("softmrc.lab.faults", lab.name, name, f"{period_s:.6f}")
    # The flapper outlives this command; it ends when it is healed, when its lab goes, or after ten minutes.
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    lab.record.flappers[name] = (process.pid, state.start_time_of(process.pid))


def _stop_flapper(pid: int, started: int) -> None:
    if not state.is_alive(pid, started):
        return
    os.kill(pid, signal.SIGTERM)
    for _ in range(200):
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
        except ChildProcessError:
            if not state.is_alive(pid, started):
                return
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)


def flap(lab_name: str, name: str, period_s: float) -> None:
    """What the flapper does: down and up in turn, until it is ended or its lab is gone."""
    from softmrc.lab.lab import Lab

    lab = Lab.find(lab_name)
    cable = lab.shape.parse_cable(name)
    node, port = _upper_end(lab, cable)  # a switch, so the brief lines are all there are
    end = time.monotonic() + MAX_FLAP_S
    with kernel.inside(lab.namespace(node)):
        while time.monotonic() < end and state.find(lab_name) is not None:
            kernel.batch("ip", [f"link set {port.port.name} down"], name)
            time.sleep(period_s)
            kernel.batch("ip", port.ip, name)
            time.sleep(period_s)


if __name__ == "__main__":
    flap(sys.argv[1], sys.argv[2], float(sys.argv[3]))
