"""A rank over Gloo, to compare with: python -m softmrc_bench.gloo_rank STORE RANK SIZE [INTERFACE]"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from softmrc_bench.ranks import serve_rank


def main(store: str, rank: str, size: str, interface: str = "lo") -> None:
    """Join, then carry out orders."""
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}/gloo", rank=int(rank), world_size=int(size), timeout=timedelta(seconds=60)
    )
    serve_rank(lambda elements: torch.zeros(elements), dist.all_reduce, {})
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
