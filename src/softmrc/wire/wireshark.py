"""The dissector that teaches Wireshark MRC, and where Wireshark looks for it."""

from __future__ import annotations

import shutil
import subprocess
from importlib import resources
from pathlib import Path

from softmrc.errors import DeviceError

NAME = "mrc.lua"


def dissector() -> str:
    """The Lua dissector's text."""
    return (resources.files(__package__) / NAME).read_text(encoding="utf-8")


def plugin_folder() -> Path:
    """The user's folder for Lua plugins: tshark knows; without it, the usual one."""
    usual = Path.home() / ".local/lib/wireshark/plugins"
    tshark = shutil.which("tshark")
    if tshark is None:
        return usual
    done = subprocess.run([tshark, "-G", "folders"], capture_output=True, text=True, timeout=60, check=False)
    for line in done.stdout.splitlines():
        name, _, folder = line.partition(":")
        if name.strip() == "Personal Lua Plugins" and folder.strip():
            return Path(folder.strip())
    return usual


def install_wireshark() -> Path:
    """Put the dissector where Wireshark looks; the file's name. One that was there before is replaced."""
    target = plugin_folder() / NAME
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(dissector(), encoding="utf-8")
    except OSError as error:
        raise DeviceError(f"cannot write {target}: {error.strerror}") from None
    return target
