"""Which ranks pass bulk data through memory: those of one machine that can see each other's processes.

SOFTMRC_SHARED_MEMORY=auto   unless all planes are loopback, which is used to test the protocol itself
SOFTMRC_SHARED_MEMORY=on     there, too
SOFTMRC_SHARED_MEMORY=off    never
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from softmrc.device import Device
from softmrc.errors import ConfigError

SHARED_MEMORY = "SOFTMRC_SHARED_MEMORY"
CHOICES = ("auto", "on", "off")
BOOT = Path("/proc/sys/kernel/random/boot_id")


def is_wanted(device: Device) -> bool:
    choice = os.environ.get(SHARED_MEMORY) or "auto"
    if choice not in CHOICES:
        raise ConfigError(SHARED_MEMORY, choice, "must be 'auto', 'on' or 'off'")
    return choice == "on" or (choice == "auto" and not device.stays_here)


def memory_of_this_process() -> str:
    """The same for processes that may share memory, as far as is known without trying; a container, a host of a lab
    and another user have another."""
    try:
        spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "pid")]
        return " ".join([BOOT.read_text().strip(), *spaces, str(os.geteuid())])
    except OSError:
        return ""


def share_memory_pairs(memories: Sequence[str]) -> int:
    """How many ranks each of several memories has, if they are as many everywhere and have numbers in a row; else 1."""
    many = next((rank for rank, memory in enumerate(memories) if memory != memories[0]), len(memories))
    blocks = [set(memories[first : first + many]) for first in range(0, len(memories), many)]
    is_even = len(memories) % many == 0 and all(len(block) == 1 for block in blocks)
    is_regular = is_even and len(set(memories)) == len(blocks) > 1 and "" not in memories
    return many if is_regular else 1
