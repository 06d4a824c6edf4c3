"""Files with keys and tokens in them, and secrets that are none: who else may read or have made them."""

from __future__ import annotations

import logging
import os
import re
import resource
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import needs
import parts
from softmrc import _core
from softmrc._core import Cipher
from softmrc._support.files import open_own
from softmrc.cli.exporter import token_of
from softmrc.connection import bootstrap
from softmrc.device import Device
from softmrc.errors import ConfigError, DeviceError
from softmrc.wire import keylog

needs_sealing = pytest.mark.skipif(not _core.can_seal(), reason="built without libcrypto")


Opened = Callable[[str, bool], int]  # a path, and whether the file is to be new


def in_python(path: str, is_anew: bool) -> int:
    return open_own(path, is_anew=is_anew)


def in_core(path: str, is_anew: bool) -> int:
    return int(parts.open_own(path, is_anew))


both = pytest.mark.parametrize("opened", [in_python, in_core])
ways = pytest.mark.parametrize("is_anew", [True, False], ids=["anew", "at its end"])
REFUSED = (OSError, ValueError)


def write(handle: int, data: bytes) -> None:
    with open(handle, "wb") as file:
        file.write(data)


@both
@ways
def test_a_file_is_made_for_this_user_alone(opened: Opened, is_anew: bool, tmp_path: Path) -> None:
    path, before = tmp_path / "it", os.umask(0)
    try:
        write(opened(str(path), is_anew), b"first ")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    write(opened(str(path), is_anew), b"second")
    assert path.read_bytes() == (b"second" if is_anew else b"first second")


@both
def test_what_begins_anew_is_closed_to_others(opened: Opened, tmp_path: Path) -> None:
    path = tmp_path / "it"
    path.write_bytes(b"before")
    path.chmod(0o666)
    with path.open("rb") as reader:  # as one of them may have it
        write(opened(str(path), True), b"now")
        assert reader.read() == b"before"
    assert path.read_bytes() == b"now" and stat.S_IMODE(path.stat().st_mode) == 0o600


@both
def test_what_was_its_users_alone_stays_where_it_is(opened: Opened, tmp_path: Path) -> None:
    path = tmp_path / "it"
    path.write_bytes(b"before")
    path.chmod(0o600)
    place = path.stat().st_ino
    write(opened(str(path), True), b"now")
    assert path.read_bytes() == b"now" and path.stat().st_ino == place


@ways
@pytest.mark.parametrize("is_there", [True, False])
def test_a_file_that_cannot_be_closed_to_others_is_refused(
    is_anew: bool, is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system that has one mode for all files."""
    path, usual = tmp_path / "it", os.open

    def open_for_all(path: str, flags: int, mode: int = 0o777) -> int:
        handle = usual(path, flags, mode)
        os.fchmod(handle, 0o755)
        return handle

    if is_there:
        path.write_bytes(b"before")
        path.chmod(0o755)
    monkeypatch.setattr(os, "open", open_for_all)
    with pytest.raises(PermissionError, match="others may open it"):
        open_own(str(path), is_anew=is_anew)
    assert [one.read_bytes() for one in tmp_path.iterdir()] == [b"before"] * is_there


@both
def test_what_cannot_be_replaced_is_refused_and_kept(opened: Opened, tmp_path: Path) -> None:
    """As in a folder that this user cannot write: no longer name can be made next to it."""
    path = tmp_path / ("x" * 255)
    path.write_bytes(b"before")
    path.chmod(0o644)
    with pytest.raises(REFUSED, match=r"others may open it, and it cannot be replaced \(.*too long\): chmod 600 it"):
        opened(str(path), True)
    assert path.read_bytes() == b"before"
    path.chmod(0o600)
    write(opened(str(path), True), b"now")
    assert path.read_bytes() == b"now"


MOUNTED = """
import sys
try:
    if sys.argv[1] == "in_core":
        import parts
        parts.open_own(sys.argv[2], True)
    else:
        from softmrc._support.files import open_own
        open_own(sys.argv[2], is_anew=True)
except (OSError, ValueError) as error:
    print(error)
"""


@both
@needs.tools("unshare")
@needs.in_namespaces
def test_a_file_that_was_mounted_into_a_container_is_refused_and_kept(opened: Opened, tmp_path: Path) -> None:
    path, script = tmp_path / "it", 'mount --bind "$3" "$3" && exec "$0" -c "$1" "$2" "$3"'
    path.write_bytes(b"before")
    path.chmod(0o644)
    words = ["unshare", "-m", "sh", "-c", script, sys.executable, MOUNTED, opened.__name__, str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert "cannot be replaced (Device or resource busy): chmod 600 it" in done.stdout, done
    assert path.read_bytes() == b"before" and os.listdir(tmp_path) == ["it"]


@both
@ways
@pytest.mark.parametrize("is_there", [True, False], ids=["to a file", "to nothing"])
def test_nothing_is_written_through_a_symbolic_link(
    opened: Opened, is_anew: bool, is_there: bool, tmp_path: Path
) -> None:
    aim, link = tmp_path / "aim", tmp_path / "link"
    link.symlink_to(aim)
    if is_there:
        aim.write_bytes(b"mine")
        aim.chmod(0o600)
    with pytest.raises(REFUSED, match="a symbolic link"):
        opened(str(link), is_anew)
    assert aim.read_bytes() == b"mine" if is_there else not aim.exists()


@both
@ways
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
def test_another_users_file_stays_as_it_is(opened: Opened, is_anew: bool, tmp_path: Path) -> None:
    path = tmp_path / "theirs"
    path.write_bytes(b"theirs")
    path.chmod(0o666)
    os.chown(path, 65534, 65534)
    with pytest.raises(REFUSED, match="another user's"):
        opened(str(path), is_anew)
    assert path.read_bytes() == b"theirs" and stat.S_IMODE(path.stat().st_mode) == 0o666


@both
@ways
def test_pipes_are_refused_and_what_this_process_was_handed_is_taken(
    opened: Opened, is_anew: bool, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(REFUSED, match="no regular file"):
        opened(str(tmp_path / "pipe"), is_anew)
    reader, writer = os.pipe()
    try:
        for name in ("/dev/fd/", "/proc/self/fd/"):
            write(opened(f"{name}{writer}", is_anew), b"line")
            assert os.read(reader, 100) == b"line"
        write(opened("/dev/null", is_anew), b"line")
    finally:
        os.close(reader)
        os.close(writer)


def test_captures_are_for_their_own_user(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "aim")
    with Device(["127.0.0.1"]) as device:
        with pytest.raises(DeviceError, match="a symbolic link"):
            device.capture(link)
        with device.capture(tmp_path / "it"):
            assert stat.S_IMODE((tmp_path / "it").stat().st_mode) == 0o600
    assert not (tmp_path / "aim").exists()


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "keys.log"
    monkeypatch.setenv("SOFTMRC_KEYLOG", str(path))
    return path


def note() -> None:
    """Keys are derived, and written to the key log."""
    _core.packet_keys(bytes(range(32)), True, 7, Cipher.AES_256_GCM, 8)


def refused(words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        keylog.check()
    with pytest.raises(DeviceError, match=words):
        note()


@needs_sealing
def test_a_key_log_is_for_its_own_user(log: Path) -> None:
    before = os.umask(0)
    try:
        keylog.check()
    finally:
        os.umask(before)
    note()
    note()  # appended: each line once more
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert re.fullmatch(r"(\w+ 000008 [0-9a-f]{64}\n\w+ 000007 [0-9a-f]{64}\n){2}", log.read_text())
    assert sorted(keylog.Keys.read(log)._known) == [7, 8]


@needs_sealing
def test_a_process_without_descriptors_refuses_no_peer_for_its_key_log(log: Path) -> None:
    """Which would be for good: it has no place to write to for now."""
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, usual[1]))
    try:
        with pytest.raises(DeviceError, match="Too many open files"):
            note()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)
    note()
    assert len(keylog.Keys.read(log)._known) == 2


@needs_sealing
@pytest.mark.parametrize("mode", [0o666, 0o644, 0o640, 0o602])
def test_a_key_log_that_others_may_open_is_refused(log: Path, mode: int) -> None:
    log.touch()
    log.chmod(mode)
    refused("chmod 600")
    assert log.read_bytes() == b""


@needs_sealing
def test_a_key_log_of_another_user_is_refused(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log.touch(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigError, match="another user's"):
        keylog.check()


@needs_sealing
def test_a_key_log_is_not_written_through_a_symbolic_link(log: Path, tmp_path: Path) -> None:
    aim = tmp_path / "aim"
    aim.touch(0o600)
    log.symlink_to(aim)
    refused("a symbolic link")
    assert aim.read_bytes() == b""


def test_a_short_secret_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    bootstrap._say_short.cache_clear()
    with caplog.at_level(logging.WARNING):
        for secret in ("x", b"1234567", "x"):
            assert bootstrap.secret_of(secret)
        assert [one.levelname for one in caplog.records] == ["WARNING"]
        assert "less than 8 characters" in caplog.text and "openssl rand" in caplog.text
        caplog.clear()
        bootstrap._say_short.cache_clear()
        assert bootstrap.secret_of("f" * 32) and not caplog.records


def test_a_token_that_others_can_read_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "token"
    file.write_text("a-token-of-some-length\n")
    for mode, warning in ((0o644, "chmod o-r"), (0o640, "chmod g-r"), (0o600, "")):
        file.chmod(mode)
        assert token_of(file) == "a-token-of-some-length"
        said = capsys.readouterr().err
        assert warning in said and bool(said) is bool(warning)
