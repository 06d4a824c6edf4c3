"""A job of two ranks that is broken in one of five ways, and what the flight recorders say of it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from softmrc.collectives import DirectoryStore, Group
from softmrc.collectives.ring_file import read
from softmrc.errors import MrcError
from softmrc.ops.explain import Cause, Explainer, Explanation, worst

PLANES = ["127.0.0.1", "127.0.0.2"]
ELEMENTS = 1 << 17
BEFORE, AFTER = 30, 10  # operations around the one that is broken
HOLD_UP_S = 0.12
LOOKED_AT = 4
WAYS = {
    "dead plane": Cause.DEAD,
    "lossy path": Cause.LOSSY,
    "slow plane": Cause.SLOW,
    "slow rank": Cause.LATE,
    "processor stolen": Cause.PROCESSOR,
}


def _lose_the_processor() -> None:
    """Stop this whole process for a while; another one wakes it."""
    pid = os.getpid()
    subprocess.Popen(["sh", "-c", f"sleep {HOLD_UP_S}; kill -CONT {pid}"])
    os.kill(pid, signal.SIGSTOP)


def _rank(folder: str, rank: int, way: str) -> None:
    os.environ |= {"SOFTMRC_RECORD": "1", "XDG_RUNTIME_DIR": folder}
    data = np.ones(ELEMENTS, dtype=np.float32)
    with Group.join(DirectoryStore(f"{folder}/store"), rank, 2, planes=PLANES, timeout_s=60) as group:
        for number in range(1, BEFORE + AFTER + 2):
            time.sleep(0.01)
            if number == BEFORE + 1 and rank == 1:
                _break(group, way)
            group.all_reduce(data).wait(60)
            if number == BEFORE + 1:
                time.sleep(0.1)  # what belongs to it is noted
        group.device.set_faults()


def _break(group: Any, way: str) -> None:
    if way == "dead plane":
        group.device.set_faults(1, black_hole=True)
    elif way == "lossy path":
        group.device.set_faults(1, drop=0.4)
    elif way == "slow plane":
        group.device.set_faults(1, delay_us=60_000)
    elif way == "slow rank":
        time.sleep(HOLD_UP_S)
    else:
        _lose_the_processor()


def verdicts(way: str) -> list[Explanation]:
    """What is said of the first few operations after it was broken in this way: what is broken stays so."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "store").mkdir()
        context = multiprocessing.get_context("spawn")
        ranks = [context.Process(target=_rank, args=(folder, rank, way)) for rank in range(2)]
        for one in ranks:
            one.start()
        for one in ranks:
            one.join(120)
            if one.exitcode is None:
                one.kill()
                one.join()
        if any(one.exitcode for one in ranks):
            raise MrcError(f"a rank of the job with a {way} failed: {[one.exitcode for one in ranks]}")
        explainer = Explainer([read(path) for path in Path(folder, "softmrc").glob("*.flight")])
        return [explainer.explain(number) for number in range(BEFORE + 1, BEFORE + 1 + LOOKED_AT)]


def run(way: str) -> Explanation:
    """Of those, what is said of the one that lost most."""
    return worst(verdicts(way))


def explained(runs: int = 20) -> dict[str, Any]:
    """How many of the five ways are named rightly, over so many runs of each."""
    right = {way: sum(run(way).cause is cause for _ in range(runs)) for way, cause in WAYS.items()}
    return {"explained": sum(right.values()) / (runs * len(WAYS)), "explained_by_way": right}
