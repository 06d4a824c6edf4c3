"""Data goes on between two devices, whatever is refused to their lanes once, or for a second: and afterwards they have
all that they had before."""

from __future__ import annotations

import select
import sys
import time

import calls
from loopback import connect
from refusing import LIMIT_S, UNTIL_ALLOWED, allow, refuse, refused, said, times_refused, trains_sent, until

from softmrc.device import Device

PLANES = ["127.0.0.1", "127.0.0.2"]
KEPT = ("is_up", "is_link_up", "has_gro", "has_gso", "interface", "receive_buffer_bytes")
SECOND_S = 1.0
MAX_UNDER_WAY = 8


class Traffic:
    """Writes from one device to another whose ends are waited for, and whose bytes are compared. The caller sleeps
    until it is woken: it drives no lane."""

    def __init__(self, a: Device, b: Device) -> None:
        self.devices = a, b
        self.near, self.far = connect(a, b)
        self.data = bytes(range(256)) * 1600
        self.source, self.memory = a.register(bytearray(self.data)), bytearray(len(self.data))
        self.target = b.register(self.memory, remote_write=True)
        self.before = self.kept()

    def kept(self) -> list[list[object]]:
        return [[row[key] for key in KEPT] for device in self.devices for row in device.planes()]

    def post(self) -> None:
        self.near.post_write(self.source, 0, len(self.data), remote_va=0, rkey=self.target.rkey)

    def write(self) -> None:
        self.memory[:] = bytes(len(self.memory))
        self.post()
        queue, end = self.near.send_cq, time.monotonic() + LIMIT_S
        while not (found := queue.poll()):
            assert time.monotonic() < end, "a write that ends"
            select.select([queue.fileno()], [], [], 1.0)
        assert [c.ok for c in found] == [True], found
        assert self.memory == self.data

    def goes_on(self) -> None:
        """With all that it had: planes, and trains."""
        self.write()

        def is_whole() -> bool:
            self.write()
            return self.kept() == self.before

        until(is_whole, f"all as before: {self.before}, {self.kept()}")
        if not all(row["has_gso"] for row in self.devices[0].planes()):
            return
        sent = trains_sent()
        until(lambda: self.write() or trains_sent() > sent, "trains")  # type: ignore[func-returns-value]


def once(traffic: Traffic, table: calls.Table, provoke: str = "") -> None:
    for (thread, call), errors in table.items():
        for error in errors:
            if call == "train" and not traffic.before[0][KEPT.index("has_gso")]:
                continue
            print(said(call, error, thread), flush=True)
            sent = [sum(row["packets_sent"] for row in device.planes()) for device in traffic.devices]
            with refused(call, error, thread):
                end = time.monotonic() + LIMIT_S
                while not times_refused(call):
                    assert time.monotonic() < end, "it is never refused"
                    if provoke:
                        refuse(provoke, calls.EAGAIN, thread)
                    traffic.write()
                    time.sleep(0.001)
            if provoke:
                allow(provoke)
            traffic.goes_on()
            now = [sum(row["packets_sent"] for row in device.planes()) for device in traffic.devices]
            assert all(after > before for before, after in zip(sent, now, strict=True))


def for_a_second(traffic: Traffic, table: calls.Table) -> None:
    queue, under_way = traffic.near.send_cq, 0
    for (thread, call), errors in table.items():
        for error in errors:
            print(said(call, error, thread), "for a second", flush=True)
            end = time.monotonic() + SECOND_S
            with refused(call, error, thread, times=UNTIL_ALLOWED):
                while time.monotonic() < end or not times_refused(call):
                    assert time.monotonic() < end + LIMIT_S, "it is never refused"
                    if under_way < MAX_UNDER_WAY:
                        traffic.post()
                        under_way += 1
                    under_way -= len(queue.poll())
                    time.sleep(0.01)
            end = time.monotonic() + LIMIT_S
            while under_way:
                assert time.monotonic() < end, "all writes end"
                under_way -= len(queue.wait(1.0))
            traffic.goes_on()


def nobody_there(traffic: Traffic, table: calls.Table) -> None:
    a = traffic.devices[0]
    for (thread, call), errors in table.items():
        for error in errors:
            print(said(call, error, thread), flush=True)
            with Device(PLANES, lanes=1) as gone:
                near, _ = connect(a, gone)
                gone._native.abandon()
            with refused(call, error, thread):
                near.post_write(traffic.source, 0, 8, remote_va=0, rkey=1)
                until(lambda: times_refused(call) > 0, "it is refused")  # noqa: B023
            traffic.goes_on()
            near.destroy()


def main(what: str, only: str = "") -> None:
    if only:
        calls.DRIVER = {key: errors for key, errors in calls.DRIVER.items() if key[1] == only}
    with Device(PLANES, lanes=1, port=0) as a, Device(PLANES, lanes=1) as b:
        traffic = Traffic(a, b)
        traffic.goes_on()
        if what == "once":
            once(traffic, calls.DRIVER)
        elif what == "no_room":
            once(traffic, calls.NO_ROOM, provoke="sendmmsg")
        elif what == "nobody_there":
            nobody_there(traffic, calls.NOBODY_THERE)
        else:
            for_a_second(traffic, calls.DRIVER)
    print("done")


main(*sys.argv[1:])
