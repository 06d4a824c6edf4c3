"""What the extensions ask of the C library: nothing that glibc 2.28 does not have. And what they leave alone."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from softmrc import _core
from softmrc.nccl import plugin_path
from softmrc_bench import _native

# Newer by name only: functions that moved into libc itself with 2.33 and 2.34, and what a compiler's own headers take
# where the library that they were built with has it. None is needed when the extension is built on an older system.
OLDER_THAN_THEY_LOOK = {
    "pthread_setname_np", "pthread_cond_clockwait", "pthread_mutex_trylock", "__libc_single_threaded",
    "dlopen", "dlclose", "dlinfo", "stat", "lstat", "fstat",
}  # fmt: skip
# The same, of the C++ library that the plugin brings along.
OF_THE_PLUGIN = OLDER_THAN_THEY_LOOK | {
    "pthread_create", "pthread_detach", "pthread_join", "pthread_once", "fstat64",
}  # fmt: skip


def newer_symbols(listing: str) -> set[str]:
    found = re.findall(r"\(?GLIBC_2\.(\d+)(?:\.\d+)?\)?\s+(\w+)$", listing, re.MULTILINE)
    return {name for minor, name in found if int(minor) > 28}


def symbols_of(extension: ModuleType | Path) -> str:
    """As objdump lists them, or a reason to skip."""
    if platform.libc_ver()[0] != "glibc" or not (objdump := shutil.which("objdump")):
        pytest.skip("needs glibc and objdump")
    file = extension if isinstance(extension, Path) else extension.__file__
    assert file is not None
    command = [objdump, "-T", file]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize("extension", [_core, _native])
def test_glibc_2_28_suffices(extension: ModuleType) -> None:
    listing = symbols_of(extension)
    assert "GLIBC_2" in listing
    assert newer_symbols(listing) <= OLDER_THAN_THEY_LOOK


@pytest.mark.skipif("SOFTMRC_SANITIZER" in os.environ, reason="an instrumented build brings no C++ library along")
def test_glibc_2_28_suffices_for_the_plugin() -> None:
    listing = symbols_of(plugin_path())
    assert "GLIBC_2" in listing
    assert newer_symbols(listing) <= OF_THE_PLUGIN


def test_the_check_can_fail() -> None:
    line = "0000000000000000      DF *UND*\t0000000000000000 (GLIBC_2.35) epoll_pwait2\n"
    assert newer_symbols(line) == {"epoll_pwait2"}
    assert not newer_symbols(line.replace("2.35", "2.2.5"))


OPERATORS = re.compile(r"_Z(nw|na|dl|da)\w+$", re.MULTILINE)


def own_operators(listing: str) -> set[str]:
    """Operators new and delete that a library brings instead of asking for them."""
    return {found[0] for line in listing.splitlines() if "*UND*" not in line and (found := OPERATORS.search(line))}


@pytest.mark.parametrize("extension", [_core, _native])
def test_no_operator_new_is_replaced(extension: ModuleType) -> None:
    listing = symbols_of(extension)
    assert OPERATORS.search(listing), "the check would find nothing"
    assert not own_operators(listing)


def test_the_check_of_operators_can_fail() -> None:
    theirs = "0000000000000000      DF *UND*\t0000000000000000 (GLIBCXX_3.4) _Znwm\n"
    ours = "0000000000012345 g    DF .text\t0000000000000017  Base        _ZdlPvm\n"
    assert own_operators(theirs + ours) == {"_ZdlPvm"}


def test_what_measures_is_not_in_what_is_used() -> None:
    theirs = {name for name in dir(_native) if not name.startswith("_")}
    assert theirs, "the check would find nothing"
    assert not [name for name in dir(_core) if name in theirs]


USED = ("collectives", "connection", "demo", "fabric", "lab", "engine", "sim", "device", "wire")


def loads_benchmarks(*modules: str) -> bool:
    code = f"import sys, {', '.join(modules)}; print('softmrc_bench._native' in sys.modules)"
    command = [sys.executable, "-P", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout == "True\n"


def test_what_is_used_does_not_load_what_measures() -> None:
    assert not loads_benchmarks("softmrc", *(f"softmrc.{module}" for module in USED))
    assert loads_benchmarks("softmrc_bench.allocations"), "the check would find nothing"
