"""What the records of ranks say, and what follows from it, alike for all of them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from collectives.ranks import PLANES, TIMEOUT_S
from softmrc.collectives import CollectiveError, DirectoryStore, Group, rank_info
from softmrc.collectives.rendezvous import GroupJoin
from softmrc.collectives.store_rendezvous import StoreRendezvous
from softmrc.collectives.work import callback_thread
from softmrc.config import planes
from softmrc.device import Device
from udp.loopback import eventually


@pytest.mark.parametrize(("is_firm", "is_guess", "lanes"), [(False, True, 0), (True, True, 3), (False, False, 3)])
def test_a_guess_says_nothing_of_lanes(tmp_path: Path, is_firm: bool, is_guess: bool, lanes: int) -> None:
    """Those of a device that is another one if the guess is wrong; a number that was given counts."""
    store = DirectoryStore(tmp_path)
    StoreRendezvous(store, "group", 0, 2, 0.05).start()
    meets = StoreRendezvous(store, "group", 1, 2, 0.05)
    with Device(["127.0.0.1"], lanes=3) as device, pytest.raises(CollectiveError, match="rank 0 did not join"):
        GroupJoin(meets, 1, 2, device, 0.05, 3, is_firm, is_guess=is_guess).meet(callback_thread().notifier)
    said = store.get(meets.key("record", 1)).partition(b"{")
    assert json.loads(said[1] + said[2])["lanes"] == lanes


def joined(folder: Path, expected: list[list[int]], prepare: Any = lambda rank, device: None) -> list[list[int]]:
    """Whom each rank knows when all have joined, or some time later; `prepare(rank, device)` comes before."""
    size = len(expected)
    store, all_in = DirectoryStore(folder), threading.Barrier(size)

    def live(rank: int) -> list[int]:
        with Device(PLANES) as device:
            prepare(rank, device)
            with Group.join(store, rank, size, device=device, timeout_s=TIMEOUT_S) as group:
                all_in.wait(TIMEOUT_S)
                eventually(lambda: sorted(group.pairs) == expected[rank])
                found = sorted(group.pairs)
                all_in.wait(TIMEOUT_S)
                return found

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(live, range(size)))


NOBODY: list[list[int]] = [[], [], [], []]
AROUND = [[1, 3], [0, 2], [1, 3], [0, 2]]


def test_planes_are_looked_at_by_all_or_by_none(tmp_path: Path) -> None:
    """A rank that gets a query must be there to answer, and so know that it will come."""
    looking = [None, "drop=0.001", None, None]

    def prepare(rank: int, device: Device) -> None:
        device.env_faults = looking[rank]

    assert joined(tmp_path / "fair", NOBODY) == NOBODY
    assert joined(tmp_path / "one has faults", AROUND, prepare) == AROUND


def test_planes_on_loopback_of_several_hosts_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if ranks were on two: what answers there is another host."""
    here = threading.local()
    monkeypatch.setattr(rank_info, "boot", lambda: here.name)

    def prepare(rank: int, device: Device) -> None:
        here.name = f"host {rank // 2}"

    assert joined(tmp_path, AROUND, prepare) == AROUND


def test_what_is_wrong_with_a_configuration_is_said_without_assertions() -> None:
    code = "from softmrc.config import DeviceConfig; DeviceConfig(icrc='yes').checked()"
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode and "icrc" in done.stderr and "true or false" in done.stderr


def test_planes_on_loopback_are_those_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where what it says of its links is somewhere else than it was."""
    assert planes.resolve_all(["127.0.0.1"])[0].speed_bps == 0
    (tmp_path / "lo" / "device").mkdir(parents=True)
    (tmp_path / "lo" / "speed").write_text("100")
    monkeypatch.setattr(planes, "LINKS", tmp_path)
    assert planes.resolve_all(["127.0.0.1"])[0].speed_bps == 100_000_000
