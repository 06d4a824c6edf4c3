"""A rank over NCCL, for measurements: python -m softmrc_bench.nccl_rank STORE RANK SIZE. Orders come one JSON object a
line, and so do answers. Which network NCCL uses is in the environment, which it reads once."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from softmrc.demo.model import Adder, loss_of, sums
from softmrc_bench.ranks import serve_rank

COUNTS = (1, 3, 1000, 65_537, 1 << 20, (1 << 24) + 1)
LARGEST = 1 << 26  # of float32: 256 MiB
WARM_UP = 5
BUCKET_MB = 1.0  # several reductions a step
TIMEOUT = timedelta(seconds=60)


def drawn(count: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(count, generator=generator, device="cuda").to(dtype)


def digest(tensor: torch.Tensor) -> str:
    whole = tensor.cpu().contiguous().view(torch.uint8).numpy()
    return hashlib.sha256(whole.tobytes()).hexdigest()[:16]


def collectives(rank: int, size: int) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Each gives this rank's result for its part, which divides by the number of ranks where it has to."""
    other = 1 - rank

    def all_reduce(part: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(part)
        return part

    def all_gather(part: torch.Tensor) -> torch.Tensor:
        whole = torch.empty(size * part.numel(), dtype=part.dtype, device="cuda")
        dist.all_gather_into_tensor(whole, part)
        return whole

    def reduce_scatter(part: torch.Tensor) -> torch.Tensor:
        mine = torch.empty_like(part)
        dist.reduce_scatter_tensor(mine, part.repeat(size))
        return mine

    def broadcast(part: torch.Tensor) -> torch.Tensor:
        dist.broadcast(part, 0)
        return part

    def all_to_all(part: torch.Tensor) -> torch.Tensor:
        whole = torch.empty(size * part.numel(), dtype=part.dtype, device="cuda")
        dist.all_to_all_single(whole, part.repeat(size) * (rank + 1))
        return whole

    def send_recv(part: torch.Tensor) -> torch.Tensor:
        came = torch.empty_like(part)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, part, other), dist.P2POp(dist.irecv, came, other)]):
            work.wait()
        return came

    found = (all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, send_recv)
    return {one.__name__: one for one in found}


def results(rank: int, size: int) -> dict[str, str]:
    """A hash of what this rank gets, by collective, type and number of elements."""
    found = {}
    for name, call in collectives(rank, size).items():
        for dtype in (torch.float32, torch.bfloat16):
            for count in COUNTS:
                got = call(drawn(count, dtype, 1000 * count + rank))
                found[f"{name} {str(dtype).removeprefix('torch.')} {count}"] = digest(got)
    largest = drawn(LARGEST, torch.float32, rank)
    dist.all_reduce(largest)
    found[f"all_reduce float32 {LARGEST}"] = digest(largest)
    return found


def train(steps: int) -> dict[str, Any]:
    """The demo's transformer, with DDP. Everything follows from seeds: times of steps, the last loss, the weights."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    for choose in (torch.backends.cuda.enable_flash_sdp, torch.backends.cuda.enable_mem_efficient_sdp):
        choose(False)  # these add up in any order
    torch.manual_seed(0)
    model = DistributedDataParallel(Adder().cuda(), bucket_cap_mb=BUCKET_MB)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    took, loss = [], torch.zeros(())
    for step in range(steps):
        start = time.perf_counter()
        loss = loss_of(model, sums(step, dist.get_rank()).cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        took.append(time.perf_counter() - start)
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return {"times": took, "loss": loss.item(), "digest": digest(weights)}


def main(store: str, rank: str, size: str) -> None:
    """Join, then carry out orders."""
    torch.cuda.set_device(0)

    def join(attempt: int) -> None:
        dist.init_process_group(
            "nccl", init_method=f"file://{store}/nccl-{attempt}", rank=int(rank), world_size=int(size), timeout=TIMEOUT
        )
        dist.all_reduce(torch.ones(1, device="cuda"))
        torch.cuda.synchronize()

    join(0)

    def mean(elements: int, count: int) -> dict[str, Any]:
        """Of so many all-reduces in a row, how long one took."""
        buffer = torch.zeros(elements, device="cuda")
        for _ in range(WARM_UP):
            dist.all_reduce(buffer)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            dist.all_reduce(buffer)
        torch.cuda.synchronize()
        return {"s": (time.perf_counter() - start) / count}

    def again(attempt: int) -> dict[str, Any]:
        """Abort during a collective, and join again."""
        dist.all_reduce(torch.zeros(1 << 24, device="cuda"), async_op=True)
        start = time.perf_counter()
        dist.distributed_c10d._abort_process_group()
        join(attempt)
        return {"s": time.perf_counter() - start}

    def all_reduce(buffer: torch.Tensor) -> None:
        dist.all_reduce(buffer)
        torch.cuda.synchronize()

    orders: dict[str, Callable[..., Any]] = {
        "mean": mean,
        "results": lambda: results(int(rank), int(size)),
        "again": again,
        "train": train,
    }
    serve_rank(lambda elements: torch.zeros(elements, device="cuda"), all_reduce, orders)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
