"""`softmrc bench allreduce` compared with Gloo: its ratios, its rounds, and what it reports as not measured."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from softmrc.errors import InternalError
from softmrc_bench import allreduce, cuda
from softmrc_bench.allreduce import _summary, shown


def test_a_ratio_is_of_speeds_where_messages_are_large_and_of_times_where_they_are_small() -> None:
    """Round by round: ours took 1 and 2 ms, Gloo 3 and 4."""
    rows = [(1e-3, 3e-3), (2e-3, 4e-3)]
    large, small = _summary(1 << 20, rows), _summary(65536, rows)
    assert large == pytest.approx({"gbytes_s": (1 << 20) / 1.5e6, "gloo": (1 << 20) / 3.5e6, "ratio": 2.5})
    assert small == pytest.approx({"us": 1500.0, "gloo": 3500.0, "ratio": (1 / 3 + 1 / 2) / 2})
    assert shown({"links": {}, "cuda": {"1MiB": large}}) == {"cuda.1MiB": pytest.approx(2.5)}
    assert _summary(8, [(1e-3, None)]) == {"us": 1000.0, "gloo": None, "ratio": None}


class Pretended:
    """Ranks that take as long as their backend is said to, and write down their orders."""

    asked: list[tuple[str, int, int]]

    def __init__(self, commands: list[list[str]]) -> None:
        (self.backend,) = {word for command in commands for word in command if word in ("mrc", "gloo")}

    def __enter__(self) -> Pretended:
        return self

    def __exit__(self, *_: object) -> None: ...

    def times(self, nbytes: int, count: int) -> list[float]:
        self.asked.append((self.backend, nbytes, count))
        return [{"mrc": 1.0, "gloo": 2.0}[self.backend]] * count


@pytest.mark.parametrize(("limit_s", "rounds"), [(0.0, 1), (1e9, 3)])
def test_there_is_a_round_of_each_however_long_it_takes_and_no_more_than_were_asked_for(
    monkeypatch: pytest.MonkeyPatch, limit_s: float, rounds: int
) -> None:
    monkeypatch.setattr(Pretended, "asked", [], raising=False)
    monkeypatch.setattr(cuda, "BenchRanks", Pretended)
    found = cuda.beside("cuda:0", {"1MiB": (1 << 20, 5)}, 3, limit_s, _summary)
    assert found["1MiB"]["ratio"] == 2.0
    turn = [(backend, 1 << 20, 5) for backend in ("mrc", "gloo")]
    assert Pretended.asked == [("mrc", 1 << 20, 2), ("gloo", 1 << 20, 2), *turn * rounds]


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


def test_what_cannot_be_measured_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: Any) -> Any:
        raise InternalError("a rank of the measurement died: x")

    monkeypatch.setattr(cuda, "beside", die)
    for reason, said in (("torch sees no GPU", "torch sees no GPU"), (None, "a rank of the measurement died: x")):
        monkeypatch.setattr(cuda, "reason_not", lambda reason=reason: reason)
        assert cuda.measure(1, _summary) == {"cuda_not_measured": f"CUDA tensors are not measured: {said}."}


# Real processes: nothing else starts the ranks of this measurement where there is no GPU.
@pytest.mark.process
def test_real_ranks_answer_and_torch_is_asked_for_gpus() -> None:
    found = cuda.beside("cpu", {"64KiB": (65536, 2)}, 1, 60.0, _summary)
    assert set(found["64KiB"]) == {"us", "gloo", "ratio"}
    assert cuda.reason_not() == (None if torch.cuda.is_available() else "torch sees no GPU")
