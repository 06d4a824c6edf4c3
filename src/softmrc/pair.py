"""`softmrc.engine.pair`, by its name in docs/reference/api.md."""

from softmrc.engine.pair import Pair, PairConfig, ProcessConfig

__all__ = ["Pair", "PairConfig", "ProcessConfig"]
