"""A program that plays NCCL, with the sanitizer that the plugin has."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import programs
from softmrc.nccl import plugin_path

SANITIZER = os.environ.get("SOFTMRC_SANITIZER", "")
PLANES = "127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4"
LONGEST_S = 120


class Story:
    """One that runs."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)

    def is_over(self) -> bool:
        return self.process.poll() is not None

    def end(self) -> tuple[int, str, str]:
        """How it ends, and what it said; one that does not end is ended."""
        try:
            said, wrong = self.process.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode, said, wrong


def begin(
    folder: Path, version: int, processes: int, story: str, *numbers: int, device: str = "", **more: str
) -> Story:
    """The environment of its processes may have more, and a table [device] of settings."""
    settings = folder / "softmrc.toml"
    settings.write_text(f"[device]\n{device}\n")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SOFTMRC_", "NCCL_"))}
    environment = {**clean, "SOFTMRC_PLANES": PLANES, "SOFTMRC_CONFIG": str(settings), **more}
    if SANITIZER:
        environment["SOFTMRC_SANITIZER"] = SANITIZER
        # Before version 11 NCCL does not call `finalize`, and threads are left to the end of the process.
        environment["TSAN_OPTIONS"] = os.environ.get("TSAN_OPTIONS", "") + ":report_thread_leaks=0"
    words = (programs.path("nccl_harness"), plugin_path(), version, processes, story, *numbers)
    return Story([str(word) for word in words], environment)
