"""Train a small model on GPUs with DistributedDataParallel over NCCL, whose data goes by every plane. Nothing here is
about MRC, it is all in the environment:

NCCL_NET_PLUGIN=$(softmrc nccl-plugin) NCCL_NET=SoftMRC torchrun --nproc-per-node 8 --nnodes 2 … examples/nccl_ddp.py
"""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1)).cuda())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    data = torch.Generator("cuda").manual_seed(rank)  # every rank has its own
    for step in range(100):
        inputs = torch.randn(128, 1024, generator=data, device="cuda")
        loss = nn.functional.mse_loss(model(inputs), inputs.square().mean(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
