"""Ranks that meet in a TCPStore which rank 0 hosts, as with `torchrun`: it ends with rank 0's process."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

SECRET, PATIENCE_S, LATE_S = "SOFTMRC_SECRET", 120.0, 3.0
RANK = """
import sys
import time
from datetime import timedelta
import torch.distributed as dist
import softmrc.torch
from softmrc.collectives import store_rendezvous
rank, port, version = (int(one) for one in sys.argv[1:4])
kind, late_s, file = sys.argv[4], float(sys.argv[5]), sys.argv[6]
store_rendezvous.UNPROVED_S = 1.0
store_rendezvous.StoreRendezvous.VERSION += version
if kind == "file":
    store = dist.FileStore(file, 2)
else:
    store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False, use_libuv=kind != "no libuv")
    print(store.port, flush=True)
time.sleep(late_s)
dist.init_process_group(
    "mrc", store=dist.PrefixStore("job", store), rank=rank, world_size=2, timeout=timedelta(seconds=60)
)
dist.barrier()
print("joined", flush=True)
dist.destroy_process_group()
"""


def start(rank: int, *arguments: Any, secret: str = "") -> subprocess.Popen[str]:
    env = {key: value for key, value in os.environ.items() if key not in (SECRET, "SOFTMRC_PLANES")}
    env |= {SECRET: secret} if secret else {}
    command = [sys.executable, "-c", RANK, str(rank), *map(str, arguments)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def outputs(
    kind: str, late_s: float = 0.0, versions: Any = (0, 0), secrets: Any = ("", ""), file: str = ""
) -> list[str]:
    """What both ranks print; rank 1 joins so much later."""
    processes = [start(0, 0, versions[0], kind, 0.0, file, secret=secrets[0])]
    try:
        assert processes[0].stdout is not None
        port = 0 if kind == "file" else int(processes[0].stdout.readline())
        processes.append(start(1, port, versions[1], kind, late_s, file, secret=secrets[1]))
        with ThreadPoolExecutor(2) as pool:
            return [found[0] for found in pool.map(lambda one: one.communicate(timeout=PATIENCE_S), processes)]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.process
@pytest.mark.parametrize("kind", ["libuv", "no libuv", "file"])
def test_no_warning_is_printed_while_a_rank_is_late(kind: str, tmp_path: Any) -> None:
    first, second = outputs(kind, late_s=LATE_S, file=str(tmp_path / "store"))
    assert first == "joined\n", first
    assert second.splitlines()[-1] == "joined" and "[W" not in second, second


@pytest.mark.process
@pytest.mark.parametrize(
    ("secrets", "words"),
    [
        (("known to rank 0", "known to rank 1"), "a record proved with another secret"),
        (("known to rank 0", ""), "a record proved with a secret, which this rank does not have"),
        (("", "known to rank 1"), "a record not proved with the secret"),
    ],
    ids=["different", "rank 0 alone", "rank 1 alone"],
)
def test_both_ranks_report_that_their_secrets_differ(secrets: tuple[str, str], words: str) -> None:
    first, second = outputs("libuv", secrets=secrets)
    assert "rank 1 is refused: softmrc/mrc/record/" in first and "set SOFTMRC_SECRET alike for all ranks" in first
    assert "rank 0 is refused: softmrc/mrc/nonce holds" in second and words in second, second
    assert "rank 0, unauthenticated: rank 1 is refused: softmrc/mrc/record/" in second, second


@pytest.mark.process
@pytest.mark.parametrize("newer", [0, 1])
def test_both_ranks_report_that_their_versions_differ(newer: int) -> None:
    for output in outputs("libuv", versions=(1 - newer, newer)):
        assert "rank 1 runs another version of SoftMRC" in output and "install the same for all ranks" in output, output
