"""Which planes are used, and where that is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from softmrc.config import DeviceConfig, interfaces
from softmrc.errors import ConfigError
from softmrc.torch import settings


def test_nothing_said() -> None:
    assert settings.read({}) == settings.EnvSettings((), DeviceConfig())


def test_the_environment() -> None:
    assert settings.read({"SOFTMRC_PLANES": "eth0, 10.0.0.1%eth1,"}).planes == ("eth0", "10.0.0.1%eth1")
    with pytest.raises(ConfigError, match="SOFTMRC_PLANES"):
        settings.read({"SOFTMRC_PLANES": " , "})


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mrc.toml"
    file.write_text('planes = ["eth0", "eth1"]\n[device]\nmtu = 4096\nicrc = false\n')
    found = settings.read({"SOFTMRC_CONFIG": str(file)})
    assert found.planes == ("eth0", "eth1") and found.device == DeviceConfig(mtu=4096, icrc=False)
    found = settings.read({"SOFTMRC_CONFIG": str(file), "SOFTMRC_PLANES": "lo"})
    assert found.planes == ("lo",) and found.device.mtu == 4096


@pytest.mark.parametrize(
    ("text", "named"),
    [("plane = 1", "plane"), ("planes = 3", "planes"), ("[device]\nmtuu = 1", "mtuu"), ("[device]\nmtu = 'x'", "mtu")],
)
def test_files_that_make_no_sense(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "mrc.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=named):
        settings.read({"SOFTMRC_CONFIG": str(file)})


def test_a_file_that_is_not_there_or_no_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        settings.read({"SOFTMRC_CONFIG": "/nowhere.toml"})
    (tmp_path / "bad.toml").write_text("planes = [")
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        settings.read({"SOFTMRC_CONFIG": str(tmp_path / "bad.toml")})


def test_ranks_of_one_host_use_loopback_and_others_their_links(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing, here = settings.EnvSettings(), interfaces.DetectedPlanes(("eth0",), "because")
    assert settings.chosen(nothing, ["a", "a"]) == (settings.LOOPBACK, "all ranks are on this host")
    monkeypatch.setattr(interfaces, "detect_planes", lambda: here)
    assert settings.chosen(nothing, ["a", "b"]) == here
    assert settings.chosen(settings.read({"SOFTMRC_PLANES": "eth7"}), ["a", "a"]) == (
        ("eth7",),
        "set by SOFTMRC_PLANES",
    )


def test_torch_knows_the_backend_without_an_import_of_ours() -> None:
    program = """
import sys, torch, torch.distributed as dist
assert dist.Backend("mrc") == "mrc" and "mrc" in dist.Backend.backend_list
ours = {name for name in sys.modules if name.startswith("softmrc.")}
assert ours <= {"softmrc.torch", "softmrc.errors"}, ours
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_torch_that_would_lose_a_work_is_refused_by_name() -> None:
    program = """
import torch.distributed as dist
dist.ProcessGroup.barrier = lambda group, options: group.barrier(options)  # the very Work, as up to 2.6
dist.init_process_group("mrc", store=dist.HashStore(), rank=0, world_size=1)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "backend mrc needs torch 2.7 or later" in done.stderr.splitlines()[-1], done.stderr[-2000:]


def test_registering_never_raises(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    import torch.distributed as dist

    from softmrc.torch import register

    monkeypatch.setattr(dist.Backend, "_plugins", {})
    monkeypatch.setattr(dist.Backend, "register_backend", lambda *a, **k: 1 / 0)
    register()
    assert "division" in caplog.text
