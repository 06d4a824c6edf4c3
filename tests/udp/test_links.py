"""Whether a port is up: its administrator's word and its link's are two facts. Links in namespaces; needs root."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import needs
from softmrc_bench.veth import VethPair, address_of, link_of, planes_of, veth_planes

pytestmark = needs.NAMESPACES

# A device that executes commands from its standard input, and answers with the state of its planes.
DEVICE = """
import json, sys, time
from softmrc.device import Device

with Device(json.loads(sys.argv[1])) as device:
    print("open", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if "up" in order:
            device.set_port(order["plane"], order["up"])
        until = time.monotonic() + order.get("wait_s", 0)
        while True:
            rows = [[row["is_up"], row["is_admin_up"], row["is_link_up"]] for row in device.planes()]
            if rows == order.get("wanted", rows) or time.monotonic() > until:
                break
            time.sleep(0.005)
        print(json.dumps(rows), flush=True)
"""
UP, DOWN = [True, True, True], [False, True, False]
OUT_OF_SERVICE, BOTH = [False, False, True], [False, False, False]


class Far:
    """The device in the namespace."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def planes(self, wanted: list[list[bool]], **order: Any) -> list[list[bool]]:
        """The planes' states, as soon as they are what is wanted."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"wanted": wanted, "wait_s": 10, **order}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@contextmanager
def device(planes: list[str] | None = None) -> Iterator[tuple[VethPair, Far]]:
    with veth_planes(2) as lab:
        where = json.dumps(planes or planes_of(0, 2))
        command = ["ip", "netns", "exec", lab.names[0], sys.executable, "-c", DEVICE, where]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            yield lab, Far(process)
            process.stdin.close()  # type: ignore[union-attr]


def test_what_the_administrator_took_down_stays_down_whatever_the_link_says() -> None:
    with device() as (lab, far):
        assert far.planes([UP, OUT_OF_SERVICE], plane=1, up=False) == [UP, OUT_OF_SERVICE]
        lab.ip(0, "link", "set", link_of(0, 1), "mtu", "1400")
        lab.set_link(0, 0, False)  # the kernel's messages come in order: when this is known, so is that
        assert far.planes([DOWN, OUT_OF_SERVICE]) == [DOWN, OUT_OF_SERVICE]
        lab.set_link(0, 1, False)
        lab.set_link(0, 0, True)
        assert far.planes([UP, BOTH]) == [UP, BOTH]
        lab.set_link(0, 1, True)
        assert far.planes([UP, OUT_OF_SERVICE]) == [UP, OUT_OF_SERVICE]
        assert far.planes([UP, UP], plane=1, up=True) == [UP, UP]


def test_what_the_link_took_down_stays_down_whatever_the_administrator_says() -> None:
    with device() as (lab, far):
        lab.set_link(0, 1, False)
        assert far.planes([UP, DOWN]) == [UP, DOWN]
        assert far.planes([UP, BOTH], plane=1, up=False) == [UP, BOTH]
        assert far.planes([UP, DOWN], plane=1, up=True) == [UP, DOWN]
        lab.set_link(0, 1, True)
        assert far.planes([UP, UP]) == [UP, UP]


def test_news_that_did_not_fit_are_read_anew() -> None:
    """A device that is not scheduled while the kernel has more to say than it keeps."""
    with device() as (lab, far):
        os.kill(far.process.pid, signal.SIGSTOP)
        changes = "".join(f"link set {link_of(0, 1)} mtu {1300 + i % 100}\n" for i in range(1500))
        subprocess.run(["ip", "-n", lab.names[0], "-batch", "-"], input=changes, text=True, check=True)
        lab.set_link(0, 0, False)
        os.kill(far.process.pid, signal.SIGCONT)
        assert far.planes([DOWN, UP]) == [DOWN, UP]


def test_an_interface_that_is_gone_is_down() -> None:
    with device() as (lab, far):
        lab.ip(0, "link", "del", link_of(0, 1))
        assert far.planes([UP, DOWN]) == [UP, DOWN]


# One end of a connection. Told of a plane, it writes until packets have come in by that one, too.
LISTENING = """
import json, sys
from softmrc.connection import listen

with listen(sys.argv[1], memory=bytearray(1 << 20), planes=json.loads(sys.argv[2]), secret="of links") as listener:
    print(listener.port, flush=True)
    with listener.accept(60):
        sys.stdin.read()
"""
WRITING = """
import json, sys, time
from softmrc.connection import connect

with connect(sys.argv[1], int(sys.argv[2]), planes=json.loads(sys.argv[3]), secret="of links") as connection:
    print("open", flush=True)
    for line in sys.stdin:
        plane, until = int(line), time.monotonic() + 60
        before = connection.device.planes()[plane]["packets_received"]
        while connection.device.planes()[plane]["packets_received"] < before + 20 and time.monotonic() < until:
            connection.write(connection.remote[0], 0, bytes(1 << 16))
        print(connection.device.planes()[plane]["packets_received"] - before >= 20, flush=True)
"""


@contextmanager
def speaking(lab: VethPair, side: int, program: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A program in a namespace, and the first thing that it says."""
    command = ["ip", "netns", "exec", lab.names[side], sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.stdin.close()  # type: ignore[union-attr]


def make_anew(lab: VethPair, plane: int) -> None:
    """As when a driver is loaded again: the same names and addresses, other indexes."""
    near, far = link_of(0, plane), link_of(1, plane)
    lab.ip(0, "link", "add", near, "type", "veth", "peer", "name", far, "netns", lab.names[1])
    for side in (0, 1):
        lab.ip(side, "addr", "add", f"{address_of(side, plane)}/24", "dev", link_of(side, plane))
        lab.ip(side, "link", "set", link_of(side, plane), "up")


def test_an_interface_that_is_made_anew_is_found_again() -> None:
    with device() as (lab, far):
        lab.ip(0, "link", "del", link_of(0, 1))
        assert far.planes([UP, DOWN]) == [UP, DOWN]
        make_anew(lab, 1)
        assert far.planes([UP, UP], wait_s=60) == [UP, UP]
        lab.set_link(0, 1, False)
        assert far.planes([UP, DOWN], wait_s=60) == [UP, DOWN]


def test_an_address_that_moves_to_another_interface_takes_the_plane_along() -> None:
    with device([address_of(0, 0), address_of(0, 1)]) as (lab, far):
        assert far.planes([UP, UP]) == [UP, UP]
        lab.ip(0, "addr", "del", f"{address_of(0, 1)}/24", "dev", link_of(0, 1))
        lab.ip(0, "addr", "add", f"{address_of(0, 1)}/24", "dev", link_of(0, 0))
        lab.set_link(0, 1, False)
        lab.set_link(0, 0, False)
        assert far.planes([DOWN, DOWN], wait_s=60) == [DOWN, DOWN]
        lab.set_link(0, 0, True)
        assert far.planes([UP, UP], wait_s=60) == [UP, UP], "though the other link is still down"


def test_a_connection_uses_an_interface_that_was_made_anew() -> None:
    with (
        veth_planes(2) as lab,
        speaking(lab, 1, LISTENING, address_of(1, 0), json.dumps(planes_of(1, 2))) as (_, port),
        speaking(lab, 0, WRITING, address_of(1, 0), port, json.dumps(planes_of(0, 2))) as (writer, said),
    ):
        assert said == "open" and writer.stdin is not None and writer.stdout is not None

        def carries(plane: int) -> bool:
            assert writer.stdin is not None and writer.stdout is not None
            writer.stdin.write(f"{plane}\n")
            writer.stdin.flush()
            return writer.stdout.readline() == "True\n"

        assert carries(0) and carries(1)
        lab.ip(0, "link", "del", link_of(0, 1))
        assert carries(0)
        make_anew(lab, 1)
        assert carries(1)


SHRINKING = """
import subprocess, threading
from softmrc.connection import connect, listen
from softmrc.errors import RemoteError

subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
soon = {"timeout": 10, "retry_linear": 2, "retry_exponential": 1}
with listen(memory=bytearray(1 << 20), **soon) as listener:
    accepted = []
    thread = threading.Thread(target=lambda: accepted.append(listener.accept(20)))
    thread.start()
    with connect("127.0.0.1", listener.port, **soon) as connection:
        connection.write(connection.remote[0], 0, bytes(1 << 16))
        subprocess.run(["ip", "link", "set", "lo", "mtu", "1400"], check=True)
        try:
            connection.write(connection.remote[0], 0, bytes(1 << 16))
        except RemoteError as error:
            print(error)
    thread.join()
"""


def test_a_link_that_is_too_narrow_now_is_named() -> None:
    """Its MTU shrank under a connection: the peer is not to blame."""
    command = ["unshare", "-n", sys.executable, "-c", SHRINKING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "16,256 bytes a packet no longer fit lo (MTU 1,400)" in done.stdout, done
    assert "stopped answering" not in done.stdout


def test_ping_blames_only_the_plane_whose_link_is_down() -> None:
    program = [sys.executable, "-c", "from softmrc.cli import main; main()"]
    env = {**os.environ, "SOFTMRC_SECRET": "of links", "COLUMNS": "120"}

    def planes(side: int) -> list[str]:
        return ["--planes", ",".join(planes_of(side, 2))]

    with veth_planes(2) as lab:
        serve = ["ip", "netns", "exec", lab.names[1], *program, "perf", "--host", address_of(1, 0), "--port", "0"]
        with subprocess.Popen([*serve, *planes(1)], stdout=subprocess.PIPE, text=True, env=env) as server:
            try:
                assert server.stdout is not None
                port = re.search(r"port (\d+)", server.stdout.readline())
                assert port
                lab.set_link(0, 1, False)
                ask = ["ip", "netns", "exec", lab.names[0], *program, "ping", f"{address_of(1, 0)}:{port[1]}"]
                done = subprocess.run(
                    [*ask, *planes(0), "--count", "40", "--interval", "5ms"],
                    capture_output=True, text=True, env=env, timeout=60,
                )  # fmt: skip
                assert done.returncode == 3, done.stderr
                words = r"the link of plane 1 \(.*%p1a\) is down on this host; .*\n"
                assert re.fullmatch(words, done.stderr), done.stderr
                rows = re.findall(r"│ (\d) p\da .* (\d+)% │ +(\w+)", done.stdout)
                assert {row[1:] for row in rows if row[0] == "0"} == {("0", "answers")}, done.stdout
                assert {row[1:] for row in rows if row[0] == "1"} == {("100", "silent")}, done.stdout
            finally:
                server.terminate()
