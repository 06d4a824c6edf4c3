"""A real Prometheus, as Debian packages it, while a test runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import needs
from ports import free_ports

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
RULES = Path(__file__).parents[2] / "contrib" / "prometheus" / "softmrc.rules.yml"
NEEDS_PROMETHEUS = needs.tools("prometheus")
Ask = Callable[[str], Any]


@contextmanager
def a_prometheus(folder: Path, targets: Sequence[str], token: str = "") -> Iterator[Ask]:
    """It scrapes these every second, and has the alert rules. Its answers come in the network namespace
    of the calling thread."""
    assert PROMETHEUS is not None
    job: dict[str, Any] = {"job_name": "softmrc", "static_configs": [{"targets": list(targets)}]}
    if token:
        job["authorization"] = {"type": "Bearer", "credentials": token}
    every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config = folder / "prometheus.yml"
    config.write_text(json.dumps({"global": every, "rule_files": [str(RULES)], "scrape_configs": [job]}))
    port = free_ports()
    words = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    process = subprocess.Popen(
        [PROMETHEUS, *words, f"--web.listen-address=127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def ask(path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=10) as answer:
            return json.load(answer)["data"]

    try:
        yield ask
    finally:
        process.terminate()
        process.wait(20)


def until(ask: Ask, query: str, is_so: Callable[[list[Any]], bool], patience_s: float = 60) -> list[Any]:
    """The rows of a query, once they are as they should be; the last ones, if that never is."""
    rows: list[Any] = []
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        try:
            rows = ask(f"query?query={urllib.parse.quote(query)}")["result"]
        except OSError:
            rows = []  # it is not up yet
        if is_so(rows):
            break
        time.sleep(0.1)
    return rows
