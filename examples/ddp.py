"""Train a small model with DistributedDataParallel over MRC; the only line that is about MRC is the first of `main`.

torchrun --nproc-per-node 4 examples/ddp.py [STEPS]
"""

import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("mrc")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(rank)  # every rank has its own
    for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 100):
        inputs = torch.randn(128, 64, generator=data)
        loss = nn.functional.mse_loss(model(inputs), inputs.square().mean(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()  # gradients are reduced over every plane while it runs
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
