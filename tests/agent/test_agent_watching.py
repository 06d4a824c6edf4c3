"""What watching costs can be measured: the figure, and that the device was watched at all."""

from __future__ import annotations

import pytest

from softmrc import _core
from softmrc.bench import operate, watching


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(_core, "open_control"), reason="the devices of this build have no control sockets")
def test_the_cost_of_watching_is_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "ROUND_S", 0.3)
    found = watching.watch_cost(1)
    assert 0 <= found["watch_cost"] <= 1 and found["watched_bps"] > 0 and found["unwatched_bps"] > 0


def test_every_figure_has_a_bound() -> None:
    keys = {figure.key for figure in operate.FIGURES}
    wanted = {"watch_cost", "mapper_precision", "mapper_recall", "mapper_seconds", "explained"}
    assert wanted <= keys and all(figure.bound for figure in operate.FIGURES)
