"""What keeps a rank from joining, by its settings or its machine, is a RuntimeError, as everything else is."""

from __future__ import annotations

import errno
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from softmrc.errors import ConfigError, DeviceError
from softmrc.torch import backend, rendezvous


def join() -> Any:
    options = SimpleNamespace(
        store=dist.HashStore(), group_rank=0, group_size=1, timeout=timedelta(seconds=5), global_ranks_in_group=[]
    )
    return backend.MrcProcessGroup(options)


def test_a_setting_that_makes_no_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTMRC_PLANES", "no such interface")
    with pytest.raises(RuntimeError, match="no such interface") as raised:
        join()
    assert isinstance(raised.value, ConfigError | DeviceError)


@pytest.mark.parametrize(
    "error", [ConfigError("seal", "on", "needs a shared secret"), DeviceError(errno.EMFILE, "cannot make a socket")]
)
def test_it_says_the_same_and_is_of_the_same_class(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: Any, **more: Any) -> Any:
        raise error

    monkeypatch.setattr(rendezvous, "made_for", fail)
    with pytest.raises(RuntimeError) as raised:
        join()
    assert str(raised.value) == str(error) and isinstance(raised.value, type(error))
    assert getattr(raised.value, "errno", None) == getattr(error, "errno", None)
