"""The committed seeds of the fuzzer are those that the golden packets make."""

from __future__ import annotations

import importlib.util
from pathlib import Path

FUZZ = Path(__file__).parents[2] / "fuzz"


def test_the_seeds_are_fresh() -> None:
    spec = importlib.util.spec_from_file_location("seed", FUZZ / "seed.py")
    assert spec is not None and spec.loader is not None
    seed = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(seed)
    for name, data in seed.seeds().items():
        path = FUZZ / "corpus" / "parse" / name
        assert path.exists() and path.read_bytes() == data, f"{name} is stale; run python fuzz/seed.py"
