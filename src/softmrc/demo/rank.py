"""One rank of the demo: trains and injects faults on command, and reports its progress.

Orders come as lines of JSON on standard input, reports leave as lines of JSON on standard output:

    {"do": "train", "run": "mrc", "backend": "mrc", "steps": 200}     → "begun", "step" …, "done"
    {"do": "faults", "plane": 2, "faults": {"black_hole": true}}
    {"do": "port", "plane": 1, "up": false}

The end of the input is the end of the process.
"""

from __future__ import annotations

import hashlib
import os
import queue
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from softmrc._support.subprocesses import read_messages, write_message
from softmrc.demo.model import Adder, loss_of, sums
from softmrc.engine import EvState
from softmrc.torch import device_of, group_of

LOOK_EVERY_S = 0.025
TIMEOUT = timedelta(seconds=60)
BUCKET_MB = 1.0  # several reductions a step, under way while the backward pass still computes
COUNTERS = ("packets_sent", "packets_retransmitted", "loss_spurious", "evs_demoted", "evs_revived", "timeouts")
_kept: list[Any] = []  # groups that are left
_is_training = threading.Event()


def listen(orders: queue.Queue[dict[str, Any] | None]) -> None:
    """Faults happen at once; training waits for its turn."""
    for order in read_messages():
        if order["do"] == "train":
            orders.put(order)
            continue
        try:
            if order["do"] == "faults":
                device_of().set_faults(order["plane"], **order["faults"])
            elif order["do"] == "port":
                device_of().set_port(order["plane"], order["up"])
        except Exception:
            if _is_training.is_set():  # else the job ended before its last fault, and its device with it
                raise
    orders.put(None)
    time.sleep(1)
    os._exit(1)  # the process that gave orders is gone, and training has not ended by itself


class NetworkSampler:
    """Observes planes and paths during the training."""

    def __init__(self) -> None:
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.wait(LOOK_EVERY_S):
            self.look()

    def look(self) -> None:
        planes = device_of().planes()
        pairs = [qp for strands in group_of().pairs.values() for pair in strands for qp in (pair.messages, pair.bulk)]
        states = np.zeros((len(planes), len(EvState)), dtype=int)
        for evs in [qp.evs() for qp in pairs]:
            np.add.at(states, (evs["port"], evs["state"]), 1)
        for state, plane in zip(states, planes, strict=True):
            if not plane["is_up"]:  # none of its paths is used, whatever their states
                state[:] = np.where(np.arange(len(EvState)) == EvState.ASSUMED_BAD.value, state.sum(), 0)
        stats = [qp.stats() for qp in pairs]
        write_message(
            kind="look",
            at=time.monotonic(),
            bytes=[plane["bytes_sent"] for plane in planes],
            up=[bool(plane["is_up"]) for plane in planes],
            states=states.tolist(),
            counters={name: sum(one[name] for one in stats) for name in COUNTERS},
        )

    def stop(self) -> None:
        self._ending.set()
        self._thread.join()


def digest(model: torch.nn.Module) -> str:
    """Of every bit of the weights."""
    found = hashlib.sha256()
    for one in model.parameters():
        found.update(one.detach().numpy().tobytes())
    return found.hexdigest()


def train(order: dict[str, Any], store: Any, rank: int, size: int) -> None:
    torch.manual_seed(0)
    place = dist.PrefixStore(order["run"], store)
    dist.init_process_group(order["backend"], store=place, rank=rank, world_size=size, timeout=TIMEOUT)
    model = DistributedDataParallel(Adder(), bucket_cap_mb=BUCKET_MB)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    dist.barrier()
    watch = NetworkSampler() if order["backend"] == "mrc" else None
    _is_training.set()
    write_message(kind="begun", at=time.monotonic())
    for step in range(order["steps"]):
        start = time.monotonic()
        loss = loss_of(model, sums(step, rank))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        end = time.monotonic()
        write_message(kind="step", step=step, at=end, ms=(end - start) * 1e3, loss=float(loss.detach()))
    if watch is not None:
        watch.stop()
        watch.look()
    _is_training.clear()
    write_message(
        kind="done", at=time.monotonic(), digest=digest(model), parameters=sum(p.numel() for p in model.parameters())
    )
    dist.barrier()
    # Who drops the last of a Gloo group joins its threads with the interpreter's lock in hand, and one of them may just
    # want it: now and then neither goes on. It is kept until the process ends.
    if order["backend"] == "gloo":
        _kept.append(dist.group.WORLD)
    dist.destroy_process_group()


def warm_up() -> None:
    """What torch does once in a process is no part of the first job."""
    model = Adder()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(2):
        loss_of(model, sums(step, 0)).backward()
        optimizer.step()


def main() -> None:
    rank, size, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    orders: queue.Queue[dict[str, Any] | None] = queue.Queue()
    threading.Thread(target=listen, args=(orders,), daemon=True).start()
    store = dist.FileStore(path, size)
    warm_up()
    write_message(kind="ready", torch=torch.__version__)
    while (order := orders.get()) is not None:
        try:
            train(order, store, rank, size)
        except Exception as error:
            write_message(kind="failed", why=f"{type(error).__name__}: {error}")
            raise
    os._exit(0) if not dist.is_initialized() else None


if __name__ == "__main__":
    main()
