"""A rank that joins and leaves on order, over ours or over Gloo: how long that takes.

python -m softmrc_bench.join_rank BACKEND PORT RANK SIZE
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from softmrc._support.subprocesses import serve

PATIENCE = timedelta(seconds=120)


def main(backend: str, port: str, rank: str, size: str) -> None:
    """Carry out orders; the rank that keeps the store leaves last."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    me, all_ranks = int(rank), int(size)
    store = dist.TCPStore("127.0.0.1", int(port), all_ranks, is_master=me == 0, timeout=PATIENCE)

    def together(what: str) -> None:
        store.add(what, 1)
        while store.add(what, 0) < all_ranks:
            time.sleep(0.0005)

    def set_up(number: int) -> dict[str, Any]:
        """How long it took here to join, and then to make a second group of the same ranks, until each was used once:
        what is not made before must not count for less."""
        value = torch.ones(1)
        together(f"{number} begins")
        start = time.perf_counter()
        fresh = dist.PrefixStore(f"round {number}", store)
        dist.init_process_group(backend, store=fresh, rank=me, world_size=all_ranks, timeout=PATIENCE)
        dist.all_reduce(value)
        joined = time.perf_counter()
        together(f"{number} has joined")
        again = time.perf_counter()
        dist.all_reduce(value, group=dist.new_group())
        made = time.perf_counter()
        assert value.item() == all_ranks**2
        together(f"{number} is done")
        dist.destroy_process_group()
        return {"setup": joined - start, "new_group": made - again}

    serve({"set_up": set_up})
    store.add("gone", 1)
    while me == 0 and store.add("gone", 0) < all_ranks:
        time.sleep(0.0005)


if __name__ == "__main__":
    main(*sys.argv[1:])
