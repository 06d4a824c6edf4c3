"""Files with keys and tokens in them, and secrets that are none: who else may read or have made them."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest

from softmrc import _core, keylog
from softmrc._core import Cipher
from softmrc.cli.agent import token_of
from softmrc.connection import arrange
from softmrc.errors import ConfigError, DeviceError

pytestmark = pytest.mark.skipif(not _core.can_seal(), reason="built without sealing")


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "keys.log"
    monkeypatch.setenv("SOFTMRC_KEYLOG", str(path))
    return path


def refused(words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        keylog.check()
    with pytest.raises(DeviceError, match=words):
        keylog.note(Cipher.AES_256_GCM, 7, bytes(32))


def test_a_key_log_is_for_its_own_user(log: Path) -> None:
    before = os.umask(0)
    try:
        keylog.check()
    finally:
        os.umask(before)
    keylog.note(Cipher.AES_256_GCM, 7, bytes(32))
    assert stat.S_IMODE(log.stat().st_mode) == 0o600 and log.read_text().startswith("AES_256_GCM 000007")


@pytest.mark.parametrize("mode", [0o666, 0o644, 0o640, 0o602])
def test_a_key_log_that_others_may_open_is_refused(log: Path, mode: int) -> None:
    log.touch()
    log.chmod(mode)
    refused("chmod 600")
    assert log.read_bytes() == b""


def test_a_key_log_of_another_user_is_refused(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log.touch(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    refused("another user's")


def test_a_key_log_is_not_written_through_a_symbolic_link(log: Path, tmp_path: Path) -> None:
    aim = tmp_path / "aim"
    aim.touch(0o600)
    log.symlink_to(aim)
    refused("a symbolic link")
    assert aim.read_bytes() == b""


def test_a_short_secret_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    arrange._say_short.cache_clear()
    with caplog.at_level(logging.WARNING):
        for secret in ("x", b"1234567", "x"):
            assert arrange.secret_of(secret)
        assert [one.levelname for one in caplog.records] == ["WARNING"]
        assert "less than 8 characters" in caplog.text and "openssl rand" in caplog.text
        caplog.clear()
        arrange._say_short.cache_clear()
        assert arrange.secret_of("f" * 32) and not caplog.records


def test_a_token_that_everybody_can_read_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "token"
    file.write_text("a-token-of-some-length\n")
    for mode, warned in ((0o644, True), (0o600, False)):
        file.chmod(mode)
        assert token_of(file) == "a-token-of-some-length"
        assert ("chmod o-r" in capsys.readouterr().err) is warned
