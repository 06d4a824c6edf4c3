"""What the extension asks of the C library: nothing that glibc 2.28 does not have."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess

import pytest

from softmrc import _core

# Newer by name only: functions that moved into libc itself with 2.34, and what a compiler's own headers take where the
# library that they were built with has it. None of them is asked for when the extension is built on an older system.
OLDER_THAN_THEY_LOOK = {"pthread_setname_np", "pthread_cond_clockwait", "__libc_single_threaded"}


def newer_symbols(listing: str) -> set[str]:
    found = re.findall(r"\(?GLIBC_2\.(\d+)(?:\.\d+)?\)?\s+(\w+)$", listing, re.MULTILINE)
    return {name for minor, name in found if int(minor) > 28}


def test_glibc_2_28_suffices() -> None:
    if platform.libc_ver()[0] != "glibc" or not (objdump := shutil.which("objdump")):
        pytest.skip("needs glibc and objdump")
    done = subprocess.run([objdump, "-T", _core.__file__], capture_output=True, text=True, timeout=60, check=True)
    assert "GLIBC_2" in done.stdout
    assert newer_symbols(done.stdout) <= OLDER_THAN_THEY_LOOK


def test_the_check_can_fail() -> None:
    line = "0000000000000000      DF *UND*\t0000000000000000 (GLIBC_2.35) epoll_pwait2\n"
    assert newer_symbols(line) == {"epoll_pwait2"}
    assert not newer_symbols(line.replace("2.35", "2.2.5"))
