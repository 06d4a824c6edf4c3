"""Starting other interpreters, with the packages of this one and without importing from the current folder.

Python would otherwise look for modules there first, and a folder may be anybody's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def python_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of ours in a process of its own."""
    return [sys.executable, "-P", "-m", module, *arguments]


@contextmanager
def safe_spawning() -> Iterator[None]:
    """The same for processes that multiprocessing spawns: it takes no options, only this interpreter's and what is in
    the environment."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before
