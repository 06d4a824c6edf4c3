"""SRv6 on sockets: packets really go to the carriers that the EVs of a profile are. Needs root, for a namespace."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import needs
from softmrc.config import EvFormat, EvMode, EvProfile
from softmrc.device import Device
from softmrc.errors import ConfigError


@cache
def found() -> dict[str, dict[str, Any]]:
    script = Path(__file__).parent / "srv6_sender.py"
    done = subprocess.run(
        ["unshare", "-n", sys.executable, script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs.in_namespaces
@pytest.mark.parametrize("kind", ["explicit", "expanded"])
# spec: ev-modes
def test_packets_leave_along_the_values_of_the_profile(kind: str) -> None:
    run = found()[kind]
    assert len(run["listed"]) == 4 and run["before"] == run["listed"]
    assert run["new"] in run["after"] and run["old"] not in run["after"]


@needs.in_namespaces
def test_a_path_that_sockets_cannot_send_along_is_refused() -> None:
    too_long, crooked = found()["explicit"]["errors"]
    assert "segment routing header" in too_long and "checksum" in crooked


def test_a_device_without_srv6_takes_no_srv6_profile() -> None:
    with Device(["127.0.0.1"]) as device:
        qp = device.create_qp(device.create_cq())
        profile = EvProfile(mode=EvMode.EXPLICIT, format=EvFormat.SRV6, count=1, entries=((bytes(16), 0),))
        with pytest.raises(ConfigError, match="srv6=True"):
            qp.init(ev_profile=profile)
