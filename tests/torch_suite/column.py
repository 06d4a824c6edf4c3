"""One column of the table: torch's own tests on one backend, one after the other.

    python -m tests.torch_suite.column mrc wide 4 < names of tests       # prints a line of JSON for each

The tests are those inside the installed torch. They choose by the name of the backend what they run: *narrow* is what
they leave to a backend that they have never heard of; *wide* is what they ask of Gloo, with the same for us, and also
what they ask of MPI alone, which Gloo has learned since. *rpc* is DDP under remote calls and distributed autograd.
Ranks are forked, so that torch is imported once.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
import unittest
from collections.abc import Callable
from types import ModuleType
from typing import Any, TextIO

PATIENCE_S = 120
OPENED = ("Only MPI supports CPU all_to_all", "Only MPI supports all_to_all")


def cases(backend: str, width: str, size: int) -> list[type[unittest.TestCase]]:
    """Torch's tests, for this backend."""
    os.environ.update(OMP_NUM_THREADS="1")
    os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", str(PATIENCE_S))
    found = remote(backend) if width == "rpc" else own(loaded(backend, width, size))
    for one in found:
        one.setUp = forked(one.setUp)  # type: ignore[method-assign]
    return found


def forked(set_up: Callable[[Any], None]) -> Callable[[Any], None]:
    def set_up_and_fork(self: Any) -> None:
        set_up(self)
        self._start_processes(multiprocessing.get_context("fork").Process)

    return set_up_and_fork


def remote(backend: str) -> list[type[unittest.TestCase]]:
    """They name Gloo where they make a group."""
    import torch.distributed as dist
    from torch.testing._internal.common_distributed import MultiProcessTestCase
    from torch.testing._internal.distributed import ddp_under_dist_autograd_test as tests
    from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import TensorPipeRpcAgentTestFixture

    make = dist.init_process_group
    dist.init_process_group = lambda **named: make(**{**named, "backend": backend})
    kinds = (tests.DdpUnderDistAutogradTest, tests.DdpComparisonTest)
    return [type(kind.__name__, (kind, TensorPipeRpcAgentTestFixture, MultiProcessTestCase), {}) for kind in kinds]


def own(tests: ModuleType) -> list[type[unittest.TestCase]]:
    return [type("Suite", (tests.TestDistBackend, tests.DistributedTest._DistTestBase), {})]


def loaded(backend: str, width: str, size: int) -> ModuleType:
    is_wide = width == "wide"
    # What a test is for is decided while its class is made, by the name in the environment.
    os.environ.update(BACKEND="gloo" if is_wide else backend, WORLD_SIZE=str(size))
    import torch.testing._internal.common_utils as common
    from torch.testing._internal import common_distributed

    for feature in ("ddp", "subgroup", "plugin"):
        common_distributed.DistTestCases.backend_feature[feature].add(backend)
    if is_wide:
        refuses = common.skip_but_pass_in_sandcastle_if
        common.skip_but_pass_in_sandcastle_if = lambda condition, reason: refuses(
            condition and not reason.startswith(OPENED), reason
        )
    from torch.testing._internal.distributed import distributed_test

    import softmrc.torch.backend  # noqa: F401 (once, and not in every rank)

    if is_wide and backend != "gloo":
        stand_in(distributed_test, backend)
    return distributed_test


class AsGloo(str):
    """The name of a backend, which equals Gloo's where torch compares it."""

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) or other == "gloo"

    __hash__ = str.__hash__


def stand_in(tests: ModuleType, backend: str) -> None:
    """Let the tests that ask for Gloo meet another backend, and believe that it can do what Gloo can, but for ranges in
    the profiler that reach from the call to the end."""
    import torch.distributed as dist

    from softmrc.torch import monitored_barrier

    tests.BACKEND = AsGloo(backend)  # type: ignore[attr-defined]
    dist.monitored_barrier = monitored_barrier  # torch's own refuses every backend but Gloo by its name


def outcome(case: type[unittest.TestCase], name: str) -> dict[str, Any]:
    """How one test ended, in how many seconds, and what was said."""
    result, began = unittest.TestResult(), time.monotonic()
    case(name).run(result)
    said = result.errors + result.failures + result.skipped
    ended = "fail" if result.errors or result.failures else "skip" if result.skipped else "pass"
    return {
        "test": name,
        "ended": ended,
        "seconds": round(time.monotonic() - began, 1),
        "words": said[0][1][-6000:] if said else "",
    }


def main(backend: str, width: str, size: str) -> None:
    out: TextIO = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what tests print is not ours
    found = cases(backend, width, int(size))
    tests = {name: case for case in found for name in unittest.TestLoader().getTestCaseNames(case)}
    names = [line.strip() for line in sys.stdin]
    for name in names or tests:
        print(json.dumps(outcome(tests.get(name, found[0]), name) if names else {"test": name}), file=out, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
