"""The same with FSDP2: parameters, gradients and optimizer are sharded, and MRC gathers and reduces them.

torchrun --nproc-per-node 4 examples/fsdp2.py
"""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("mrc")
    rank = dist.get_rank()
    device = torch.device("cpu")
    if torch.cuda.is_available():  # where there are GPUs, FSDP2 moves what it shards there
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(4)]
    model = nn.Sequential(nn.Linear(64, 256), *layers, nn.Linear(256, 1))
    for layer in layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(rank)
    for step in range(60):
        inputs = torch.randn(64, 64, generator=data).to(device)
        loss = nn.functional.mse_loss(model(inputs), inputs.square().mean(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    held = sum(one.to_local().numel() for one in model.parameters())
    print(f"rank {rank} holds {held:,} of {sum(one.numel() for one in model.parameters()):,} parameters")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
