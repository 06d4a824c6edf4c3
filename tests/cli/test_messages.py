"""Every error of the command line has one form: what is wrong, the value that was given, and what to do.

Usage errors, which need no work to be found, exit with 2; everything else with 1.
"""

# ruff: noqa: E501 (a row of the table is a line)

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from softmrc import cli
from softmrc.device import Device
from softmrc.errors import MISSING, ConfigError

ROOT = Path(__file__).parents[2]
FILES = {
    "nottoml.toml": "this is not toml\n",
    "open.toml": 'question = "?\n',
    "badkey.toml": 'question = "?"\n\n[workload]\nbyte = 5\nkind = "permutation"\n',
    "range.toml": 'question = "?"\n[fabric]\nplanes = 17\n[workload]\nkind = "permutation"\n',
    "share.toml": 'question = "?"\n[fabric]\nnic_bps = "400"\n[workload]\nkind = "permutation"\n',
    "sum.toml": "[fabric]\nplanes = 2\nhosts = 9\nhosts_per_leaf = 4\nspines = 2\n",
    "unit.toml": '[fabric]\nplanes = 2\nhosts = 8\nhosts_per_leaf = 4\nspines = 2\nhost_link_bps = "100"\n',
    "study.toml": "gpus = 64\nplanes = 4\n",
    "prices.toml": "[optic]\ncost_uds = 3\n",
    "capture.bin": "nothing",
    "saved.json": "{}",
}
KNOWN = "workload.kind, workload.message_bytes, workload.messages, workload.pattern, workload.shift, workload.start_us"
FORMS = "key=first..last, key=first..last..step, or key=one,two,three"

# The command line, the exit status, the message.
ROWS = [
    # Files: missing, folders, of another kind, unreadable, with mistakes in them.
    ("sim nosuch", 2, "`SCENARIO`: no such file, and no built-in scenario (got 'nosuch'). Run `softmrc examples` to list the built-in ones."),
    ("sim t1-rebot", 2, "`SCENARIO`: no such file, and no built-in scenario (got 't1-rebot'). Did you mean t1-reboot?"),
    ("sim empty/", 2, "`SCENARIO`: must be a .toml file, and is a directory (got 'empty')"),
    ("sim nottoml.toml", 2, "nottoml.toml:1:6: invalid TOML: expected '=' after a key in a key/value pair"),
    ("sim open.toml", 2, "open.toml:1:14: invalid TOML: illegal character '\\n'"),
    ("sim latin.toml", 2, "`SCENARIO`: must be UTF-8 text (byte 12 is not) (got 'latin.toml')"),
    ("sim badkey.toml", 2, f"badkey.toml:4: `workload.byte`: unknown key (got 5). Known keys: {KNOWN}."),
    ("sim range.toml", 2, "range.toml:3: `fabric.planes`: must be at most 16 (got 17)"),
    ("sim share.toml", 2, "share.toml:3: `fabric.nic_bps`: must be a rate with its unit, as 100G, 51.2T, 20M (got '400'). Did you mean 400G?"),
    ("assess study", 2, "`FILE`: must be a fabric file, and is a study (got 'study'). Use `softmrc study` for it."),
    ("assess sum.toml", 2, "sum.toml:3: `fabric.hosts`: must be a multiple of hosts_per_leaf = 4 (got 9)"),
    ("assess unit.toml", 2, "unit.toml:6: `fabric.host_link_bps`: must be a rate with its unit, as 100G, 51.2T, 20M (got '100'). Did you mean 100G?"),
    ("study study.toml", 2, "study.toml:2: `planes`: must stand in [vary], where it may be a list (got 4)"),
    ("plan --prices prices.toml", 2, "prices.toml:2: `optic.cost_uds`: unknown key (got 3). Did you mean optic.cost_usd?"),
    ("plan --prices nosuch", 2, "`--prices`: no such file (got 'nosuch')"),
    ("plan --prices empty", 2, "`--prices`: must be a file, and is a directory (got 'empty')"),
    ("dissect nosuch.pcapng", 1, "`nosuch.pcapng`: no such file or directory"),
    ("dissect capture.bin --keys nosuch", 2, "`--keys`: no such file (got 'nosuch')"),
    ("exporter --token-file nosuch", 2, "`--token-file`: no such file (got 'nosuch')"),
    ("mapper ecmp nosuch --rounds 0", 2, "`FILE`: no such file (got 'nosuch')"),
    ("mapper ecmp saved.json --rounds 0", 2, "`FILE`: must be a file as `softmrc mapper ecmp --output` writes it (got 'saved.json')"),
    ("fabric draw lab -o nosuch/x.svg", 1, "cannot write 'nosuch/x.svg': there is no folder '{cwd}/nosuch'"),
    # Keys and who may read them.
    ("key show nokey", 2, "`identity`: has no key (got 'nokey'). Create one with `softmrc key new nokey`."),
    ("key show loose", 2, "`identity`: must be a file that its owner alone can read: chmod 600 loose/key.pem (got 'loose/key.pem')"),
    ("key new capture.bin", 2, "`FOLDER`: must be a folder, and is a file (got 'capture.bin')"),
    ("exporter --listen 0.0.0.0:9464", 2, "`--listen`: must be a loopback address without a token (got '0.0.0.0'). Set SOFTMRC_TOKEN or --token-file to a token of at least 16 characters."),
    ("exporter --listen 9464", 2, "`--listen`: must be ADDRESS:PORT, as 127.0.0.1:9464 (got '9464')"),
    # Units.
    ("plan --nic 800", 2, "`--nic`: must be a rate with its unit, as 100G, 51.2T, 20M (got '800'). Did you mean 800G?"),
    ("plan --switch fast", 2, "`--switch`: must be a rate with its unit, as 100G, 51.2T, 20M (got 'fast')"),
    ("plan --spares 1", 2, "`--spares`: must have a unit, since 1 is 100% (got '1'). Write 1%, 0.01 or 100%."),
    ("plan --spares 101%", 2, "`--spares`: must be a share from 0 to 1, as 1% or 0.01 (got '101%')"),
    ("mapper sim lab --break p0.leaf0-spine0=loss:2", 2, "`--break`: must be a share from 0 to 1, as 1% or 0.01 (got '2')"),
    # Ranges and numbers.
    ("plan --gpus 1", 2, "`--gpus`: must be at least 2 (got 1)"),
    ("plan --planes 1,x", 2, "`--planes`: must be whole numbers from 1 to 1,024 with commas between them, as 1,2,4,8 (got '1,x')"),
    ("plan --oversubscription 0", 2, "`--oversubscription`: must be numbers up to 16,384 with commas between them, as 1,3 (got '0')"),
    ("sim t1-reboot --seeds two", 2, "`--seeds`: must be an integer (got 'two')"),
    ("ctl port 99 up", 2, "`PLANE`: must be at most 31 (got '99')"),
    ("ctl port 0 sideways", 2, "`up|down`: must be up or down (got 'sideways')"),
    ("ctl evs zz", 2, "`QPN`: must be a queue pair's number, 0 to 0xffffff (got 'zz')"),
    ("sim t1-reboot --set fabric.planes=abc", 2, "{scenarios}/t1-reboot.toml: `fabric.planes`: must be an integer that divides 400G (got 'abc')"),
    ("sim t1-reboot --set foo", 2, "`--set`: must be key=value, as fabric.planes=8 (got 'foo')"),
    ("sweep t1-reboot --vary fabric.planes=8..1", 2, f"`--vary`: must be a range that goes up (got 'fabric.planes=8..1'). Write {FORMS}."),
    ("fabric routes lab --from host0 --to host7 --ev 99", 2, "`--ev`: must be 0 to 15 between these hosts (got 99)"),
    # Unknown names.
    ("examples nosuch", 2, "`NAME`: no such scenario or example (got 'nosuch'). Run `softmrc examples` to list them."),
    ("fabric config lab --target cisco", 2, "`--target`: must be one of linux, frr, sonic (got 'cisco')"),
    ("fabric routes lab --from host0 --to host99", 2, "`--to`: no such node (got 'host99'). Names look like host0 or p0.leaf0; there are 4 planes with 8 × host, 4 × leaf, 4 × spine."),
    ("mapper sim lab --break foo=dead", 2, "`--break`: no such element of the fabric (got 'foo'). Name a link, port, transceiver, switch, host or plane, as p0.leaf1-spine2 or p1.host3>leaf1."),
    ("dashboard --fabric nosuch", 2, "`--fabric`: no such file, and no built-in fabric file (got 'nosuch'). Built in: lab, large."),
    # Options that go together, or do not.
    ("dashboard --denylist saved.json", 2, "`--denylist`: needs --fabric. Draw a fabric with what is broken in it: --fabric FILE --denylist FILE."),
    ("fabric routes lab p0.leaf0 --ev 3", 2, "`--ev`: cannot be combined with the switch p0.leaf0 (got 3)"),
    ("fabric routes lab", 2, "`--from`: is missing. Name both hosts, as --from host0 --to host7, or a switch alone, as p0.leaf0."),
    ("study study --keep x", 2, "`--keep`: works only with --confirm, whose simulations it keeps (got 'x')"),
    ("top --planes 127.0.0.1", 2, "`--planes`: works only with --load HOST:PORT"),
    ("plan --gpus 1024 --output x.toml", 2, "`--output`: cannot hold 4 designs (got 'x.toml'). Choose one with --planes, --tiers and --oversubscription: 1 × 2 (1:1), 2 × 2 (61:63), 4 × 2 (1:1), 8 × 2 (1:1)."),
    # The line itself.
    ("sim", 2, "`SCENARIO`: is missing. See `softmrc sim --help`."),
    ("simm nosuch", 2, "`simm`: no such command. Did you mean sim?"),
    ("ctl portx", 2, "`portx`: no such command. Did you mean port?"),
    ("plan --gpu 3", 2, "`--gpu`: no such option. Did you mean --gpus?"),
    ("plan --nonsense", 2, "`--nonsense`: no such option. See `softmrc plan --help`."),
    ("plan 3", 2, "`3`: unexpected argument. See `softmrc plan --help`."),
    ("plan --gpus", 2, "`--gpus`: needs a value"),
    ("ping here", 2, "`HOST:PORT`: must be HOST:PORT, for example 10.0.0.2:7000 or [fd00::2]:7000 (got 'here')"),
    ("ping 127.0.0.1:1", 1, "nothing listens on 127.0.0.1 port 1 (connection refused). Start the other end first, for example `softmrc perf`."),
    ("ctl faults", 1, "no device of yours is running: none is in {cwd}/softmrc"),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files above, in the folder that commands run in; none of the environment's settings."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "latin.toml").write_bytes(b'question = "\xff"\n')
    (tmp_path / "empty").mkdir()
    (tmp_path / "loose").mkdir()
    (tmp_path / "loose" / "key.pem").write_text("")
    (tmp_path / "loose" / "key.pem").chmod(0o644)
    for name in [one for one in os.environ if one.startswith("SOFTMRC_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit status of a command line, and what it printed to stderr."""
    monkeypatch.setattr(sys, "argv", ["softmrc", *shlex.split(line)])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0), capsys.readouterr().err


@pytest.mark.parametrize(("line", "status", "message"), ROWS, ids=[row[0] for row in ROWS])
def test_an_error_says_what_is_wrong_with_what_and_what_to_do(
    line: str,
    status: int,
    message: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wanted = message.replace("{cwd}", str(folder)).replace("{scenarios}", str(ROOT / "scenarios"))
    assert said(line, monkeypatch, capsys) == (status, f"softmrc: {wanted}\n")


def test_a_refused_target_leaves_no_folder_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said("fabric config lab --target cisco", monkeypatch, capsys)
    assert not (folder / "config").exists()


FAULTS = "drop, duplicate, reorder, corrupt, mark, trim, delay_us, reorder_delay_us or mtu with =NUMBER, or black_hole"


@pytest.fixture
def device(folder: Path) -> Iterator[str]:
    with Device(["127.0.0.1", "127.0.0.2"]):
        yield str(os.getpid())


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ("9:drop=2", "`faults`: must be 0 to 1 for the plane before the colon (got '9:drop=2')"),
        ("drop=2", "`faults`: must be 0 to 1 for drop (got 'drop=2')"),
        ("drpo=0.1", f"`faults`: must be {FAULTS} (got 'drpo=0.1')"),
        ("drop", f"`faults`: must be {FAULTS} (got 'drop')"),
        ("mtu=70000", "`faults`: must be 0 to 65535 for mtu (got 'mtu=70000')"),
    ],
)
def test_a_device_says_which_fault_is_wrong(
    faults: str, message: str, device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, err = said(f"ctl faults --all {faults}", monkeypatch, capsys)
    assert status == 1 and re.fullmatch(rf"softmrc: device {device}-\d+ refuses faults: {re.escape(message)}\n", err), (
        err
    )


def test_with_several_devices_a_command_says_how_to_choose(
    device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Device(["127.0.0.3"]):
        status, err = said("ctl faults drop=0.1", monkeypatch, capsys)
    assert status == 2 and re.fullmatch(
        rf"softmrc: `--device`: is missing. Say -d NAME, or --all for every device: {device}-\d+, {device}-\d+\.\n", err
    ), err


def test_an_error_has_its_parts() -> None:
    error = ConfigError("fabric.planes", 3, "must divide 400G", "Use 2 or 4.", "fabric.toml:4")
    assert str(error) == "fabric.toml:4: `fabric.planes`: must divide 400G (got 3). Use 2 or 4."
    assert (error.field, error.value, error.problem, error.hint) == (
        "fabric.planes",
        3,
        "must divide 400G",
        "Use 2 or 4.",
    )
    assert str(error.replaced(field="--planes", where="")) == "`--planes`: must divide 400G (got 3). Use 2 or 4."
    assert str(ConfigError("secret", MISSING, "is missing")) == "`secret`: is missing"
    assert len(str(ConfigError("name", "x" * 5000, "is too long"))) < 300


def test_no_source_has_the_older_forms() -> None:
    """The form is made in `errors.py` and `host_error.h`, and nowhere else."""
    older = re.compile(r"is not allowed:|; allowed: |= \{\w+!r\} is")
    peers = {"offer.cpp", "node.cpp", "sealing.cpp"}  # what is said to a peer, and of a node that it made itself
    for kind in ("src/softmrc/**/*.py", "core/**/*.cpp", "core/**/*.h"):
        files = list(ROOT.glob(kind))
        assert files
        found = [str(one) for one in files if one.name not in peers and older.search(one.read_text())]
        assert not found
