"""Configurations: one file a switch and one a host, the same bytes every time, so that two versions can be compared.

`linux` is what the lab itself applies; `frr` and `sonic` say the same thing to switches that speak those languages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from softmrc.errors import ConfigError, DeviceError
from softmrc.fabric.address import AddressPlan
from softmrc.fabric.config import frr, linux, sonic
from softmrc.fabric.description import Description
from softmrc.fabric.shape import Node

_Writer = Callable[[Description, AddressPlan, Node], str]
_TARGETS: dict[str, tuple[str, _Writer]] = {
    "linux": ("sh", linux.text),
    "frr": ("conf", frr.text),
    "sonic": ("json", sonic.text),
}
TARGETS = tuple(_TARGETS)


def check_target(target: str) -> None:
    if target not in _TARGETS:
        raise ConfigError("target", target, "must be one of " + ", ".join(TARGETS))


def files(description: Description, target: str) -> Iterator[tuple[str, str]]:
    """The name and text of every file, hosts first, then plane by plane from the lowest tier up."""
    check_target(target)
    suffix, writer = _TARGETS[target]
    plan = AddressPlan(description.fabric, description.addressing)
    for node in description.fabric.nodes():
        yield f"{description.fabric.name_of(node)}.{suffix}", writer(description, plan, node)


def write(
    description: Description, target: str, folder: Path, on_file: Callable[[int], None] = lambda count: None
) -> int:
    """Write all files; files of a node that is gone are not removed, since they may be the user's."""
    check_target(target)
    count = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files(description, target):
            (folder / name).write_text(text)
            count += 1
            on_file(count)
    except OSError as error:
        raise DeviceError(f"cannot write to {folder}: {error.strerror}") from None
    return count
