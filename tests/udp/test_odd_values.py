"""Whatever a caller passes, to whichever argument: taken if it means something, and otherwise refused in our own words,
by name, with the value and what would be right. Never an exception of the code underneath, and never for ever.

A row is an argument, and the odd values that it takes; all others must be refused.
"""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from loopback import LIMIT_S, pair

from softmrc.config import CcProfile, DeviceConfig, EvProfile, RtrAttributes, RtsAttributes
from softmrc.connection import connect, connect_async, listen
from softmrc.device import Device, PeerPlane, QpState, QueuePair, check_carrier, iterate, port_keys, writable_memory
from softmrc.errors import ConfigError

SOME = object()
ODD: dict[str, Any] = {
    "inf": math.inf,
    "-inf": -math.inf,
    "nan": math.nan,
    "-1": -1,
    "0": 0,
    "1.5": 1.5,
    "-1.5": -1.5,
    "1e300": 1e300,
    "2^70": 1 << 70,
    "10^400": 10**400,
    "None": None,
    "True": True,
    "text": "x",
    "no text": "",
    "no bytes": b"",
    "a surrogate": "ü\ud800",
    "a zero byte": "a\0b",
    "a long word": "x" * 70,
    "a list": [],
    "a dict": {},
    "an object": SOME,
}
TEXTS = {"text", "a zero byte", "a long word"}
NAMES = TEXTS | {"a surrogate"}  # of interfaces that are not there, which is no fault of the value
HERE = ipaddress.ip_address("127.0.0.1")
PORTS = iter(range(20_000, 60_000))


class Stage:
    """What the arguments belong to."""

    def __init__(self, stack: ExitStack) -> None:
        enter = stack.enter_context
        self.device = enter(Device())
        self.cq = self.device.create_cq()
        self.peer = self.device.add_peer([PeerPlane(HERE, 9, (9,))])
        self.qp, _ = enter(pair(("127.0.0.1",)))
        self.source = self.qp.device.register(bytearray(64))
        self.listener = enter(listen(memory=bytearray(64)))
        self.near = enter(connect("127.0.0.1", self.listener.port, memory=bytearray(64)))
        self.far = enter(self.listener.accept(LIMIT_S))

    def reset(self) -> QueuePair:
        return self.device.create_qp(self.cq)

    def init(self) -> QueuePair:
        qp = self.reset()
        qp.init()
        return qp

    def rtr(self) -> QueuePair:
        qp = self.init()
        qp.rtr(self.peer, dest_qpn=3, first_psn=0)
        return qp

    def post(self, **more: Any) -> None:
        given = {"source": self.source, "offset": 0, "length": 1, "remote_va": 0, "rkey": 0} | more
        self.rtr().post_write(**given)

    def listen(self, **more: Any) -> None:
        listen(**more).close()

    def connect(self, **more: Any) -> None:
        connect(**{"host": "127.0.0.1", "port": self.listener.port, **more}).close()

    def add_peer(self, **more: Any) -> None:
        port = next(PORTS)
        self.device.add_peer([PeerPlane(**{"address": HERE, "port": port, "source_ports": (port,), **more})])


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(stack)


Row = tuple[Callable[[Stage, Any], Any], set[str]]
NUMBER = {"0", "True"}  # Python counts with it
ROWS: dict[str, Row] = {
    "Device planes": (lambda s, v: Device(v).close(), NAMES),
    "Device a plane": (lambda s, v: Device([v]).close(), NAMES),
    "Device config": (lambda s, v: Device(config=v).close(), {"None"}),
    "Device config and fields": (lambda s, v: Device(config=DeviceConfig(), mtu=v).close(), set()),
    "Device routes": (lambda s, v: Device(routes=v).close(), {"None"}),
    "Device.register buffer": (lambda s, v: s.device.register(v), set()),
    "Device.register remote_write": (lambda s, v: s.device.register(bytearray(4), remote_write=v), {"True"}),
    "Device.register domain": (lambda s, v: s.device.register(bytearray(4), domain=v), {"None"}),
    "Device.create_qp send_cq": (lambda s, v: s.device.create_qp(v), set()),
    "Device.create_qp recv_cq": (lambda s, v: s.device.create_qp(s.cq, v), {"None"}),
    "Device.create_qp domain": (lambda s, v: s.device.create_qp(s.cq, domain=v), {"None"}),
    "Device.add_peer": (lambda s, v: s.device.add_peer(v), set()),
    "Device.add_peer a plane": (lambda s, v: s.device.add_peer([v]), set()),
    "PeerPlane address": (lambda s, v: s.add_peer(address=v), set()),
    "PeerPlane port": (lambda s, v: s.add_peer(port=v), {"True"}),
    "PeerPlane source_ports": (lambda s, v: s.add_peer(source_ports=v), {"a list"}),
    "PeerPlane a source port": (lambda s, v: s.add_peer(source_ports=(v,)), {"True"}),
    "PeerPlane scope_id": (lambda s, v: s.add_peer(scope_id=v), NUMBER),
    "PeerPlane paths": (lambda s, v: s.add_peer(paths=v), {"a list"}),
    "PeerPlane a path": (lambda s, v: s.add_peer(paths=(v,)), set()),
    "Device.remove_peer": (lambda s, v: s.device.remove_peer(v), set()),
    "Device.profile_for": (lambda s, v: s.device.profile_for(v), set()),
    "Device.poll_events": (lambda s, v: s.device.poll_events(v), NUMBER),
    "Device.probe peer": (lambda s, v: s.device.probe(v, 0, 0, 0), set()),
    "Device.probe plane": (lambda s, v: s.device.probe(s.peer, v, 0, 0), {"0"}),
    "Device.probe ev": (lambda s, v: s.device.probe(s.peer, 0, v, 0), NUMBER),
    "Device.probe token": (lambda s, v: s.device.probe(s.peer, 0, 0, v), NUMBER),
    "Device.set_faults plane": (lambda s, v: s.device.set_faults(v), {"None", "0"}),
    "Device.set_faults what": (lambda s, v: s.device.set_faults(rain=v), set()),
    "Device.fault_stats": (lambda s, v: s.device.fault_stats(v), {"0"}),
    "Device.set_port plane": (lambda s, v: s.device.set_port(v, True), {"0"}),
    "Device.set_port up": (lambda s, v: s.device.set_port(0, v), {"True"}),
    "Device.capture": (lambda s, v: s.device.capture(v), {"text", "a long word"}),
    "Device.capture most_bytes": (lambda s, v: s.device.capture("/dev/null", v).stop(), NUMBER),
    "CompletionQueue.poll": (lambda s, v: s.cq.poll(v), NUMBER),
    "CompletionQueue.wait timeout_s": (lambda s, v: s.cq.wait(v), {"None", "0", "1.5"}),
    "CompletionQueue.wait most": (lambda s, v: s.cq.wait(0, v), NUMBER),
    "CompletionQueue.wait_async": (lambda s, v: asyncio.run(s.cq.wait_async(v)), NUMBER),
    "iterate queue": (lambda s, v: list(iterate(v, 0)), set()),
    "iterate timeout_s": (lambda s, v: list(iterate(s.cq, v)), {"None", "0", "1.5"}),
    "QueuePair.init ev_profile": (lambda s, v: s.reset().init(ev_profile=v), {"None"}),
    "QueuePair.init cc_profile": (lambda s, v: s.reset().init(cc_profile=v), {"None"}),
    "QueuePair.rtr peer": (lambda s, v: s.init().rtr(v, dest_qpn=3, first_psn=0), set()),
    "QueuePair.rtr dest_qpn": (lambda s, v: s.init().rtr(s.peer, dest_qpn=v, first_psn=0), set()),
    "QueuePair.rtr first_psn": (lambda s, v: s.init().rtr(s.peer, dest_qpn=3, first_psn=v), NUMBER),
    "QueuePair.rtr mtu": (lambda s, v: s.init().rtr(s.peer, dest_qpn=3, first_psn=0, mtu=v), {"None"}),
    "QueuePair.rtr what": (lambda s, v: s.init().rtr(s.peer, dest_qpn=3, first_psn=0, rain=v), set()),
    "QueuePair.rts what": (lambda s, v: s.rtr().rts(rain=v), set()),
    "QueuePair.modify": (lambda s, v: s.reset().modify(v), set()),
    "QueuePair.modify what": (lambda s, v: s.reset().modify(QpState.INIT, rain=v), set()),
    "QueuePair.modify too little": (lambda s, v: s.init().modify(QpState.RTR, dest_qpn=v), set()),
    "QueuePair.post_write source": (lambda s, v: s.post(source=v), set()),
    "QueuePair.post_write offset": (lambda s, v: s.post(offset=v), NUMBER),
    "QueuePair.post_write length": (lambda s, v: s.post(length=v), NUMBER),
    "QueuePair.post_write remote_va": (lambda s, v: s.post(remote_va=v), NUMBER),
    "QueuePair.post_write rkey": (lambda s, v: s.post(rkey=v), NUMBER),
    "QueuePair.post_write wr_id": (lambda s, v: s.post(wr_id=v), NUMBER),
    "QueuePair.post_write imm": (lambda s, v: s.post(imm=v), NUMBER | {"None"}),
    "QueuePair.post_write signaled": (lambda s, v: s.post(signaled=v), {"True"}),
    "QueuePair.post_recv wr_id": (lambda s, v: s.rtr().post_recv(v), NUMBER),
    "QueuePair.post_recv count": (lambda s, v: s.rtr().post_recv(count=v), NUMBER),
    "QueuePair.deny_ev": (lambda s, v: s.qp.deny_ev(v), {"0"}),
    "QueuePair.allow_ev": (lambda s, v: s.qp.allow_ev(v), {"0"}),
    "QueuePair.replace_ev index": (lambda s, v: s.qp.replace_ev(v, 5), {"0"}),
    "QueuePair.replace_ev value": (lambda s, v: s.qp.replace_ev(0, v), {"0"}),
    "port_keys given": (lambda s, v: port_keys(v, 1), NUMBER),
    "port_keys told": (lambda s, v: port_keys(1, v), NUMBER),
    "check_carrier value": (lambda s, v: check_carrier("value", v, PeerPlane(HERE, 9)), set()),
    "check_carrier plane": (lambda s, v: check_carrier("value", bytes(16), v), set()),
    "writable_memory": (lambda s, v: writable_memory(v), {"no bytes"}),
    "listen host": (lambda s, v: s.listen(host=v), {"text"}),  # a name that DNS would be queried for
    "listen port": (lambda s, v: s.listen(port=v), {"0"}),
    "listen memory": (lambda s, v: s.listen(memory=v), {"None", "a list"}),
    "listen a memory": (lambda s, v: s.listen(memory=[v]), set()),
    "listen secret": (lambda s, v: s.listen(secret=v), TEXTS | {"None"}),
    "listen device": (lambda s, v: s.listen(device=v), {"None"}),
    "listen planes": (lambda s, v: s.listen(planes=v), {"None"} | NAMES),
    "listen what": (lambda s, v: s.listen(rain=v), set()),
    "connect host": (lambda s, v: s.connect(host=v), {"text"}),
    "connect port": (lambda s, v: s.connect(port=v), set()),
    "connect memory": (lambda s, v: s.connect(memory=v), {"None", "a list"}),
    "connect secret": (lambda s, v: s.connect(secret=v), TEXTS | {"None"}),
    "connect device": (lambda s, v: s.connect(device=v), {"None"}),
    "connect planes": (lambda s, v: s.connect(planes=v), {"None"} | NAMES),
    "connect timeout_s": (lambda s, v: s.connect(timeout_s=v), {"1.5"}),
    "connect what": (lambda s, v: s.connect(rain=v), set()),
    "connect_async host": (lambda s, v: asyncio.run(connect_async(v, s.listener.port)), {"text"}),
    "connect_async timeout_s": (lambda s, v: asyncio.run(connect_async("127.0.0.1", 1, timeout_s=v)), {"1.5"}),
    "Listener.accept": (lambda s, v: s.listener.accept(v), {"None", "0", "1.5"}),
    "Connection.write remote": (lambda s, v: s.near.write(v, 0, b"x"), set()),
    "Connection.write offset": (lambda s, v: s.near.write(s.near.remote[0], v, b"x"), NUMBER),
    "Connection.write buffer": (lambda s, v: s.near.write(s.near.remote[0], 0, v), {"no bytes"}),
    "Connection.write imm": (lambda s, v: s.near.write(s.near.remote[0], 0, b"x", imm=v), NUMBER | {"None"}),
    "Connection.write_async remote": (lambda s, v: asyncio.run(s.near.write_async(v, 0, b"x")), set()),
    "Connection.wait number": (lambda s, v: s.near.wait(v), {"True"}),
    "Connection.wait timeout_s": (lambda s, v: s.near.wait(1, v), {"None", "0", "1.5"}),
    "Connection.recv": (lambda s, v: s.near.recv(v), {"None", "0", "1.5"}),
    "Connection.close": (lambda s, v: s.near.close(v), {"0", "1.5"}),
}
for name in ("drop", "duplicate", "reorder", "corrupt", "mark", "trim"):
    ROWS[f"faults {name}"] = (lambda s, v, name=name: s.device.set_faults(0, **{name: v}), {"0"})
for name in ("delay_us", "reorder_delay_us"):
    ROWS[f"faults {name}"] = (lambda s, v, name=name: s.device.set_faults(0, **{name: v}), {"0", "1.5"})
ROWS["faults black_hole"] = (lambda s, v: s.device.set_faults(0, black_hole=v), {"True"})


def rows_of(kind: Any, call: Callable[[Stage, dict[str, Any]], Any], taken: dict[str, set[str]]) -> None:
    """One for each field, and what its type takes unless something else is said of it."""
    usual = {"bool": {"True"}, "int": NUMBER, "float": {"0", "1.5"}, "Any": set()}
    for item in dataclasses.fields(kind):
        by_type = usual.get(str(item.type), {"a list"})
        row = (lambda s, v, name=item.name: call(s, {name: v}), taken.get(item.name, by_type))
        ROWS[f"{kind.__name__} {item.name}"] = row


FRACTION = {"1.5"}
ONE, NONE, MORE, ANY = {"True"}, set[str](), {"1.5", "True"}, {"0", "1.5", "True"}
rows_of(
    DeviceConfig,
    lambda s, given: Device(**given).close(),
    {
        **dict.fromkeys(("sockets_per_plane", "sack_threshold_bytes", "max_wimm", "max_send_wr"), ONE),
        **dict.fromkeys(("mtu_limit", "mpr"), NONE),
        "rate_bps": {"0"},
        **dict.fromkeys(("base_rtt_us", "probe_interval_us"), FRACTION),
        "mtu": {"0"},
    },
)
rows_of(
    RtrAttributes,
    lambda s, given: s.init().rtr(**{"peer": s.peer, "dest_qpn": 3, "first_psn": 0, **given}),
    {"peer": NONE, "dest_qpn": NONE, "mtu": {"None"}, "max_wimm_dest": ONE, "mpr_dest": NONE},
)
rows_of(
    RtsAttributes,
    lambda s, given: s.rtr().rts(**given),
    {"max_wimm": ONE, "max_send_wr": ONE, "mpr": NONE},
)
rows_of(
    EvProfile,
    lambda s, given: s.reset().init(ev_profile=EvProfile(**given)),
    {"mode": {"0"}, "format": NUMBER, "count": ONE, "value_bits": ONE, "spray_quantum": ONE},
)
rows_of(
    CcProfile,
    lambda s, given: s.reset().init(cc_profile=CcProfile(**given)),
    {
        "algorithm": NUMBER,
        **dict.fromkeys(("rate_bps", "window_bytes"), NONE),
        **dict.fromkeys(("base_rtt_us", "max_window_bdp"), MORE),
        **dict.fromkeys(
            ("min_base_rtt_us", "min_reorder_window_us", "target_delay_us", "shared_window_bdp"), {"0"} | MORE
        ),
        **dict.fromkeys(("gamma", "max_md_jump"), NUMBER),
    },
)


def outcome(call: Callable[[], Any]) -> Any:
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(("returned", call()))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    return found[0] if found else "still waiting"


@pytest.mark.parametrize("name", ROWS)
def test_what_makes_no_sense_is_refused_by_name(stage: Stage, name: str) -> None:
    call, taken = ROWS[name]
    assert taken <= set(ODD)
    for odd in ODD.keys() - taken:
        error = outcome(lambda value=ODD[odd]: call(stage, value))
        assert isinstance(error, ConfigError), f"{odd}: {error!r}"
        assert error.field and error.problem, odd


def test_no_time_takes_what_is_there(stage: Stage) -> None:
    """0 is an odd value that means something."""
    near, far = stage.near, stage.far
    number = near.post(near.remote[0], 0, b"x", imm=5)
    message = None
    for _ in range(10_000):
        try:
            message = far.recv(0)
            break
        except TimeoutError:
            threading.Event().wait(0.001)
    assert message is not None and message.imm == 5
    near.wait(number, LIMIT_S)
    with pytest.raises(ConfigError, match="number"):
        near.wait(number + 1)
