"""What a test needs of the machine, and the package that installs it.

Every skip for a missing program or permission goes through here, so that a run can end with one line for each reason
and, in CI, fail where a program is missing.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import subprocess
from typing import Any

import pytest

from softmrc.lab import bpf

# Programs that tests use, and the Debian packages that have them; `make tools` installs all of these.
PACKAGES = {
    "chromium": "chromium",
    "clang++": "clang",
    "ethtool": "ethtool",
    "git": "git",
    "ip": "iproute2",
    "nft": "nftables",
    "nm": "binutils",
    "objdump": "binutils",
    "openssl": "openssl",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "readelf": "binutils",
    "tc": "iproute2",
    "tshark": "tshark",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "vtysh": "frr",
}
NOT_INSTALLED = "not installed: "


def reason(*programs: str) -> str:
    """Why a test of these programs is skipped; empty where all of them are installed."""
    missing = [name for name in programs if shutil.which(name) is None]
    if not missing:
        return ""
    packages = " ".join(dict.fromkeys(PACKAGES[name] for name in missing))
    return f"{NOT_INSTALLED}{', '.join(missing)} (Debian: apt install {packages})"


def tools(*programs: str) -> pytest.MarkDecorator:
    why = reason(*programs)
    return pytest.mark.skipif(bool(why), reason=why or "installed")


@functools.cache
def may_make_namespaces() -> bool:
    """Root alone is not enough: containers often lack CAP_NET_ADMIN or CAP_SYS_ADMIN."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"softmrc-may-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if made.returncode:
        return False
    up = ["ip", "-n", name, "link", "add", "veth0", "type", "veth", "peer", "name", "veth1"]
    linked = subprocess.run(up, capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return linked.returncode == 0


@functools.cache
def has_ipv6() -> bool:
    """Whether ::1 can be bound."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
IPV6 = pytest.mark.skipif(not has_ipv6(), reason="needs IPv6 on loopback")
BPF = pytest.mark.skipif(bpf.missing() is not None, reason=f"needs BPF for ECN and trimming: {bpf.missing()}")


def namespaces(*programs: str) -> pytest.MarkDecorator:
    """Network namespaces, and these programs besides iproute2."""
    if os.geteuid() != 0:
        return ROOT
    why = reason("ip", *programs)
    if not why and not may_make_namespaces():
        why = "needs permission to make network namespaces (CAP_NET_ADMIN and CAP_SYS_ADMIN)"
    return pytest.mark.skipif(bool(why), reason=why or "possible")


NAMESPACES = [pytest.mark.lab, namespaces()]  # for `pytestmark`
LAB = [pytest.mark.lab, namespaces("tc", "nft")]


def in_namespaces(test: Any) -> Any:
    """For one test."""
    return pytest.mark.lab(namespaces()(test))


def lab(test: Any) -> Any:
    """For one test."""
    return pytest.mark.lab(namespaces("tc", "nft")(test))
