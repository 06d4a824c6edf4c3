"""A process without the secret that can write torch's store, and claims to be a rank of a job that has one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch.distributed as dist

SECRET, PATIENCE_S = "SOFTMRC_SECRET", 120.0
RANK = """
import sys
from datetime import timedelta
import torch
import torch.distributed as dist
import softmrc.torch
from softmrc.collectives import store_rendezvous
port, rank, patience_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
store_rendezvous.UNPROVED_S = store_rendezvous.OLDER_UNPROVED_S = patience_s
store = dist.TCPStore("127.0.0.1", port, is_master=False)
print("joins", flush=True)
dist.init_process_group("mrc", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
values = torch.full((1000,), 10.0 ** rank)
dist.all_reduce(values)
print("reduced", values[-1].item(), flush=True)
dist.destroy_process_group()
"""


@contextmanager
def rank_of(port: int, rank: int, secret: str | None, patience_s: float) -> Iterator[subprocess.Popen[str]]:
    env = {key: value for key, value in os.environ.items() if key not in (SECRET, "SOFTMRC_PLANES")}
    env["LOCAL_WORLD_SIZE"] = "1"  # of a job on two hosts: whether a rank is here, it says itself
    if secret is not None:
        env[SECRET] = secret
    arguments = [sys.executable, "-c", RANK, str(port), str(rank), str(patience_s)]
    process = subprocess.Popen(arguments, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: Any) -> str:
    text: str = process.communicate(timeout=PATIENCE_S)[0]
    return text


@pytest.mark.process
@pytest.mark.parametrize("absent", [0, 1])
def test_where_the_honest_rank_is_absent_nobody_takes_its_place(absent: int) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with (
        rank_of(store.port, 1 - absent, "known to ranks", 1.0) as victim,
        rank_of(store.port, absent, None, 1.0) as attacker,
    ):
        heard, told = said(victim), said(attacker)
    assert "reduced" not in heard + told, told
    assert f"rank {absent} is refused" in heard and "set SOFTMRC_SECRET alike" in heard, heard


@pytest.mark.process
@pytest.mark.parametrize("rank", [0, 1])
def test_who_races_the_honest_rank_is_left_out(rank: int) -> None:
    """It is there first."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with (
        rank_of(store.port, rank, None, 1e4) as attacker,
        rank_of(store.port, 1 - rank, "known to ranks", 1e4) as victim,
    ):
        for early in (attacker, victim):
            assert early.stdout is not None and "joins" in early.stdout.readline()
        until = time.monotonic() + PATIENCE_S
        while not any("/record/" in key for key in store.list_keys()) and time.monotonic() < until:
            time.sleep(0.05)
        with rank_of(store.port, rank, "known to ranks", 1e4) as honest:
            assert "reduced 11.0" in said(victim) and "reduced 11.0" in said(honest)
        attacker.kill()
        assert "reduced" not in said(attacker)
