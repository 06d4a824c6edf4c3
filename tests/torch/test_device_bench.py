"""`softmrc bench allreduce` on CUDA tensors, where there is no GPU: its loop over CPU tensors, and what it says."""

from __future__ import annotations

import pytest
import torch

from softmrc.bench import allreduce, cuda
from softmrc.bench.allreduce import _summary, shown


def test_each_size_is_measured_beside_gloo_and_time_is_bounded() -> None:
    found = cuda.beside("cpu", {"1MiB": (1 << 20, 2), "64KiB": (65536, 2)}, 10**9, 0.5, _summary)
    assert set(found) == {"1MiB", "64KiB"}
    assert set(found["1MiB"]) == {"gbytes_s", "gloo", "ratio"} and set(found["64KiB"]) == {"us", "gloo", "ratio"}
    assert all(value > 0 for row in found.values() for value in row.values())
    assert shown({"links": {}, "cuda": found})["cuda.1MiB"] == found["1MiB"]["ratio"]


def test_ranks_that_find_no_cores_are_marked_and_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    monkeypatch.setattr(allreduce, "_beside_gloo", lambda size, rounds: ran.append(size) or {"8B": {"ratio": 0.5}})
    for cores, wanted in ((1, [2, 4]), (8, [2, 4, 8]), (16, [2, 4, 8, 16])):
        ran.clear()
        monkeypatch.setattr(allreduce.os, "sched_getaffinity", lambda _, n=cores: set(range(n)))
        found = allreduce._every_size(1)
        assert set(found) == {"ranks2", "ranks4", "ranks8", "ranks16"} and ran == wanted
        assert [name for name, row in found.items() if "not_measured" in row] == [
            f"ranks{size}" for size in allreduce.SIZES if size not in wanted
        ]
        assert set(shown({**found, "links": {}})) == {f"ranks{size}.8B" for size in wanted}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_a_reason() -> None:
    assert cuda.measure(1, _summary) == {"cuda_not_measured": "CUDA tensors are not measured: torch sees no GPU."}


def test_ranks_that_die_are_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "reason_not", lambda: None)
    monkeypatch.setattr(cuda, "STEPS", {"8B": (8, 1)})
    if torch.cuda.is_available():
        pytest.skip("there is a GPU: nobody dies")
    assert "died" in cuda.measure(1, _summary)["cuda_not_measured"]
