"""One connection: a queue pair and its states."""

from __future__ import annotations

import inspect
import secrets
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from softmrc import wire
from softmrc._core import SealKeys
from softmrc._support.units import qpn_text
from softmrc.config import (
    CcProfile,
    EvFormat,
    EvProfile,
    InitAttributes,
    RtrAttributes,
    RtsAttributes,
    to_native,
)
from softmrc.device.checks import blame, flag, instance, whole
from softmrc.device.completion import CompletionQueue
from softmrc.device.memory import MemoryRegion, ProtectionDomain
from softmrc.device.peer import Peer, PeerPlane, check_carrier
from softmrc.engine import EV, MAX_RECEIVES, PostStatus, QpState, ev_index, ev_value
from softmrc.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from softmrc.device.device import Device


def _made(kind: Any, **settings: Any) -> Any:
    """Attributes of a transition, of which a caller may have named some that are none."""
    try:
        return kind(**settings)
    except TypeError as error:
        raise ConfigError("more", sorted(settings), f"must be fields of {kind.__name__} ({error})") from None


def _profile_number(field: str, value: object, kind: str) -> int:
    """The number of a profile that a controller stored; 0: none was given."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 0xFFFFFFFF:
        raise ConfigError(field, value, f"must be {kind}, the number of a controller's, or None: the device's")
    return value


class QueuePair:
    """One connection. Created in RESET; `init`, `rtr` and `rts` take it to where it can send."""

    def __init__(
        self, device: Device, qpn: int, send_cq: CompletionQueue, recv_cq: CompletionQueue, domain: ProtectionDomain
    ) -> None:
        self.device = device
        self.qpn = qpn
        self.send_cq = send_cq
        self.recv_cq = recv_cq
        self.domain = domain
        self.lane = qpn % device.lanes
        self.first_psn = secrets.randbits(24)
        self.peer: Peer | None = None
        self._ev_profile: EvProfile | None = None

    @property
    def reached_at(self) -> tuple[PeerPlane, ...]:
        """What to pass to `add_peer` of the peer's device for this end."""
        return self.device.reached_at(self.lane)

    def init(self, *, ev_profile: EvProfile | int | None = None, cc_profile: CcProfile | int | None = None) -> None:
        """RESET → INIT. A profile is one's own, or the number of one that a controller laid down and put online
        (docs/reference/control.md); None: what the controller gives to all, or else the device's."""
        device = self.device
        own_evs = isinstance(ev_profile, EvProfile)
        own_control = isinstance(cc_profile, CcProfile)
        numbers = (
            None if own_evs else _profile_number("ev_profile", ev_profile, "an EvProfile"),
            None if own_control else _profile_number("cc_profile", cc_profile, "a CcProfile"),
        )
        if isinstance(ev_profile, EvProfile) and ev_profile.format == EvFormat.SRV6 and not device.config.srv6:
            raise ConfigError("ev_profile.format", ev_profile.format.name, "must be UDP or STEV without srv6=True")
        self._ev_profile = ev_profile if isinstance(ev_profile, EvProfile) else None
        evs, control = device.profiles_of(self.lane)
        attributes = InitAttributes(
            ev_profile=device.add_ev_profile(self.lane, ev_profile) if isinstance(ev_profile, EvProfile) else evs,
            cc_profile=device.add_cc_profile(self.lane, cc_profile) if isinstance(cc_profile, CcProfile) else control,
            send_cq=self.send_cq.number,
            recv_cq=self.recv_cq.number,
            domain=self.domain.number,
        )
        try:
            device.native.modify_init(self.qpn, to_native(attributes), *numbers)
        finally:  # the queue pair keeps what it was given
            if own_evs:
                device.native.remove_ev_profile(self.lane, attributes.ev_profile)
            if own_control:
                device.native.remove_cc_profile(self.lane, attributes.cc_profile)

    def rtr(
        self,
        peer: Peer,
        *,
        dest_qpn: int,
        first_psn: int,
        mtu: int | None = None,
        seal: SealKeys | None = None,
        **more: Any,
    ) -> None:
        """INIT → RTR: from here on the peer's writes are taken. `more` are fields of `RtrAttributes`. With `seal`,
        packets are encrypted and authenticated with these keys; all queue pairs to a peer are encrypted, or none."""
        self.device.check_held(peer)
        config = self.device.config
        settings = {"mpr_dest": config.mpr, "max_wimm_dest": config.max_wimm, **more}
        payload = self.device.payload(seal is not None) if mtu is None else mtu
        attributes = _made(RtrAttributes, peer=peer.id, dest_qpn=dest_qpn, first_psn=first_psn, mtu=payload, **settings)
        if self._has_carriers:
            for value, port in zip(self.ev_values(), self.evs()["port"], strict=True):
                check_carrier("ev_profile.entries", value, peer.planes[port])
        if seal is not None:
            instance("seal", seal, SealKeys, "must be SealKeys, or None")
        self.device.native.modify_rtr(self.qpn, to_native(attributes), seal)
        self.peer = peer

    def rts(self, **more: Any) -> None:
        """RTR → RTS: ready to send. `more` are fields of `RtsAttributes`."""
        settings = {"first_psn": self.first_psn, **self.device.config.sending(), **more}
        self.device.native.modify_rts(self.qpn, to_native(_made(RtsAttributes, **settings)))
        self.device.deny_listed(self)

    def modify(self, state: Any, **attributes: Any) -> None:
        """Go to `state` with the attributes that this transition needs: `init`, `rtr`, `rts` or `error` by name."""
        steps: dict[Any, Any] = {
            QpState.INIT: self.init,
            QpState.RTR: self.rtr,
            QpState.RTS: self.rts,
            QpState.ERROR: self.error,
        }
        if not isinstance(state, QpState) or state not in steps:
            raise ConfigError("state", state, "must be INIT, RTR, RTS or ERROR")
        try:
            inspect.signature(steps[state]).bind(**attributes)
        except TypeError as error:
            raise ConfigError(
                "attributes", sorted(attributes), f"must be the attributes of {state.name} ({error})"
            ) from None
        steps[state](**attributes)

    def error(self) -> None:
        """Give up: everything posted is flushed, and the peer's next write fails."""
        self.device.native.modify_error(self.qpn)

    def post_write(
        self,
        source: MemoryRegion,
        offset: int,
        length: int,
        *,
        remote_va: int,
        rkey: int,
        wr_id: int = 0,
        imm: int | None = None,
        signaled: bool = True,
    ) -> None:
        """Write bytes of `source` into the peer's memory. They must not change until the completion."""
        if not isinstance(source, MemoryRegion):
            raise ConfigError(
                "source", type(source).__name__, "must be a region of this device: device.register(buffer)"
            )
        if source.device is not self.device:
            raise ConfigError("source", source, "must be a region of this device: device.register(buffer)")
        self.post_buffer(source.buffer, offset, length, remote_va, rkey, wr_id, imm, signaled)

    def post_buffer(
        self,
        source: Any,
        offset: int,
        length: int,
        remote_va: int,
        rkey: int,
        wr_id: int,
        imm: int | None,
        signaled: bool,
    ) -> None:
        post = self.device.native.post_write
        try:
            status = post(self.qpn, wr_id, source, offset, length, remote_va, rkey, imm, signaled)
        except TypeError:
            blame(offset=(offset, 64), length=(length, 32), remote_va=(remote_va, 64), rkey=(rkey, 32))
            blame(wr_id=(wr_id, 64), imm=(0 if imm is None else imm, 32))
            flag("signaled", signaled)
            raise
        if status != PostStatus.OK:
            self.refuse(status)

    def post_write_imm(self, source: MemoryRegion, offset: int, length: int, imm: int, **more: Any) -> None:
        """The same, and complete one receive of the peer with 32 bits of `imm`, after everything written before."""
        self.post_write(source, offset, length, imm=imm, **more)

    def post_recv(self, wr_id: int = 0, count: int = 1) -> None:
        """Allow so many writes with immediate to complete here. At most 65,536 may wait for theirs."""
        status = self.device.native.post_receive(self.qpn, whole("wr_id", wr_id, 64), whole("count", count, 32))
        if status == PostStatus.QUEUE_FULL:
            raise UsageError(
                f"cannot post {count:,} receives to queue pair {qpn_text(self.qpn)}: "
                f"at most {MAX_RECEIVES:,} may wait, those posted before included"
            )
        if status != PostStatus.OK:
            self.refuse(status)

    def refuse(self, status: Any) -> None:
        if status == PostStatus.QUEUE_FULL:
            raise UsageError(f"cannot post to queue pair {qpn_text(self.qpn)}: its send queue is full (max_send_wr)")
        raise UsageError(f"cannot post to queue pair {qpn_text(self.qpn)}: it is in {self.state.name}")

    @property
    def state(self) -> Any:
        return self.query()["state"]

    def query(self) -> dict[str, Any]:
        """State, windows, sequence numbers and round-trip times, now."""
        return self.device.native.query_qp(self.qpn)

    def stats(self) -> dict[str, int]:
        return self.device.native.qp_stats(self.qpn)

    def evs(self) -> np.ndarray:
        """One record per path; `state` is an `EvState`, `value` the source port (or the number of an SRv6 path)."""
        rows = self.device.native.query_evs(self.qpn)
        return np.array([(v, p, s.value, d, damping, spare) for v, p, s, d, damping, spare in rows], dtype=EV)

    def ev_values(self) -> list[bytes]:
        """What the network reads of each EV, as `wire.expand` gives it; `wire.path_of` makes an SRv6 path of it."""
        return self.device.native.query_ev_values(self.qpn)

    @property
    def _has_carriers(self) -> bool:
        return self.device.native.has_wide_evs(self.qpn)

    @property
    def has_own_carriers(self) -> bool:
        return self._ev_profile is not None and self._has_carriers

    def deny_ev(self, index: int) -> None:
        """The controller's word: nothing takes this EV, not even an acknowledgement, until it is allowed again."""
        self.device.native.deny_ev(self.qpn, ev_index(index))

    def allow_ev(self, index: int) -> None:
        self.device.native.allow_ev(self.qpn, ev_index(index))

    def replace_ev(self, index: int, value: int | bytes) -> None:
        """Another path in this one's place, without its history; a DENIED one stays so. Bytes are expanded."""
        ports, checked, profile = self.evs()["port"], ev_value(value), self._ev_profile
        fits = self._has_carriers and ev_index(index) < len(ports)
        if fits and isinstance(checked, bytes) and profile is not None and self.peer is not None:
            expanded = wire.expand(checked, profile.fields, profile.widths) if profile.fields else checked
            check_carrier("value", expanded, self.peer.planes[ports[index]])
        self.device.native.replace_ev(self.qpn, ev_index(index), checked)

    def destroy(self) -> None:
        """Let go of it and of all memory it uses. What the peer has written is still acknowledged if it asks; whatever
        it writes from now on ends there as `PEER_ERROR`."""
        self.device.native.destroy_qp(self.qpn)
        for queue in (self.send_cq, self.recv_cq):
            queue.detach(self.qpn)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    def __repr__(self) -> str:
        try:
            q = self.query()
        except UsageError:
            return f"<QueuePair {qpn_text(self.qpn)}, destroyed>"
        text = f"<QueuePair {qpn_text(self.qpn)} {q['state'].name}"
        if self.peer is not None:
            text += (
                f" → {self.peer}, queue pair {qpn_text(q['dest_qpn'])}: {q['messages']} messages, "
                f"{q['packets_in_flight']} packets in flight, window {q['window_bytes']:,} B, "
                f"round trip {q['smoothed_rtt_us']:.0f} µs"
            )
        return text + ">"
