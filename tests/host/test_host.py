"""What C programs and Python share in the core: settings, planes, offers; how connections of NCCL are made."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import hmac
import json
import os
import re
import resource
import socket
import time
import tomllib
from pathlib import Path

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

import parts
from softmrc import _core
from softmrc.config import DeviceConfig
from softmrc.config import text as written
from softmrc.errors import ConfigError, DeviceError, HandshakeError
from softmrc.fabric.denylist import Denylist, DenylistEntry
from softmrc.fabric.description import parse
from softmrc.fabric.host import FabricHost
from softmrc.fabric.shape import link_name
from softmrc.torch import settings

VALUES = {
    "lanes": st.integers(1, 64),
    "icrc": st.booleans(),
    "spin_us": st.one_of(st.integers(0, 1000), st.floats(0, 1e6, allow_nan=False)),
    "window_bytes": st.integers(4096, 1 << 40),
    "congestion_control": st.sampled_from(["nscc", "queue_delay", "fixed_window"]),
}


@given(
    st.lists(
        st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), min_size=1), max_size=4, unique=True
    ),
    st.fixed_dictionaries({}, optional=VALUES),
)
def test_a_file_means_what_it_means_to_python(tmp_path_factory, names, device) -> None:
    def written(value: object) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, str):
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        return repr(value)

    lines = ["# a comment", f"planes = [ {', '.join(map(written, names))} ] # another", "", "[device]"]
    lines += [f"{name} = {written(value)}" for name, value in device.items()]
    file = tmp_path_factory.mktemp("host") / "softmrc.toml"
    file.write_text("\n".join(lines))
    assert tomllib.loads(file.read_text()) == {"planes": names, "device": device}
    environment = {"SOFTMRC_CONFIG": str(file)}
    ours, theirs = parts.face_settings(environment), settings.read(environment)
    assert tuple(ours["planes"]) == theirs.planes
    assert all(getattr(theirs.device, name) == ours["device"][name] for name in device)


ALLOWED = {"rate_bps": (10**6, 10**14), "base_rtt_us": (0.1, 1e7), "buffer_bytes": (0, 1 << 30), "timeout": (0, 24)}
NUMBERS = st.one_of(
    st.integers(0, 10**9).map(str),
    st.decimals(0, 10**6, places=4).map(str),
    st.sampled_from(["", "0", "0.0", "1.", ".5", "1e9", "-1", "+1", "007", "0.00000001", "1" * 25, "1 0", "²"]),
)
UNITS = ["", "k", "K", "M", "G", "T", "Gbit/s", "Gbps", "b/s", "ns", "us", "µs", "ms", "s", "min", "h", "msb/s"]
UNITS += ["B", "kB", "MB", "KiB", "MiB", "GiB", "kib", "m", "%", "parsecs", "GG", "bpsbps"]


@given(
    st.sampled_from(sorted(ALLOWED)), NUMBERS, st.sampled_from(["", " ", "  "]), st.sampled_from(UNITS),
    st.sampled_from(["", " "]),
)  # fmt: skip
def test_units_mean_what_they_mean_to_python(tmp_path_factory, name, number, gap, unit, end) -> None:
    text = f"{end}{number}{gap}{unit}{end}"
    file = tmp_path_factory.mktemp("units") / "softmrc.toml"
    file.write_text(f'[device]\n{name} = "{text}"')
    environment = {"SOFTMRC_CONFIG": str(file)}
    try:
        meant = written.device({name: text}, str(file))[name]
    except ConfigError:
        meant = None
    least, most = ALLOWED[name]
    if meant is not None and least <= meant <= most:
        assert parts.face_settings(environment)["device"][name] == meant
    else:
        with pytest.raises(ValueError, match=name):
            parts.face_settings(environment)


def test_what_would_be_right_is_said_with_its_unit(tmp_path: Path) -> None:
    file = tmp_path / "softmrc.toml"
    for line, words in (
        ('rate_bps = "10X"', "as 100G"),
        ('rate_bps = "100"', "Did you mean 100G"),
        ('base_rtt_us = "2"', "a duration with its unit"),
        ('timeout = "2h"', "at most 2,199 s"),
        ('buffer_bytes = "8 parsecs"', "as 8MiB"),
        ('lanes = "2"', "without quotes"),
        ("lanes = 1e300", "device.lanes"),
    ):
        file.write_text(f"[device]\n{line}")
        with pytest.raises(ValueError, match=words):
            parts.face_settings({"SOFTMRC_CONFIG": str(file)})
    file.write_text("[device]\nrate_bps = 1e9")
    assert parts.face_settings({"SOFTMRC_CONFIG": str(file)})["device"]["rate_bps"] == 10**9


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("planes = 3", "planes"),
        ("[device]\nlanes = 1.5", "device.lanes"),
        ("[device]\nlanes = -1", "device.lanes"),
        ("[device]\nlanes = 65", "lanes"),
        ("[device]\nmtu = true", "device.mtu"),
        ("[device]\nicrc = 1", "device.icrc"),
        ("[device]\nwide = 1", "device.wide"),
        ("[other]", "`other`: unknown key"),
        ("[device]\n[device]", "twice"),
        ("planes = ['a'", ":1: invalid TOML"),
        ("\n\nplanes = ['a] ", ":3: invalid TOML"),
        ("planes = [1]", ":1: invalid TOML"),
        ("[device]\nspin_us = 1 2", ":2: invalid TOML"),
        ("[device]\nspin_us =", ":2: invalid TOML"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "softmrc.toml"
    file.write_text(text)
    with pytest.raises(ValueError) as refusal:
        parts.face_settings({"SOFTMRC_CONFIG": str(file)})
    assert words in str(refusal.value)


@given(st.binary(max_size=200))
def test_no_file_is_the_end_of_us(tmp_path_factory, data: bytes) -> None:
    file = tmp_path_factory.mktemp("host") / "softmrc.toml"
    file.write_bytes(data)
    with contextlib.suppress(ValueError, UnicodeDecodeError):
        parts.face_settings({"SOFTMRC_CONFIG": str(file)})


def test_the_environment_goes_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "softmrc.toml"
    file.write_text("planes = ['10.0.0.1']")
    environment = {"SOFTMRC_CONFIG": str(file), "SOFTMRC_PLANES": " eth0, ,eth1 ", "SOFTMRC_SECRET": "s"}
    found = parts.face_settings(environment)
    assert found["planes"] == ["eth0", "eth1"] == list(settings.read(environment).planes)
    assert found["secret"] == "s"
    assert parts.face_settings({"SOFTMRC_CAPTURE": "/tmp/x-%p.pcapng"})["capture"] == f"/tmp/x-{os.getpid()}.pcapng"
    with pytest.raises(ValueError, match="SOFTMRC_PLANES"):
        parts.face_settings({"SOFTMRC_PLANES": " , "})


def test_faults_are_read() -> None:
    calm, foul = parts.face_faults("", 1)[0], parts.face_faults("drop=0.5; 1:black_hole, delay_us=2\n2:reorder=1", 3)
    assert not any(value for name, value in calm.items() if name != "reorder_delay_us")
    assert [row["drop"] for row in foul] == [0.5] * 3
    assert [row["black_hole"] for row in foul] == [False, True, False]
    assert foul[1]["delay_us"] == 2 and foul[2]["reorder"] == 1
    for text in ("drop", "drop=", "drop=2", "drop=-1", "drop=nan", "3:drop=0", "x:drop=0", "black_hole=1", "dorp=1"):
        with pytest.raises(ValueError, match="`faults`: must be"):
            parts.face_faults(text, 3)


@given(st.binary(max_size=200), st.binary(max_size=300))
def test_proofs_are_made_as_everywhere(key: bytes, text: bytes) -> None:
    assert parts.hmac_sha256(key, text) == hmac.new(key, text, hashlib.sha256).digest()


def offer(mtu: int = 4096, qpn: int = 77, planes: int = 1) -> bytes:
    ports = [4791 + plane for plane in range(planes)]
    where = b"".join(bytes([1, 127, 0, 0, 1, *divmod(port, 256), 0, 1, *divmod(port, 256)]) for port in ports)
    pair = qpn.to_bytes(4, "big") + bytes(4) + bytes(8) + bytes([planes]) + where
    return mtu.to_bytes(4, "big") + b"\1\0\0" + (64).to_bytes(4, "big") * 2 + b"\1" + pair + b"\0\0" + b"more"


def read_and_written(said: bytes) -> bytes:
    return _core.Offer.decode(said).encode()


def test_an_offer_is_read_and_its_nonsense_is_named() -> None:
    assert read_and_written(offer()) == offer() and read_and_written(offer(planes=4)) == offer(planes=4)
    for wrong, words in (
        (offer(mtu=5), "mtu = 5 is not allowed"),
        (offer(qpn=1), r"qps\[0\].qpn = 1 is not"),
        (offer(planes=0), r"qps\[0\].planes = 0 is not"),
    ):
        with pytest.raises(HandshakeError, match=words):
            read_and_written(wrong)
    with pytest.raises(HandshakeError, match="less"):
        read_and_written(offer()[:30])


@given(st.binary(max_size=120), st.integers(0, 60))
def test_no_offer_is_the_end_of_us(noise: bytes, at: int) -> None:
    mixed = offer()[:at] + noise
    with contextlib.suppress(HandshakeError):
        assert read_and_written(mixed) == mixed


# How connections of NCCL are made. ---------------------------------------------------------------------------------

TOKEN = bytes(range(16))


def met(connector, listener, limit_s: float = 20.0):
    """What both got, once they are connected."""
    until, inside, outside = time.monotonic() + limit_s, None, None
    while inside is None or outside is None:
        assert time.monotonic() < until
        outside = outside or connector.poll()
        inside = inside or listener.poll()
    return outside, inside


def test_a_connector_waits_for_as_long_as_somebody_listens() -> None:
    listener = parts.CommListener(b"s", TOKEN, "the listener")
    connector = parts.CommConnector(listener.port, b"s", TOKEN, "the connector", 0.2)
    until = time.monotonic() + 1.0  # several times its patience, in which the listener is not polled
    while time.monotonic() < until:
        assert connector.poll() is None
        time.sleep(0.005)
    assert met(connector, listener) == (b"the listener", b"the connector")


def test_where_nobody_listens_a_connector_ends_with_a_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        port = taken.getsockname()[1]
        connector = parts.CommConnector(port, b"", TOKEN, "", 0.2)
        until = time.monotonic() + 20
        with pytest.raises(ValueError, match=rf"127.0.0.1 port {port} has not answered for \d+ s.*refused"):
            while time.monotonic() < until:
                assert connector.poll() is None
                time.sleep(0.005)


def refusal_of(connector, poll_listener, limit_s: float = 20.0) -> str:
    """Why a connector gave up, while the listener was polled."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        try:
            assert connector.poll() is None
        except ValueError as error:
            return str(error)
        poll_listener()
        time.sleep(0.001)
    pytest.fail("it tries for ever")


@pytest.mark.parametrize(
    ("secrets", "tokens"),
    [((b"a", b"b"), (TOKEN, TOKEN)), ((b"", b"b"), (TOKEN, TOKEN)), ((b"a", b"a"), (TOKEN, bytes(16)))],
    ids=["another secret", "none", "another token"],
)
def test_both_sides_report_that_the_secret_differs(secrets, tokens) -> None:
    listener = parts.CommListener(secrets[0], tokens[0], "the listener")
    connector = parts.CommConnector(listener.port, secrets[1], tokens[1], "the connector", 0.2)
    accepted: list[bytes | None] = []
    why = refusal_of(connector, lambda: accepted.append(listener.poll()))
    assert re.fullmatch(rf"127.0.0.1 port {listener.port} refused: the secret is not the same on both sides", why)
    assert not any(accepted)
    (who,) = listener.take_logged()
    assert re.fullmatch(r"refused: 127.0.0.1 port \d+ does not know the secret", who)


def test_a_connector_reports_a_shortage_that_lasts() -> None:
    listener = parts.CommListener(b"s", TOKEN, "the listener", 0.3, is_short=True)
    connector = parts.CommConnector(listener.port, b"s", TOKEN, "the connector", 60.0)
    assert "refused: the other side: no descriptor is left" in refusal_of(connector, listener.poll)
    assert listener.shortages > 1, "for a while the answer is to try again"
    assert "could not be connected: no descriptor is left, time 1" in listener.take_logged()[0]


def test_a_connector_outlasts_a_shortage_of_the_listener() -> None:
    listener = parts.CommListener(b"s", TOKEN, "the listener", 60.0, is_short=True)
    connector = parts.CommConnector(listener.port, b"s", TOKEN, "the connector", 0.5)
    until = time.monotonic() + 20
    while listener.shortages < 20 and time.monotonic() < until:
        assert connector.poll() is None
        listener.poll()
        time.sleep(0.001)
    assert listener.shortages == 20


def test_a_connector_gives_up_where_connections_are_always_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        hung_up = 0

        def hang_up() -> None:
            nonlocal hung_up
            with contextlib.suppress(BlockingIOError):
                server.accept()[0].close()
                hung_up += 1

        connector = parts.CommConnector(server.getsockname()[1], b"s", TOKEN, "the connector", 0.3)
        assert "keeps closing connections" in refusal_of(connector, hang_up)
        assert hung_up > 1


def test_a_connector_gives_up_where_refusals_prove_nothing() -> None:
    """Anybody can say "try again" that has the port, or is on the path."""
    busy = b"E" + bytes([1]) + b"too many connect at once"
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        peers = []

        def refuse() -> None:
            with contextlib.suppress(BlockingIOError):
                peers.append(server.accept()[0])
                peers[-1].sendall(len(busy).to_bytes(4, "big") + busy)

        connector = parts.CommConnector(server.getsockname()[1], b"s", TOKEN, "the connector", 0.3)
        why = refusal_of(connector, refuse)
        assert "has refused for" in why and "too many connect at once" in why and len(peers) > 1
        for peer in peers:
            peer.close()


def test_a_node_takes_no_offer_of_its_own_ports() -> None:
    assert "this side's own address and port" in parts.check_of_own_offer()


@pytest.mark.skipif(not _core.can_seal(), reason="built without libcrypto")
def test_credentials_leave_nothing_in_memory() -> None:
    assert parts.left_of_credentials(bytes(range(1, 33))) == bytes(32)


@contextlib.contextmanager
def no_descriptors():
    usual, lowest = resource.getrlimit(resource.RLIMIT_NOFILE), os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)


@pytest.mark.parametrize("is_interrupted", [False, True], ids=["for long", "twice for a moment"])
def test_a_listener_without_descriptors_says_so_in_the_end(is_interrupted: bool) -> None:
    listener = parts.CommListener(b"s", TOKEN, "the listener", 0.1)
    with socket.create_connection(("127.0.0.1", listener.port)):
        with no_descriptors():
            assert listener.poll() is None
        time.sleep(0.15)
        if is_interrupted:
            assert listener.poll() is None
        with no_descriptors():
            if is_interrupted:
                assert listener.poll() is None
            else:
                with pytest.raises(DeviceError, match="no connection could be accepted"):
                    listener.poll()


# A host of a fabric. -----------------------------------------------------------------------------------------------


@st.composite
def fabrics(draw) -> str:
    pods = draw(st.sampled_from([0, 0, 2, 3]))
    leaves = draw(st.integers(1, 4)) * (pods or 1)
    per_leaf = draw(st.integers(1, 4))
    rows = {
        "planes": draw(st.integers(1, 4)),
        "hosts": max(2, leaves * per_leaf) if per_leaf * leaves > 1 else 2,
        "hosts_per_leaf": per_leaf,
        "spines": draw(st.integers(1, 4)),
        "pods": pods,
        "cores_per_spine": draw(st.integers(1, 3)) if pods else 0,
        "host_link_bps": draw(st.sampled_from(["400G", "5.12T", "20M", "1 Gbit/s", "800000000bps", 10**11])),
    }
    lines = ["name = 'drawn'", "[fabric]", *(f"{name} = {value!r}" for name, value in rows.items())]
    lines += ["[addressing]", f"block = '{draw(st.sampled_from(['fcbb:bb00::/32', 'fc00:10::/32']))}'"]
    lines += ["[switch]", f"trim = {draw(st.sampled_from(['true', 'false']))}"]
    return "\n".join(lines)


@hypothesis.settings(deadline=None)
@given(fabrics(), st.data())
def test_paths_of_a_fabric_are_those_of_python(tmp_path_factory, text: str, data) -> None:
    description = parse(text)
    shape = description.fabric
    here = data.draw(st.integers(0, shape.hosts - 1))
    theirs = FabricHost(description, here)
    for to in range(shape.hosts):
        for plane in range(shape.planes):
            address = theirs.plan.nic_address(to, plane)
            if to == here:
                with pytest.raises(ValueError, match="not the address of another host"):
                    parts.face_paths(text, str(here), plane, address.packed)
            else:
                found = parts.face_paths(text, str(here), plane, address.packed)
                assert found == [path.packed for path in theirs.paths(plane, address)]
    assert parts.face_host_address(text, str(here)) == theirs.plan.host_address(here).packed
    file = tmp_path_factory.mktemp("fabric") / "fabric.toml"
    file.write_text(text)
    settings = tmp_path_factory.mktemp("fabric") / "softmrc.toml"
    settings.write_text("[device]\nquantum = 7\n")
    ours = parts.face_settings(
        {"SOFTMRC_FABRIC": str(file), "SOFTMRC_HOST": str(here), "SOFTMRC_CONFIG": str(settings)}
    )
    assert ours["is_of_fabric"] and ours["planes"] == theirs.planes
    expected = dataclasses.asdict(DeviceConfig(**theirs.settings(quantum=7)))
    assert ours["device"] == expected


@hypothesis.settings(deadline=None)
@given(fabrics(), st.data())
def test_a_denylist_takes_the_paths_that_it_takes_from_python(text: str, data) -> None:
    shape = parse(text).fabric
    plan = FabricHost(parse(text), 0).plan
    names = [link_name(shape, link) for link in range(shape.links)]
    written = [f"{name.partition('>')[0]}>{name.partition('.')[0]}.{name.partition('>')[2]}" for name in names]
    links = data.draw(st.lists(st.sampled_from(names + written), min_size=1, max_size=8))
    listed = Denylist("drawn", (DenylistEntry("thing", "link", "dead", 1.0, tuple(links)),))
    said = json.dumps({"denylist": 1, "entries": [{"links": links}]})
    here = data.draw(st.integers(0, shape.hosts - 1))
    for to in set(range(shape.hosts)) - {here}:
        address = plan.nic_address(to, 0).packed
        assert parts.face_denied(text, str(here), said, address) == listed.evs(plan, here, to)


@pytest.mark.parametrize(
    "said, words",
    [
        ("no json", "a denylist as `softmrc mapper` writes it"),
        ("{}", '"denylist": 1 is missing'),
        ('{"denylist": 2, "entries": []}', '"denylist": 1 is missing'),
        ('{"denylist": 1}', "no list of entries"),
        ('{"denylist": 1, "entries": [7]}', "an entry has no links"),
        ('{"denylist": 1, "entries": [{"links": [7]}]}', "an entry has no links"),
        *(
            (json.dumps({"denylist": 1, "entries": [{"links": [link]}]}), "must be a directed link of the file")
            for link in ("", "leaf0", "leaf0>", "leaf0-spine0", "p9.leaf0>spine0", "leaf0>spine9", "leaf9>spine0",
                         "host0>spine0", "host3>leaf0", "leaf0>leaf1", "spine0>core0", "leaf0>spine0 ", "p.leaf0>host0")
        ),
    ],
)  # fmt: skip
def test_a_denylist_that_makes_no_sense_is_refused(said: str, words: str) -> None:
    text = "[fabric]\nplanes = 2\nhosts = 4\nhosts_per_leaf = 2\nspines = 2\n"
    address = FabricHost(parse(text), 0).plan.nic_address(3, 0).packed
    with pytest.raises(ValueError, match=re.escape(words)):
        parts.face_denied(text, "0", said, address)


def test_a_denylist_needs_a_fabric(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`SOFTMRC_DENYLIST`: needs a fabric"):
        parts.face_settings({"SOFTMRC_DENYLIST": str(tmp_path / "denylist.json")})


@pytest.mark.parametrize(
    ("text", "host", "words"),
    [
        ("", "0", "`fabric`: is missing"),
        ("[fabric]\nhosts = 7", "0", "`fabric.hosts`: must be .* .got 7"),
        ("[fabric]\nspines = 'x'", "0", "fabric.spines"),
        ("[fabric]\nhost_link_bps = '5 horses'", "0", "host_link_bps"),
        ("[fabric]\nhost_link_bps = '100'", "0", "Did you mean 100G"),
        ("[fabric]\n[addressing]\nblock = 'fcbb::/16'", "0", "addressing.block"),
        ("[fabric]\n[addressing]\nplane_in = 'usid'", "0", "plane_in"),
        ("[fabric]", "16", "`SOFTMRC_HOST`: must be the number of a host of .*, 0 to 15 .got 16"),
        ("[fabric]", "x", "SOFTMRC_HOST"),
    ],
)
def test_a_fabric_that_makes_no_sense_is_refused(tmp_path: Path, text: str, host: str, words: str) -> None:
    file = tmp_path / "fabric.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=words):
        parts.face_settings({"SOFTMRC_FABRIC": str(file), "SOFTMRC_HOST": host})
