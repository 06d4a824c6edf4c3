"""`softmrc bench allreduce` on CUDA tensors, where there is no GPU: its loop over CPU tensors, and what it says."""

from __future__ import annotations

import pytest
import torch

from softmrc.bench import cuda
from softmrc.bench.allreduce import _summary, shown


def test_each_size_is_measured_beside_gloo_and_time_is_bounded() -> None:
    found = cuda.beside("cpu", {"64KiB": (65536, 2), "8B": (8, 2)}, 10**9, 0.5, _summary)
    assert set(found) == {"64KiB", "8B"}
    assert set(found["64KiB"]) == {"gbytes_s", "gloo", "ratio"} and set(found["8B"]) == {"us", "gloo", "ratio"}
    assert all(value > 0 for row in found.values() for value in row.values())
    assert shown({"links": {}, "cuda": found})["cuda.64KiB"] == found["64KiB"]["ratio"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_a_reason() -> None:
    assert cuda.measure(1, _summary) == {"cuda_not_measured": "CUDA tensors are not measured: torch sees no GPU."}


def test_ranks_that_die_are_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "reason_not", lambda: None)
    monkeypatch.setattr(cuda, "STEPS", {"8B": (8, 1)})
    if torch.cuda.is_available():
        pytest.skip("there is a GPU: nobody dies")
    assert "died" in cuda.measure(1, _summary)["cuda_not_measured"]
