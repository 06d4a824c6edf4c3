"""A rank with tensors on a device, over any backend of torch, for measurements.

python -m softmrc_bench.device_rank                                  how many GPUs torch sees
python -m softmrc_bench.device_rank BACKEND STORE RANK SIZE DEVICE   one rank; DEVICE as torch names it
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from softmrc_bench.ranks import serve_rank

TIMEOUT_S = 15  # of everything, so that a measurement whose peer is gone ends


def main(backend: str, store: str, rank: str, size: str, device: str) -> None:
    """Join, then carry out orders."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    where = torch.device(device)
    dist.init_process_group(
        backend,
        init_method=f"file://{store}/{backend}",
        rank=int(rank),
        world_size=int(size),
        timeout=timedelta(seconds=TIMEOUT_S),
    )

    def all_reduce(tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor)
        if where.type == "cuda":
            torch.cuda.synchronize(where)

    serve_rank(lambda elements: torch.zeros(elements, device=where), all_reduce, {})
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(*sys.argv[1:])
    else:
        print(json.dumps({"devices": torch.cuda.device_count()}))
