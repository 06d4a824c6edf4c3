"""Tests of what a process costs and says. Under a sanitizer (`tools/sanitize.py`) that is not ours alone: it keeps
freed memory, holds descriptors, and writes to stderr."""

from __future__ import annotations

import os

import pytest

NOT_UNDER_SANITIZERS = pytest.mark.skipif(
    "SOFTMRC_SANITIZER" in os.environ, reason="a sanitizer's memory, descriptors and words are not ours"
)
