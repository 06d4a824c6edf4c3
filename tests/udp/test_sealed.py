"""Connections whose packets are encrypted: they work as others do, and both ends agree or say why not."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from loopback import FOUR, drain, eventually

from ports import free_ports
from softmrc import _core, wire
from softmrc._core import Cipher, SealKeys
from softmrc.config import DeviceConfig, planes
from softmrc.config.planes import LocalPlane
from softmrc.connection import Connection, connect, listen
from softmrc.connection import keys as sealing
from softmrc.connection.handshake import Session
from softmrc.device import Device, QueuePair
from softmrc.engine import EventType, EvState
from softmrc.errors import ConfigError, RemoteError, UsageError

pytestmark = pytest.mark.skipif(not _core.can_seal(), reason="needs libcrypto")

SECRET = "open sesame"
LIMIT_S = 20.0


@contextmanager
def connected(size: int = 1 << 20, **settings: Any) -> Iterator[tuple[Connection, Connection, bytearray]]:
    memory = bytearray(size)
    both = {"secret": SECRET, "seal": "on", **settings}
    where = both.pop("planes", ["127.0.0.1"])
    with (
        listen(memory=memory, planes=where, **both) as listener,
        connect("127.0.0.1", listener.port, planes=where, **both) as mine,
        listener.accept(LIMIT_S) as theirs,
    ):
        yield mine, theirs, memory


def refusals(connection: Connection) -> int:
    """Of what came after the keys; before that an encrypted probe looks like a damaged packet."""
    stats = connection.device.stats()
    return sum(stats[f"refused_{why}"] for why in ("forged", "unsealed", "replayed", "malformed"))


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 1023, 16256, 16257, 300_001])
def test_every_size_arrives(size: int) -> None:
    data = bytes(i * 7 % 251 for i in range(size))
    with connected() as (mine, theirs, memory):
        assert mine.is_sealed and theirs.is_sealed
        mine.write(mine.remote[0], 5, data, imm=size + 1)
        assert theirs.recv(LIMIT_S).imm == size + 1
        assert memory[5 : 5 + size] == data and not any(memory[5 + size :]) and not any(memory[:5])
        assert refusals(mine) == refusals(theirs) == 0


def test_faults_are_survived() -> None:
    """Loss, copies, disorder, damage and trims, on four planes; and keys that do not last."""
    data = bytes(i * 13 % 241 for i in range(1 << 20))
    with connected(planes=list(FOUR), trimming=True, mtu=4096, rekey_packets=100) as (mine, theirs, memory):
        for device in (mine.device, theirs.device):
            for plane in range(4):
                device.set_faults(plane, drop=0.01, duplicate=0.02, reorder=0.05, corrupt=0.02, trim=0.05, mark=0.05)
        for turn in range(3):
            mine.write(mine.remote[0], 0, data[turn:] + data[:turn], imm=turn)
            assert theirs.recv(LIMIT_S).imm == turn
            assert memory == data[turn:] + data[:turn]
        stats = theirs.device.stats()
        assert stats["refused_forged"] + stats["refused_unsealed"] > 0, "damage is noticed"
        assert stats["refused_replayed"] > 0, "and so are copies"
        assert theirs.qp.stats()["packets_trimmed"] > 0, "and trims are understood"


def test_nothing_of_it_is_on_the_wire(tmp_path: Path) -> None:
    data = b"only the peer reads this" * 1000
    with connected() as (mine, theirs, _), mine.device.capture(tmp_path / "sealed.pcapng"):
        mine.write(mine.remote[0], 0, data, imm=0x5EC2E7)
        theirs.recv(LIMIT_S)
    seen = (tmp_path / "sealed.pcapng").read_bytes()
    assert len(seen) > len(data) and b"only the peer" not in seen and (0x5EC2E7).to_bytes(4, "big") not in seen


def test_what_keys_are_made_of_is_forgotten() -> None:
    """Or an attacker in the process later could derive the first keys again, and read what was recorded then."""
    with connected() as (mine, theirs, _):
        assert mine._session.exporter is None and theirs._session.exporter is None
    assert "exporter" not in repr(Session(True, "somebody", bytes(32)))


def test_payloads_leave_room_for_the_seal() -> None:
    with Device(["127.0.0.1"]) as device:
        assert device.payload(True) == device.payload(False) == device.mtu, "loopback has room"
        narrow = list(device.local_planes)
        for link_mtu, plain, sealed in ((1500, 1408, 1280), (9000, 8832, 8832)):
            planes_of = [LocalPlane(plane.address, plane.interface, plane.link, link_mtu) for plane in narrow]
            assert planes.payload_mtu(planes_of) == plain
            assert planes.sealed_mtu(planes_of, plain) == sealed
            whole = sealed + _core.LONGEST_SEALED_OVERHEAD + planes.UDP_BYTES + 20
            assert whole <= link_mtu


def test_words_about_ports_are_sealed_and_believed() -> None:
    with connected(planes=list(FOUR)) as (mine, theirs, _):
        mine.write(mine.remote[0], 0, b"x")
        theirs.device.set_port(2, False)

        def is_told() -> bool:
            return any(
                event.type == EventType.peer_ports and not event.value >> 2 & 1 for event in mine.device.poll_events()
            )

        assert eventually(is_told)
        assert refusals(mine) == refusals(theirs) == 0


def test_paths_that_fell_are_revived_by_sealed_probes() -> None:
    data = bytes(1 << 20)
    with connected(planes=list(FOUR), mtu=4096) as (mine, theirs, _):
        mine.device.set_faults(1, black_hole=True)
        for _turn in range(3):
            mine.write(mine.remote[0], 0, data)

        def states() -> set[int]:
            return set(mine.qp.evs()["state"].tolist())

        assert eventually(lambda: EvState.ASSUMED_BAD.value in states() or bool(mine.write(mine.remote[0], 0, data)))
        mine.device.set_faults(1)
        assert eventually(lambda: EvState.ASSUMED_BAD.value not in states())
        assert refusals(theirs) == 0


def test_who_writes_to_one_that_left_is_told_under_seal() -> None:
    with connected() as (mine, theirs, _):
        mine.write(mine.remote[0], 0, b"x" * 1000)
        theirs.qp.destroy()
        with pytest.raises(RemoteError, match="takes nothing any more"):
            mine.write(mine.remote[0], 0, b"y" * 1000)
        assert refusals(mine) == 0


# Agreement.


def refused(theirs: dict[str, Any], mine: dict[str, Any]) -> tuple[str, str]:
    """What either side says when they do not agree."""
    with listen(memory=bytearray(8), secret=SECRET, **theirs) as listener:
        with pytest.raises(RemoteError) as caught:
            connect("127.0.0.1", listener.port, secret=SECRET, **mine).close()
        assert eventually(lambda: listener.refused.count == 1)
        return str(caught.value), listener.refused.reasons[0]


@pytest.mark.parametrize("on_here", [True, False])
def test_a_mismatch_is_said_on_both_sides(on_here: bool) -> None:  # spec: seal-agreed
    theirs, mine = ({"seal": "off"}, {"seal": "on"}) if on_here else ({"seal": "on"}, {"seal": "off"})
    for said in refused(theirs, mine):
        assert "packets are encrypted at one side and not at the other; set seal alike" in said


def test_loopback_is_not_sealed_unless_told() -> None:
    with connected(seal="auto") as (mine, theirs, _):
        assert not mine.is_sealed and not theirs.is_sealed


class Elsewhere:
    """A device with one plane that leaves the machine."""

    def __init__(self, seal: str) -> None:
        self.config = DeviceConfig(seal=seal)
        self.local_planes = [LocalPlane(ipaddress.ip_address(a), "", "", 0) for a in ("127.0.0.1", "192.0.2.1")]


def test_what_leaves_the_machine_is_sealed_where_there_is_a_secret() -> None:
    wanted = {(seal, has): sealing.is_wanted(Elsewhere(seal), has) for seal in ("auto", "off") for has in (True, False)}  # type: ignore[arg-type]
    assert wanted == {("auto", True): True, ("auto", False): False, ("off", True): False, ("off", False): False}
    assert sealing.is_wanted(Elsewhere("on"), True)  # type: ignore[arg-type]


def test_it_takes_a_secret() -> None:
    with pytest.raises(ConfigError, match="`seal`: needs a shared secret"):
        listen(memory=bytearray(8), seal="on")


def test_who_may_not_listen_without_a_secret_may_at_once_with_one() -> None:
    """Though the first error, and what it came through, is still there."""
    port = free_ports()
    with pytest.raises(ConfigError) as kept:
        listen(port=port, seal="on")
    with listen(port=port, secret=SECRET, seal="on") as listener:
        assert listener.port == port and kept.tb is not None


@pytest.mark.parametrize("bad", [{"rekey_s": 9}, {"rekey_packets": 15}, {"rekey_packets": (1 << 36) + 1}])
def test_keys_serve_for_a_while(bad: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="rekey"):
        Device(["127.0.0.1"], **bad)


@pytest.mark.parametrize("bad", ["", "yes", "ON", None, 1])
def test_only_three_words_are_known(bad: object) -> None:
    with pytest.raises(ConfigError, match="'auto', 'on' or 'off'"):
        Device(["127.0.0.1"], seal=bad)


def test_a_build_without_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "can_seal", lambda: False)
    for choice in ("on", "auto"):
        with pytest.raises(ConfigError, match="needs libcrypto"):
            sealing.is_wanted(Elsewhere(choice), True)  # type: ignore[arg-type]
    assert not sealing.is_wanted(Elsewhere("off"), True)  # type: ignore[arg-type]


def test_a_bad_key_log_is_nobody_elses_affair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found before anything is offered, and what the peer hears has no path of this machine in it."""
    with listen(memory=bytearray(8), secret=SECRET, seal="on") as listener:
        monkeypatch.setenv("SOFTMRC_KEYLOG", str(tmp_path / "nowhere" / "keys"))
        with pytest.raises(ConfigError, match="SOFTMRC_KEYLOG"):
            connect("127.0.0.1", listener.port, secret=SECRET, seal="on")
        assert eventually(lambda: listener.refused.count == 1)
        assert "nowhere" not in listener.refused.reasons[0]
        with pytest.raises(ConfigError, match="SOFTMRC_KEYLOG"):
            listen(memory=bytearray(8), secret=SECRET, seal="on")


# Queue pairs by hand.


def keys_of_both() -> tuple[SealKeys, SealKeys]:
    return SealKeys(Cipher.AES_256_GCM, bytes(32), b"\1" * 32), SealKeys(Cipher.AES_256_GCM, b"\1" * 32, bytes(32))


def joined(a: Device, b: Device, seals: tuple[SealKeys | None, SealKeys | None]) -> tuple[QueuePair, QueuePair]:
    qps = a.create_qp(a.create_cq()), b.create_qp(b.create_cq())
    peers = a.add_peer(qps[1].reached_at), b.add_peer(qps[0].reached_at)
    for qp, other, peer, seal in zip(qps, reversed(qps), peers, seals, strict=True):
        qp.init()
        qp.rtr(peer, dest_qpn=other.qpn, first_psn=other.first_psn, seal=seal)
        qp.rts()
    return qps


def writes(qp: QueuePair, target: Any) -> bool:
    source = qp.device.register(b"x" * 5000)
    qp.post_write(source, 0, 5000, remote_va=target.va, rkey=target.rkey)
    return [c.ok for c in drain(qp.send_cq, 1)] == [True]


def test_several_queue_pairs_to_a_peer_have_keys_of_their_own() -> None:
    with Device(["127.0.0.1"], lanes=1) as a, Device(["127.0.0.1"], lanes=1) as b:
        target = b.register(bytearray(5000), remote_write=True)
        pairs = [joined(a, b, keys_of_both()) for _ in range(3)]
        assert all(writes(qp, target) for qp, _ in pairs)
        pairs[0][0].destroy()
        assert all(writes(qp, target) for qp, _ in pairs[1:]), "what one peer's queue pair leaves behind is its own"


def test_a_peer_is_sealed_or_it_is_not() -> None:  # spec: seal-agreed
    with Device(["127.0.0.1"], lanes=1) as a, Device(["127.0.0.1"], lanes=1) as b:
        joined(a, b, keys_of_both())
        with pytest.raises(ConfigError, match="other queue pairs to this peer are encrypted"):
            joined(a, b, (None, None))
    with Device(["127.0.0.1"], lanes=1) as a, Device(["127.0.0.1"], lanes=1) as b:
        joined(a, b, (None, None))
        with pytest.raises(ConfigError, match="other queue pairs to this peer are not encrypted"):
            joined(a, b, keys_of_both())


def test_a_peer_is_sealed_in_every_lane_or_in_none() -> None:  # spec: seal-agreed
    with Device(["127.0.0.1"], lanes=2) as a, Device(["127.0.0.1"], lanes=1) as b:
        qps = joined(a, b, keys_of_both())
        other = a.create_qp(a.create_cq())
        assert other.qpn % 2 != qps[0].qpn % 2, "in another lane"
        other.init()
        with pytest.raises(ConfigError, match="other queue pairs to this peer are encrypted"):
            other.rtr(a.add_peer(qps[1].reached_at), dest_qpn=7, first_psn=0)


def test_nobody_else_is_given_what_goes_to_a_queue_pair() -> None:
    """Who poses as the same node and names the same queue pair there is refused; and whatever it has keys for, each
    queue pair's packets leave under its own."""
    with Device(["127.0.0.1"], lanes=1) as a, Device(["127.0.0.1"], lanes=1) as b:
        target = b.register(bytearray(5000), remote_write=True)
        qps = joined(a, b, keys_of_both())
        thief = a.create_qp(a.create_cq())
        thief.init()
        with pytest.raises(ConfigError, match="dest_qpn"):
            seal = SealKeys(Cipher.AES_256_GCM, b"\2" * 32, b"\3" * 32)
            thief.rtr(a.add_peer(qps[1].reached_at), dest_qpn=qps[1].qpn, first_psn=0, seal=seal)
        assert writes(qps[0], target)
        assert b.stats()["refused_forged"] == 0


def test_what_is_refused_costs_no_keys(tmp_path: Path) -> None:
    """A second `rtr`, at either end: the queue pair works as before, and its packets are encrypted as before."""
    with Device(["127.0.0.1"], lanes=1) as a, Device(["127.0.0.1"], lanes=1) as b:
        memory = bytearray(5000)
        target = b.register(memory, remote_write=True)
        qps = joined(a, b, keys_of_both())
        assert writes(qps[0], target)
        for qp, other, seal in zip(qps, reversed(qps), keys_of_both(), strict=True):
            assert qp.peer is not None
            with pytest.raises(UsageError):
                qp.rtr(qp.peer, dest_qpn=other.qpn, first_psn=other.first_psn, seal=seal)
        memory[:] = bytes(5000)
        with a.capture(tmp_path / "seen.pcapng"):
            assert writes(qps[0], target)
        assert memory == b"x" * 5000
        assert b"x" * 100 not in (tmp_path / "seen.pcapng").read_bytes()


def test_keys_are_used_once() -> None:
    """Numbers restart with each queue pair: the same keys again would be the same nonces again."""
    with Device(["127.0.0.1"], lanes=1) as a, Device(["127.0.0.1"], lanes=1) as b:
        keys = keys_of_both()
        qps = joined(a, b, keys)
        for qp in qps:
            qp.destroy()
        with pytest.raises(ConfigError, match="never used"):
            joined(a, b, keys)


def test_a_peer_stays_sealed_when_its_keys_are_gone() -> None:
    """A little after its last queue pair nothing can be said to it any more, least of all in the clear."""
    with Device(["127.0.0.1"], lanes=1) as a, Device(["127.0.0.1"], lanes=1) as b:
        target = b.register(bytearray(5000), remote_write=True)
        qps = joined(a, b, keys_of_both())
        assert writes(qps[0], target)
        peer = qps[0].peer
        assert peer is not None
        qps[0].destroy()

        def is_keyless() -> bool:
            a.probe(peer, 0, 1, 1)
            return bool(a.planes()[0]["keyless"])

        assert eventually(is_keyless)
        assert b.stats()["refused_unsealed"] == b.stats()["refused_forged"] == 0


def test_when_the_last_sealed_one_is_gone_others_may_be_plain() -> None:
    with Device(["127.0.0.1"], lanes=1) as a, Device(["127.0.0.1"], lanes=1) as b:
        target = b.register(bytearray(5000), remote_write=True)
        for seals in (keys_of_both(), (None, None), keys_of_both()):
            qps = joined(a, b, seals)
            assert writes(qps[0], target)
            for qp in qps:
                qp.destroy()


def test_plain_packets_of_a_sealed_peer_are_refused() -> None:
    """An end that does not encrypt counts as a forger at the other."""
    with (
        Device(["127.0.0.1"], lanes=1, timeout=12, retry_linear=2, retry_exponential=0) as a,
        Device(["127.0.0.1"], lanes=1) as b,
    ):
        memory = bytearray(5000)
        target = b.register(memory, remote_write=True)
        qps = joined(a, b, (None, keys_of_both()[1]))
        source = a.register(b"x" * 5000)
        qps[0].post_write(source, 0, 5000, remote_va=target.va, rkey=target.rkey)
        assert [c.ok for c in drain(qps[0].send_cq, 1)] == [False]
        assert not any(memory) and b.stats()["refused_unsealed"] > 0


def test_many_connections_at_once() -> None:
    memory = bytearray(8 * 1000)
    with listen(memory=memory, secret=SECRET, seal="on") as listener:

        def one(number: int) -> None:
            with connect("127.0.0.1", listener.port, secret=SECRET, seal="on") as connection:
                connection.write(connection.remote[0], number * 1000, bytes([number + 1]) * 1000)

        threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert memory == b"".join(bytes([number + 1]) * 1000 for number in range(8))


def test_a_packet_of_the_wire_module_is_refused_when_it_is_sealed() -> None:
    """An implementation without encryption takes it for another version."""
    sealed = bytearray(bytes(wire.Packet("sack", dqp=3, psn=7)))
    sealed[1] |= 1
    with pytest.raises(wire.Refused, match="version"):
        wire.Packet.parse(bytes(sealed))
