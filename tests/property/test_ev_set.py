"""EvSet next to a slow, plain model of the four states, the rotation, the spares and the floor.

The order of the rotation is random, so the model does not predict which EV a packet takes. It says which outcomes are
legal, checks that the engine's is one of them, and goes on from there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import parts
from softmrc import _core
from softmrc.config import EvProfile, to_native

EvState = _core.EvState
GOOD, SKIP, BAD, DENIED = EvState.GOOD, EvState.SKIP, EvState.ASSUMED_BAD, EvState.DENIED

RTT = 8_000_000
ALL = 0xFFFF
# After so many losses in a row a port is silent, not unlucky; an EV may be the victim of its port.
STRIKES = 3


@dataclass(frozen=True)
class Row:
    value: int
    port: int
    state: EvState
    is_spare: bool
    is_active: bool
    damping: int
    drops: int


@dataclass
class PortModel:
    strikes: int = 0
    struck: frozenset[int] = frozenset()
    newest_acked: int = -(1 << 60)
    newest_struck: int = -(1 << 60)


# spec: ev-states ev-rotation ev-skip ev-barred ev-equal-planes ev-floor ev-denied
class EvSetMachine(RuleBasedStateMachine):
    @initialize(
        ports=st.integers(1, 4),
        per_port=st.integers(1, 4),
        spares=st.integers(0, 2),
        floor=st.integers(0, 16),
        seed=st.integers(0, 1 << 32),
    )
    def build(self, ports: int, per_port: int, spares: int, floor: int, seed: int) -> None:
        count = ports * per_port
        profile = EvProfile(count=count, spares=spares * ports, min_active=min(floor, count))
        self.set = parts.EvSet(to_native(profile), ports, seed)
        self.ports = ports
        self.per_port = per_port
        self.floor = profile.min_active or count // 4
        self.live = ALL
        self.now = 0
        self.port = [PortModel() for _ in range(ports)]
        self.unacked_since: dict[int, int] = {}
        self.fell_with_port: set[int] = set()
        self.barred_until: dict[int, int] = {}
        self.newest_acked = -(1 << 60)

    # What the engine shows.
    def rows(self) -> list[Row]:
        return [Row(*row) for row in self.set.rows()]

    def usable(self, rows: list[Row]) -> int:
        return sum(r.is_active and bool(self.live >> r.port & 1) for r in rows)

    def expect(self, before: list[Row], changed: dict[int, Row], activated_on: int | None = None) -> None:
        """Exactly these EVs changed, and at most one spare of the named port took a place."""
        after = self.rows()
        expected = list(before)
        for i, row in changed.items():
            expected[i] = row
        differing = [i for i, (a, b) in enumerate(zip(after, expected, strict=True)) if a != b]
        if activated_on is not None:
            spares = [i for i, r in enumerate(expected) if r.port == activated_on and r.is_spare and r.state == GOOD]
            if spares:
                assert len(differing) == 1, f"one spare of port {activated_on} should have stepped in, not {differing}"
                (i,) = differing
                assert i in spares and after[i] == replace(expected[i], is_spare=False, is_active=True)
                return
        assert not differing, f"changed without cause: {[(expected[i], after[i]) for i in differing]}"

    # Rules.
    @rule(ports=st.integers(1, 15), avoid=st.integers(-1, 23))
    def pick(self, ports: int, avoid: int) -> None:
        before = self.rows()
        avoid_ev = avoid if 0 <= avoid < len(before) else parts.NO_EV
        chosen = self.set.pick(ports, avoid_ev, self.now)
        after = self.rows()
        open_ports = ports & self.live
        reachable = {i for i, r in enumerate(before) if r.is_active and open_ports >> r.port & 1}
        good = {i for i in reachable if before[i].state == GOOD}
        restored = {i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b}
        assert len(restored) <= 1, "at most one restore per packet"
        for i in restored:
            assert i in reachable and before[i].state == SKIP and after[i] == replace(before[i], state=GOOD)
            assert self.barred_until.pop(i, self.now) <= self.now, "the rotation restores no barred EV before its time"
        if not reachable:
            assert chosen == parts.NO_EV
            return
        waiting = self._may_wait(before, open_ports)
        if chosen == parts.NO_EV:
            assert all(before[i].port in waiting for i in reachable), "only ports that have lost EVs may be passed over"
            return
        # A port that waits is as good as closed; which of them do depends on rounds that the model does not count.
        open_now = {i for i in reachable if before[i].port not in waiting or before[i].port == before[chosen].port}
        good, restored = good & open_now, restored & open_now
        if good - {avoid_ev}:
            assert chosen in good - {avoid_ev}, (
                "the packet takes a GOOD EV, not the one to avoid, not one just restored"
            )
        elif restored:
            assert chosen in restored, "rather the one just restored than the one to avoid"
        elif {i for i in self._barred(before) if i in reachable} - {avoid_ev}:
            assert chosen in self._barred(before) - {avoid_ev}, "rather a barred one than the one to avoid"
        else:
            assert chosen in good | self._barred(before), f"{chosen} was neither good nor restored nor barred"

    def _barred(self, rows: list[Row]) -> set[int]:
        return {i for i, until in self.barred_until.items() if rows[i].state == SKIP and until > self.now}

    def _may_wait(self, rows: list[Row], open_ports: int) -> set[int]:
        """Ports that have lost EVs, where a whole one is live and none is offered."""
        active = [sum(r.is_active and r.port == port for r in rows) for port in range(self.ports)]
        whole = [port for port in range(self.ports) if active[port] >= self.per_port and self.live >> port & 1]
        if not whole or any(open_ports >> port & 1 for port in whole):
            return set()
        return {port for port in range(self.ports) if active[port] < self.per_port}

    @rule(data=st.data())
    def sent_and_acked(self, data: st.DataObject) -> None:
        ev = self._any_ev(data)
        before = self.rows()
        self.now += RTT
        self.set.on_sent(ev, self.now)
        self.set.on_acked(ev, self.now)
        self.unacked_since.pop(ev, None)
        self.newest_acked = self.now
        port = self.port[before[ev].port]
        was_struck = port.strikes > 0
        port.strikes, port.struck, port.newest_acked = 0, frozenset(), self.now
        if was_struck:
            self._expect_refilled(before, before[ev].port)
        else:
            self.expect(before, {})

    def _expect_refilled(self, before: list[Row], port: int) -> None:
        """The port lives: whatever it lost is made up for from its spares, as far as they go."""
        after = self.rows()
        for i, (a, b) in enumerate(zip(before, after, strict=True)):
            if a != b:
                assert a.port == port and a.is_spare and a.state == GOOD
                assert b == replace(a, is_spare=False, is_active=True), f"EV {i} changed in another way"
        spares = sum(r.port == port and r.is_spare and r.state == GOOD for r in after)
        active = sum(r.port == port and r.is_active for r in after)
        assert active == self.per_port or spares == 0, f"port {port} has {active} EVs and {spares} idle spares"

    @rule(data=st.data())
    def sent_without_answer(self, data: st.DataObject) -> None:
        ev = self._any_ev(data)
        before = self.rows()
        self.now += RTT // 4
        self.set.on_sent(ev, self.now)
        self.unacked_since.setdefault(ev, self.now)
        self.expect(before, {})

    @rule(data=st.data(), age=st.integers(0, 6 * RTT))
    def lost(self, data: st.DataObject, age: int) -> None:
        ev = self._any_ev(data)
        before = self.rows()
        row = before[ev]
        sent_at = self.now - age
        self.set.on_loss(ev, sent_at, self.newest_acked, 3 * RTT)
        counted = replace(row, drops=row.drops + 1)
        if self._port_falls(ev, row, sent_at, before):
            fallen = {i: r for i, r in enumerate(before) if r.port == row.port and r.is_active}
            changed = {i: replace(r, state=BAD, is_active=False) for i, r in fallen.items()}
            changed[ev] = replace(changed.get(ev, row), drops=row.drops + 1)
            self.fell_with_port |= set(fallen)
            self.expect(before, changed)
            return
        if row.state in (BAD, DENIED):
            self.expect(before, {ev: counted})
            return
        since = self.unacked_since.get(ev)
        is_silent = since is not None and self.newest_acked - since > 3 * RTT
        if self.usable(before) <= self.floor and not is_silent:
            self.expect(before, {ev: counted})
            return
        demoted = replace(counted, state=BAD, is_active=False)
        demoted = replace(demoted, damping=self.rows()[ev].damping)
        replaces = row.is_active and self.port[row.port].strikes <= 1
        self.expect(before, {ev: demoted}, row.port if replaces else None)

    def _port_falls(self, ev: int, row: Row, sent_at: int, before: list[Row]) -> bool:
        port = self.port[row.port]
        if sent_at <= port.newest_acked:
            return False
        port.newest_struck = max(port.newest_struck, sent_at) if port.strikes else sent_at
        port.strikes += 1
        port.struck |= {ev}
        on_port = sum(r.is_active and r.port == row.port for r in before)
        others = self.usable(before) - (on_port if self.live >> row.port & 1 else 0)
        return port.strikes >= STRIKES and others > 0

    @rule(data=st.data())
    def congested(self, data: st.DataObject) -> None:
        ev = self._any_ev(data)
        before = self.rows()
        self.set.on_congestion(ev)
        skips = before[ev].state == GOOD and before[ev].is_active
        self.expect(before, {ev: replace(before[ev], state=SKIP)} if skips else {})

    @rule(data=st.data(), span=st.integers(0, 8 * RTT))
    def barred(self, data: st.DataObject, span: int) -> None:
        """Skipped, and kept so for a while: unless half of its port is already."""
        ev = self._any_ev(data)
        before = self.rows()
        self.barred_until = {i: t for i, t in self.barred_until.items() if before[i].state == SKIP}
        self.set.suspend(ev, self.now, span)
        row = before[ev]
        is_used = row.state in (GOOD, SKIP) and row.is_active
        self.expect(before, {ev: replace(row, state=SKIP)} if is_used else {})
        on_port = sum(r.is_active and r.port == row.port for r in before)
        others = sum(before[i].port == row.port for i in self.barred_until if i != ev)
        if not is_used or (ev not in self.barred_until and 2 * (others + 1) > on_port):
            return
        # How often the span was doubled depends on how soon this followed the last time.
        self.barred_until[ev] = max(self.barred_until.get(ev, 0), self.now + span)

    @rule(data=st.data())
    def told_never_to_use(self, data: st.DataObject) -> None:
        ev = self._any_ev(data)
        before = self.rows()
        self.set.on_always_skip(ev)
        if not before[ev].is_active:
            self.expect(before, {})
            return
        if self.usable(before) <= self.floor:
            self.expect(before, {ev: replace(before[ev], state=SKIP)})
            return
        damping = self.rows()[ev].damping
        self.expect(before, {ev: replace(before[ev], state=BAD, is_active=False, damping=damping)}, before[ev].port)

    @precondition(lambda self: any(r.state == BAD for r in self.rows()))
    @rule(data=st.data())
    def probes_answered(self, data: st.DataObject) -> None:
        before = self.rows()
        ev = data.draw(st.sampled_from([i for i, r in enumerate(before) if r.state == BAD]))
        self.set.revive(ev)
        returned = self._returned(before, ev)
        self.port[before[ev].port].strikes, self.port[before[ev].port].struck = 0, frozenset()
        self._expect_refilled([returned if i == ev else r for i, r in enumerate(before)], before[ev].port)

    def _returned(self, before: list[Row], ev: int) -> Row:
        """Into the rotation where its port has room, else to the spares."""
        row = before[ev]
        self.unacked_since.pop(ev, None)
        self.fell_with_port.discard(ev)
        on_port = sum(r.is_active and r.port == row.port for r in before)
        has_room = on_port < self.per_port
        return replace(row, state=GOOD, is_active=has_room, is_spare=not has_room)

    @precondition(lambda self: any(r.state == BAD for r in self.rows()))
    @rule(data=st.data(), age=st.integers(0, 6 * RTT))
    def verdict_was_wrong(self, data: st.DataObject, age: int) -> None:
        """A late acknowledgement clears the EV; if its whole port fell with it, all that fell return: unless it fell by
        packets sent after this one."""
        before = self.rows()
        ev = data.draw(st.sampled_from([i for i, r in enumerate(before) if r.state == BAD]))
        port = before[ev].port
        cleared = {ev}
        if ev in self.fell_with_port:
            cleared |= {i for i in self.fell_with_port if before[i].port == port and before[i].state == BAD}
        sent_at = self.now - age
        clears = (
            ev not in self.fell_with_port or not self.port[port].strikes or sent_at >= self.port[port].newest_struck
        )
        assert self.set.on_spurious(ev, sent_at) == clears
        if not clears:
            self.expect(before, {})
            return
        expected = list(before)
        for i in sorted(cleared):
            expected[i] = self._returned(expected, i)
        self.port[port].strikes, self.port[port].struck = 0, frozenset()
        self._expect_refilled(expected, port)

    @rule(data=st.data())
    def denied(self, data: st.DataObject) -> None:
        ev = self._any_ev(data)
        before = self.rows()
        self.set.deny(ev)
        if before[ev].state == DENIED:
            self.expect(before, {})
            return
        self.fell_with_port.discard(ev)
        row = replace(before[ev], state=DENIED, is_active=False, is_spare=False)
        self.expect(before, {ev: row}, before[ev].port if before[ev].is_active else None)

    @rule(data=st.data())
    def allowed(self, data: st.DataObject) -> None:
        ev = self._any_ev(data)
        before = self.rows()
        self.set.allow(ev)
        if before[ev].state == DENIED:
            self.expect(before, {ev: self._returned(before, ev)})
        else:
            self.expect(before, {})

    @rule(data=st.data(), value=st.integers(0, (1 << 32) - 1))
    def replaced(self, data: st.DataObject, value: int) -> None:
        """A new path without a history: usable at once unless DENIED, and no loss of the old one is its own."""
        ev = self._any_ev(data)
        before = self.rows()
        self.set.replace(ev, value)
        row = replace(before[ev], value=value, damping=0, drops=0)
        if row.state == BAD:
            row = replace(self._returned(before, ev), value=value, damping=0, drops=0)
        elif row.state == SKIP:
            row = replace(row, state=GOOD)
        self.unacked_since.pop(ev, None)
        self.barred_until.pop(ev, None)
        self.fell_with_port.discard(ev)
        port = self.port[row.port]
        if port.struck == {ev}:
            port.strikes, port.struck = 0, frozenset()
        self.expect(before, {ev: row})

    @rule(mask=st.integers(0, 15))
    def ports_change(self, mask: int) -> None:
        before = self.rows()
        self.set.set_live_ports(mask)
        self.live = mask
        self.expect(before, {})
        assert self.set.usable() == self.usable(before)

    @rule()
    def three_quiet_laps(self) -> None:
        """With nothing in between, rounds are visible: every block is a permutation, from some offset on."""
        self.now += 1000 * RTT
        for _ in range(len(self.rows()) ** 2):
            if not any(r.state == SKIP and self.live >> r.port & 1 for r in self.rows() if r.is_active):
                break
            self.set.pick(ALL, parts.NO_EV, self.now)
        usable = {i for i, r in enumerate(self.rows()) if r.is_active and self.live >> r.port & 1}
        assert all(self.rows()[i].state == GOOD for i in usable), "the rotation never reached a skipped EV"
        if not usable:
            assert self.set.pick(ALL, parts.NO_EV, self.now) == parts.NO_EV
            return
        count = len(usable)
        picked = [self.set.pick(ALL, parts.NO_EV, self.now) for _ in range(3 * count)]
        assert any(
            all(sorted(picked[at : at + count]) == sorted(usable) for at in range(offset, 2 * count + 1, count))
            for offset in range(count)
        ), f"no round visits {usable} once each: {picked}"

    @invariant()
    def shares_are_kept(self) -> None:
        if not hasattr(self, "set"):
            return
        rows = self.rows()
        for r in rows:
            assert r.is_active == (r.state in (GOOD, SKIP) and not r.is_spare), r
        for port in range(self.ports):
            active = sum(r.is_active and r.port == port for r in rows)
            assert active <= self.per_port, f"port {port} has more than its share"
            assert self.set.usable_on(port) == active

    def _any_ev(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, len(self.set) - 1))


TestEvSet = EvSetMachine.TestCase
TestEvSet.settings = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)
