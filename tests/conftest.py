"""What holds for every test: its child processes import nothing from the folder they are started in, and no other
module (one with an agent, say) finds its devices' control sockets. A run ends with a line for each reason why tests
were skipped; in CI a program that is not installed is a failure. Tests that fail since this build has no libcrypto, and
so no secrets, no keys and no NCCL plugin, are skipped."""

from __future__ import annotations

import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

import needs
from softmrc import _core

WITHOUT = "built without libcrypto"
os.environ["PYTHONSAFEPATH"] = "1"
# Started in the background of a shell, or by nohup, this process ignores SIGINT, and would have its children do so too.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
hypothesis.settings.register_profile("on any machine", deadline=None)  # a busy one takes its time
hypothesis.settings.load_profile("on any machine")


@pytest.fixture(scope="module", autouse=True)
def _control_sockets_of_the_module() -> Iterator[None]:
    """Commands that look for running devices find those of the same module: others may not be collected yet. These
    may open a control socket there while the folder is removed."""
    with (
        tempfile.TemporaryDirectory(prefix="softmrc-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("XDG_RUNTIME_DIR", folder)
        yield


def why_skipped(report: Any) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report: Any = yield
    if report.failed and not _core.can_seal() and not os.environ.get("CI") and WITHOUT in str(report.longrepr):
        report.outcome, report.longrepr = "skipped", (__file__, 0, f"{WITHOUT} (on Debian: apt install libssl-dev)")
    if report.skipped and os.environ.get("CI") and why_skipped(report).startswith(needs.NOT_INSTALLED):
        report.outcome, report.longrepr = "failed", f"{why_skipped(report)}: CI must have it"
    return report  # type: ignore[return-value]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reasons = Counter(map(why_skipped, terminalreporter.stats.get("skipped", [])))
    if not reasons:
        return
    terminalreporter.section("skipped", sep="-")
    for reason, count in sorted(reasons.items(), key=lambda one: (-one[1], one[0])):
        terminalreporter.write_line(f"{count:5} test{'s' if count > 1 else ' '}  {reason}")
    if any(reason.startswith(needs.NOT_INSTALLED) for reason in reasons):
        terminalreporter.write_line("`make tools` installs all of these on Debian.")
