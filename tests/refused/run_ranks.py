"""Two ranks go on reducing, and callbacks are called, whatever is refused to their lanes once."""

from __future__ import annotations

import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor

import calls
import numpy as np
from refusing import LIMIT_S, refused, said, times_refused

from softmrc.collectives import DirectoryStore, Group

PLANES = ["127.0.0.1", "127.0.0.2"]
WORDS = 1 << 16


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        store = DirectoryStore(folder)
        joining = [pool.submit(Group.join, store, rank, 2, planes=PLANES, timeout_s=LIMIT_S) for rank in range(2)]
        groups = [one.result(LIMIT_S) for one in joining]
        rows = [np.zeros(WORDS, np.float32) for _ in groups]

        def reduce() -> None:
            for rank, row in enumerate(rows):
                row[:] = rank + 1
            works = [group.all_reduce(row) for group, row in zip(groups, rows, strict=True)]
            called = [threading.Event() for _ in works]
            for work, event in zip(works, called, strict=True):
                work.add_done_callback(lambda _, event=event: event.set())
            assert all(event.wait(LIMIT_S) for event in called), "callbacks"
            for work, row in zip(works, rows, strict=True):
                work.wait(LIMIT_S)
                assert (row == 3).all()

        reduce()
        for (thread, call), errors in calls.RANKS.items():
            if call == "train" and not all(row["has_gso"] for row in groups[0].device.planes()):
                continue
            for error in errors:
                print(said(call, error, thread), flush=True)
                with refused(call, error, thread):
                    for _ in range(2000):
                        reduce()
                        if times_refused(call):
                            break
                    assert times_refused(call), "it is never refused"
                reduce()
        for group in groups:
            group.close()
    print("done")


main(*sys.argv[1:])
