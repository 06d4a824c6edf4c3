"""What holds for every test: its children import nothing from the folder they are started in. What every test run ends
with: the names of the tests that did not run, and why."""

from __future__ import annotations

import os
from typing import Any

os.environ["PYTHONSAFEPATH"] = "1"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if not skipped:
        return
    terminalreporter.section("not run", sep="-")
    for report in sorted(skipped, key=lambda r: r.nodeid):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        terminalreporter.write_line(f"{report.nodeid}: {reason.removeprefix('Skipped: ')}")
