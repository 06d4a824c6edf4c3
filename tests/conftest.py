"""What holds for every test: its children import nothing from the folder they are started in, and nobody beside it
(an agent of another test, say) finds its devices' control sockets. What every run ends with: the names of the tests
that did not run, and why."""

from __future__ import annotations

import os
import tempfile
from typing import Any

os.environ["PYTHONSAFEPATH"] = "1"
_runtime = tempfile.TemporaryDirectory(prefix="softmrc-tests-")  # each process that runs tests has its own
os.environ["XDG_RUNTIME_DIR"] = _runtime.name


def pytest_terminal_summary(terminalreporter: Any) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if not skipped:
        return
    terminalreporter.section("not run", sep="-")
    for report in sorted(skipped, key=lambda r: r.nodeid):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        terminalreporter.write_line(f"{report.nodeid}: {reason.removeprefix('Skipped: ')}")
