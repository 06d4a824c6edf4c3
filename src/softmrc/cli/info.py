"""`softmrc info`: what this machine has for SoftMRC, what it lacks, and the command that fixes it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shlex
import shutil
import socket
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

import softmrc
from softmrc import _core
from softmrc._support.subprocesses import python_command
from softmrc.cli import exporter
from softmrc.cli.options import AsJson, print_json
from softmrc.cli.terminal import terminal
from softmrc.config import DeviceConfig, environment, interfaces
from softmrc.config.planes import resolve, speed_text
from softmrc.errors import MrcError
from softmrc.lab import bpf
from softmrc.torch import GPU_FILES

UDP_SEGMENT, UDP_GRO = 103, 104
LEAST_TORCH = (2, 7)
HERE = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")


@dataclass(frozen=True)
class Fact:
    """One line: what was found, whether it will do, and the command that fixes it."""

    name: str
    found: str
    is_good: bool = True
    fix: str = ""


def _planes() -> list[Fact]:
    try:
        wanted = environment.read()
        chosen = interfaces.DetectedPlanes(wanted.planes, wanted.why) if wanted.planes else interfaces.detect_planes()
        shown = []
        for name in chosen.planes:
            plane = resolve(name, chosen.why)
            shown.append(f"{plane} ({speed_text(plane) or 'speed not known'}, MTU {plane.link_mtu:,})")
        return [Fact("planes", ", ".join(shown) + f"; {chosen.why}")]
    except MrcError as error:
        return [
            Fact("planes", str(error), False, "export SOFTMRC_PLANES=eth0,eth1"),
            Fact("on one host", ", ".join(HERE)),
        ]


def _sudo() -> str:
    return "" if os.geteuid() == 0 else "sudo "


def _sysctl(name: str) -> int:
    try:
        return int(Path("/proc/sys", *name.split(".")).read_text())
    except (OSError, ValueError):
        return 0


def _buffers() -> Fact:
    wanted = DeviceConfig().buffer_bytes
    least = min(_sysctl("net.core.rmem_max"), _sysctl("net.core.wmem_max"))
    fix = f"{_sudo()}sysctl -w net.core.rmem_max={4 * wanted} net.core.wmem_max={4 * wanted}"
    found = f"{least:,} bytes a socket, {wanted:,} wanted"
    return Fact("socket buffers", found, least >= wanted, fix if least < wanted else "")


def _kernel() -> list[Fact]:
    def has(option: int) -> bool:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            try:
                sock.setsockopt(socket.IPPROTO_UDP, option, 0)
                return True
            except OSError:
                return False

    offloads = [name for name, option in (("GSO", UDP_SEGMENT), ("GRO", UDP_GRO)) if has(option)]
    segment = Path("/proc/sys/net/ipv6/conf/all/seg6_enabled").exists()
    words = f"Linux {platform.release()}; UDP {' and '.join(offloads) or 'without GSO and GRO'}"
    return [
        Fact("kernel", f"{words}; SRv6 {'yes' if segment else 'no'}", bool(offloads), "" if offloads else "Linux 5.0")
    ]


def _torch() -> Fact:
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Fact("torch", "not installed; needed for training only", False, "pip install torch")
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    is_good = numbers >= LEAST_TORCH
    return Fact("torch", version, is_good, "" if is_good else f"pip install 'torch>={LEAST_TORCH[0]}.{LEAST_TORCH[1]}'")


def _gpu() -> Fact:
    there = [name for name in GPU_FILES if Path("/dev", name).exists()]
    return Fact("GPU", f"a driver is here ({', '.join(there)})" if there else "none; tensors stay on the CPU")


def _sealing() -> Fact:
    if not _core.can_seal():
        fix = f"{_sudo()}apt install libssl-dev, then install softmrc again"
        return Fact("encryption", "not built: no secrets, no keys (OpenSSL's headers were not there)", False, fix)
    library, per_s = _core.cipher_speed()
    cipher = _core.faster_cipher().name.replace("_", "-")
    return Fact("encryption", f"{cipher}, {per_s / 1e9:.1f} GB/s a core now, {' '.join(library.split()[:2])}")


def _credentials() -> list[Fact]:
    """What the environment has connections authenticate with."""
    secret, identity = os.environ.get(environment.SECRET), os.environ.get(environment.IDENTITY)
    if not secret and not identity:
        return []
    words = f"connections by the key in {identity}" if identity else "by a secret"
    groups = f"; {environment.SECRET} is for groups and NCCL alone" if identity and secret else ""
    return [Fact("authentication", words + groups)]


def _limits() -> Fact:
    try:
        device = environment.read().device.checked()
    except MrcError as error:
        return Fact("limits", str(error), False)
    found = (
        f"{device.max_pending:,} unfinished handshakes ({device.max_pending_per_address:,} with one address), "
        f"{device.max_connections:,} accepted connections ({device.max_connections_per_address:,}), in a process"
    )
    return Fact("limits", found)


def _as_root(*words: str) -> str:
    """This command again; run as a module, it has no file that could be."""
    here = python_command("softmrc") if Path(sys.argv[0]).suffix == ".py" else [sys.argv[0]]
    return _sudo() + shlex.join([*here, *words])


def _exporter() -> Fact:
    missing = [name for name in exporter.MODULES if importlib.util.find_spec(name) is None]
    if missing:
        without = f"{', '.join(missing)} not installed; needed for `softmrc exporter` and `softmrc dashboard` only"
        return Fact("exporter", without, False, exporter.NEEDED)
    return Fact("exporter", "`softmrc exporter` and `softmrc dashboard` can run")


def _lab() -> Fact:
    packages = {"ip": "iproute2", "tc": "iproute2", "nft": "nftables"}
    missing = [tool for tool in packages if shutil.which(tool) is None]
    if missing:
        needed = " ".join(dict.fromkeys(packages[tool] for tool in missing))
        return Fact("lab", f"needs {' and '.join(missing)}", False, f"{_sudo()}apt install {needed}")
    if os.geteuid() != 0:
        return Fact("lab", "needs root, for `softmrc lab` only", False, _as_root("lab", "up", "lab"))
    if without := bpf.missing():
        why, _, fix = without.partition(" (Debian: ")
        fix = f"{_sudo()}{fix.removesuffix(')')}" if fix else ""
        return Fact("lab", f"possible, without ECN and trimming: {why}", False, fix)
    return Fact("lab", "possible, with ECN and trimming")


def _tshark() -> Fact:
    if shutil.which("tshark"):
        return Fact("tshark", "installed; `softmrc dissect --install-wireshark` adds the MRC dissector")
    return Fact("tshark", "not installed; needed to read captures with Wireshark's dissectors only", False,
                f"{_sudo()}apt install tshark")  # fmt: skip


def facts() -> list[Fact]:
    """Everything, in the order of what matters."""
    cores = len(os.sched_getaffinity(0))
    python = f"{platform.python_version()} on {platform.machine()}, {cores} cores"
    found = [Fact("softmrc", f"{softmrc.__version__}, in {Path(softmrc.__file__).parent}"), Fact("Python", python)]
    found += [
        *_planes(),
        _buffers(),
        *_kernel(),
        _sealing(),
        *_credentials(),
        _limits(),
        _torch(),
        _gpu(),
        _exporter(),
        _lab(),
        _tshark(),
    ]
    found += [Fact("environment", words, False) for words in environment.unknown_variables(os.environ)]
    return found


def info(as_json: AsJson = False) -> None:
    """Check this machine and print the fix for anything missing.

    ✓: fine. –: missing or limited; the line below it fixes that."""
    found = facts()
    if as_json:
        print_json({"facts": [asdict(fact) for fact in found]})
        return
    console = terminal()
    width = max(len(fact.name) for fact in found)
    for fact in found:
        mark = Text("✓", "green") if fact.is_good else Text("–", "yellow")
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column()
        table.add_column(min_width=width)
        table.add_column(overflow="fold")
        table.add_row(mark, fact.name, fact.found)
        console.print(table)
        if fact.fix:  # as one line, however narrow the terminal: it is there to be copied
            console.print(f"   {'':{width}} {fact.fix}", highlight=False, soft_wrap=True)
