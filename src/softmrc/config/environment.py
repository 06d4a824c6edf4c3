"""What the environment says: the variables that SoftMRC reads, and words for those that it does not.

SOFTMRC_PLANES=eth0,eth1          planes as `softmrc.config.planes` describes them
SOFTMRC_CONFIG=/etc/softmrc.toml  a file: `planes = ["eth0", "eth1"]`, and a table [device] with fields of
                                  `DeviceConfig`; SOFTMRC_PLANES goes before its planes
SOFTMRC_DEBUG=1                   tell on stderr what is decided, and why
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from softmrc._support.files import parse_toml, read_text
from softmrc.config import DeviceConfig
from softmrc.config import text as written
from softmrc.errors import ConfigError, did_you_mean
from softmrc.fabric import host as fabric_host
from softmrc.fabric.host import FabricHost
from softmrc.wire.keylog import KEYLOG

log = logging.getLogger("softmrc")

PREFIX = "SOFTMRC_"
PLANES, CONFIG, DEBUG, SECRET = "SOFTMRC_PLANES", "SOFTMRC_CONFIG", "SOFTMRC_DEBUG", "SOFTMRC_SECRET"
IDENTITY = "SOFTMRC_IDENTITY"
VARIABLES = {
    PLANES: "planes of this process: addresses or interfaces, with commas between them",
    CONFIG: "a TOML file with `planes` and a table [device]",
    SECRET: "what both ends of a connection know; needed as soon as it leaves the machine",
    IDENTITY: "a folder with a key of this end's own and those of known peers: instead of a secret, for `connect`",
    DEBUG: "1: say on stderr what is decided, and why",
    "SOFTMRC_SHARED_MEMORY": "auto, on or off: ranks of one machine pass bulk data through memory",
    "SOFTMRC_RECORD": "1: remember what happened, for `softmrc explain`",
    "SOFTMRC_DENYLIST": "a file of paths that no queue pair takes",
    "SOFTMRC_CONTROL": "0: devices have no control socket",
    "SOFTMRC_TOKEN": "the token that requests to an agent from another machine must carry",
    KEYLOG: "a file for the keys of encrypted connections, to decrypt captures with",
    fabric_host.FILE: "the file of the fabric whose host this is; with SOFTMRC_HOST",
    fabric_host.NUMBER: "which host of that fabric this is",
    "SOFTMRC_FAULTS": "faults on demand, of every device of the process",
    "SOFTMRC_CAPTURE": "a file for what passes the sockets, in NCCL's plugin",
}
OF_TESTS = ("SOFTMRC_SANITIZER", "SOFTMRC_FORGER_SEEDS", "SOFTMRC_GROUP_SEEDS", "SOFTMRC_SWARM_SEEDS")
YES = ("1", "true", "yes", "on")

FILES = (CONFIG, fabric_host.FILE)  # that say more

_said: set[str] = set()


@dataclass(frozen=True)
class EnvSettings:
    """What the environment sets; no planes means: detect them."""

    planes: tuple[str, ...] = ()
    device: DeviceConfig = field(default_factory=DeviceConfig)
    routes: Any = None  # SRv6 paths to peers, as `Device` has them
    given: dict[str, Any] = field(default_factory=dict, compare=False)  # fields of `device` that the file names
    why: str = field(default="", compare=False)  # where the planes are from


def of_process() -> EnvSettings:
    """Settings of this process. Where no file is named they are what they were as long as the variables are."""
    if any(os.environ.get(name) for name in FILES):
        return read()
    return _of_variables(tuple(os.environ.get(name) for name in VARIABLES))


@functools.lru_cache(8)
def _of_variables(_: tuple[str | None, ...]) -> EnvSettings:
    return read()


def read(environment: Mapping[str, str] = os.environ) -> EnvSettings:
    """Settings, as an environment says."""
    warn_of_unknown_variables(environment)
    path = environment.get(CONFIG, "")
    table = parse_toml(read_text(Path(path), CONFIG), path) if path else {}
    for name in sorted(set(table) - {"planes", "device"}):
        hint = did_you_mean(name, ("planes", "device")) or "Known keys: planes, and a table [device]."
        raise ConfigError(name, table[name], "unknown key", hint, path)
    planes, why = table.get("planes", []), f"in {path}"
    if not isinstance(planes, list) or not all(isinstance(one, str) for one in planes):
        raise ConfigError("planes", planes, "must be a list of strings", where=path)
    if text := environment.get(PLANES, ""):
        planes, why = [one.strip() for one in text.split(",") if one.strip()], f"set by {PLANES}"
        if not planes:
            raise ConfigError(PLANES, text, "must be addresses or interfaces, with commas between them")
    if twice := [one for one in planes if planes.count(one) > 1]:
        raise ConfigError(
            PLANES if text else "planes", ",".join(planes), f"must name each plane once, and names {twice[0]} twice"
        )
    device = written.device(table.get("device", {}), path)
    if here := FabricHost.from_environment(environment):
        why = why if planes else f"those of host {here.host} of {here.description.name}"
        config = DeviceConfig(**here.settings(**device))
        return EnvSettings(tuple(planes or here.planes), config, here.paths, device, why)
    return EnvSettings(tuple(planes), DeviceConfig(**device), None, device, why if planes else "")


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Variables that are set and not known."""
    found = []
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in VARIABLES and name not in OF_TESTS:
            meant = did_you_mean(name.removeprefix(PREFIX), [known.removeprefix(PREFIX) for known in VARIABLES], PREFIX)
            found.append(f"{name} is set, and nothing reads it{f'. {meant}' if meant else ''}")
    file, number = (bool(environment.get(name)) for name in (fabric_host.FILE, fabric_host.NUMBER))
    if file != number:
        there, missing = (fabric_host.FILE, fabric_host.NUMBER) if file else (fabric_host.NUMBER, fabric_host.FILE)
        found.append(f"{there} is set without {missing}, and means nothing alone: set both, or neither")
    return found


def warn_of_unknown_variables(environment: Mapping[str, str] = os.environ) -> None:
    """One warning for each, once in a process; with SOFTMRC_DEBUG also debug messages on stderr."""
    if environment.get(DEBUG, "").lower() in YES:
        _talk()
    for words in unknown_variables(environment):
        if words not in _said:
            _said.add(words)
            log.warning(words)


def _talk() -> None:
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("softmrc: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.DEBUG)
        log.propagate = False
