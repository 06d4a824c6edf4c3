"""One seed draws everything: the network, both endpoints, the queue pairs, the messages, and what goes wrong when.

Nothing here looks at the engine, and the runner draws nothing, so a seed that fails once fails every time.
"""

from __future__ import annotations

import dataclasses
from random import Random

from softmrc.config import RETRY_FOREVER, CcProfile, EndpointConfig, EvFormat, EvMode, EvProfile
from softmrc.engine.pair import PairConfig
from softmrc.wire import EvField

from .edges import EDGED, draw_edges
from .faults import draw_faults, draw_slow_planes
from .happenings import draw_happenings
from .plan import Connection, Flow, Message, Plan

PSN_SPACE = 1 << 24
# The way back is probed once a millisecond, so who gives up sooner may give up before the peer has found it.
LEAST_PATIENCE_US = 10_000.0
# From this seed on queue pairs steer by round trips, and planes may be slow. A second family, so that the first stays
# what it was.
STEERED = 1_000_000
# And from this one on every plane also has a separate window, as devices on sockets have.
LINKED = 2_000_000
# From this seed on the plan is that of the seed so much lower, as it is without processes and without what only happens
# to them: packets are handed over one by one in the instant they arrive, as the simulator of fabrics does.
BARE = 10_000_000
# Whether messages may be empty.
ZERO_LENGTH = True


def draw_length(rng: Random) -> int:
    """Mostly small: what breaks at packet edges breaks at two packets as well as at two thousand."""
    roll = rng.random()
    if roll < 0.3:
        return rng.randint(1, 2048)
    if roll < 0.65:
        return rng.randint(1, 48 * 1024)
    if roll < 0.98:
        return rng.randint(1, 512 * 1024)
    if roll < 0.998:
        return rng.randint(1 << 19, 2 << 20)
    return rng.randint(2 << 20, 16 << 20)


def draw_flow(rng: Random, side: int, at_memory: int, most: int, horizon_us: float) -> tuple[Flow, int]:
    messages: list[Message] = []
    imm_share = rng.choice([0.0, 0.2, 0.5, 1.0])
    spread_us = rng.choice([0.0, 50.0, horizon_us, 2 * horizon_us])
    moments = sorted(rng.uniform(0, spread_us) for _ in range(rng.randint(0, most)))
    tiny = rng.random() < 0.15
    for i, at_us in enumerate(moments):
        length = rng.randint(1, 64) if tiny else draw_length(rng)
        imm = rng.getrandbits(32) if rng.random() < imm_share else None
        signaled = i == len(moments) - 1 or rng.random() < 0.9
        messages.append(Message(at_us, length, at_memory, imm, signaled))
        at_memory += length + rng.randint(0, 64)
    return Flow(side, messages), at_memory


def draw_connection(
    rng: Random, at_memory: int, most: int, dynamic_mpr: bool, horizon_us: float
) -> tuple[Connection, int]:
    def psn() -> int:
        near_wrap = rng.random() < 0.6
        return (PSN_SPACE - rng.randint(1, 600)) % PSN_SPACE if near_wrap else rng.randrange(PSN_SPACE)

    there, at_memory = draw_flow(rng, 0, at_memory, most, horizon_us)
    back, at_memory = draw_flow(rng, 1, at_memory, most if rng.random() < 0.4 else 0, horizon_us)
    mpr_dest = rng.choice([8, 8, 8, 16, 64, 255])
    mpr = mpr_dest if not dynamic_mpr or rng.random() < 0.5 else 8
    connection = Connection(
        first_psn=(psn(), psn()),
        mpr=mpr,
        mpr_dest=mpr_dest,
        max_wimm=rng.choice([1, 2, 16, 128]),
        max_send_wr=rng.choice([1, 4, 4096]),
        flows=(there, back),
    )
    return connection, at_memory


def draw_paths(rng: Random, planes: int) -> EvProfile:
    per_plane = rng.choice([1, 2, 4, 16, 32] if planes > 1 else [1, 2, 8, 64, 128])
    spares = rng.choice([0, 0, 1, per_plane])
    count = per_plane * planes
    entries: list[tuple[int, int]] = []
    mode = EvMode.AUTOMATIC
    if rng.random() < 0.2:
        mode = EvMode.EXPLICIT
        entries = [(rng.getrandbits(32), port) for port in range(planes) for _ in range(per_plane + spares)]
        rng.shuffle(entries)
    return EvProfile(
        mode=mode,
        count=count,
        spares=spares * planes,
        min_active=rng.choice([0, 0, 0, 1, max(1, count // 2), count]),
        value_bits=rng.choice([32, 32, 16]),
        spray_quantum=rng.choice([1, 1, 1, 4, 16]),
        entries=tuple(entries),
    )


def draw_layout(rng: Random, profile: EvProfile, planes: int) -> EvProfile:
    """The same paths by other names: expanded from fields, or whole SRv6 addresses that a controller lists."""
    format = rng.choice([EvFormat.UDP, EvFormat.STEV, EvFormat.SRV6, EvFormat.SRV6])
    if format == EvFormat.SRV6 and rng.random() < 0.5:
        each = (profile.count + profile.spares) // planes
        listed = tuple((rng.randbytes(16), port) for port in range(planes) for _ in range(each))
        return dataclasses.replace(profile, mode=EvMode.EXPLICIT, format=format, entries=listed)
    drawn = {EvFormat.UDP: [8, 8], EvFormat.STEV: [10, 8, 14], EvFormat.SRV6: [16, 16]}[format]
    fixed = [32] if format == EvFormat.SRV6 else []
    fields = [EvField(width, rng.getrandbits(width), 0, 0, 0) for width in fixed]
    fields += [EvField(width, rng.getrandbits(width), 0, (1 << width) - 1, (1 << width) - 1) for width in drawn]
    widths = (*fixed, *drawn)
    return dataclasses.replace(
        profile, mode=EvMode.GENERATED, format=format, widths=widths, fields=tuple(fields), entries=()
    )


def draw_network(rng: Random, seed: int, planes: int) -> PairConfig:
    rate = 0 if rng.random() < 0.65 else rng.choice([1_000_000_000, 10_000_000_000, 100_000_000_000])
    return PairConfig(
        seed=seed,
        ports=planes,
        one_way_delay_us=rng.choice([0.6, 2.0, 4.0, 4.0, 10.0, 50.0]) if rng.random() < 0.95 else 2_500.0,
        port_rate_bps=rate,
        mark_above_bytes=rng.choice([0, 2_000, 8_000]) if rate else 0,
    )


def draw_congestion(rng: Random, network: PairConfig) -> CcProfile:
    rate = network.port_rate_bps * network.ports or 400_000_000_000
    if rng.random() < 0.4:
        return CcProfile(
            algorithm="fixed_window",
            rate_bps=rate,
            window_bytes=rng.choice([2_000, 64_000, 1 << 20]),
            base_rtt_us=2 * network.one_way_delay_us,
        )
    return CcProfile(
        rate_bps=rate,
        base_rtt_us=2 * network.one_way_delay_us * rng.choice([1.0, 1.0, 0.5, 3.0]),
        learn_base_rtt=rng.random() < 0.3,
        trimming=rng.random() < 0.5,
    )


def draw_link_control(rng: Random, profile: CcProfile) -> CcProfile:
    return dataclasses.replace(
        profile,
        algorithm=rng.choice(["queue_delay", "queue_delay", "nscc", "fixed_window"]),
        each_port=rng.random() < 0.8,
        target_delay_us=rng.choice([0.0, 5.0, 50.0, 1_000.0]),
        start_bytes=rng.choice([512, 16_384, 65_536]),
        most_bytes=rng.choice([16_384, 1 << 20]),
    )


def draw_plan(seed: int) -> Plan:
    plan, horizon_us = draw_inner_plan(seed % EDGED)
    if seed >= EDGED:
        draw_edges(plan, seed, horizon_us)
    return plan


def draw_inner_plan(seed: int) -> tuple[Plan, float]:
    plan, horizon_us = draw_bare_plan(seed % BARE)
    if seed < BARE:
        rng = Random(f"happenings {seed}")
        if ZERO_LENGTH:
            empty_some(rng, plan)
        draw_happenings(rng, plan, horizon_us, draw_connection)
        plan.has_keys = Random(f"with keys {seed}").random() < 0.4
        rng = Random(f"layout {seed}")
        if rng.random() < 0.2:
            plan.ev_profile = draw_layout(rng, plan.ev_profile, plan.planes)
    return plan, horizon_us


def empty_some(rng: Random, plan: Plan) -> None:
    """Now and then a message says all by arriving."""
    share = rng.choice([0.0, 0.0, 0.1, 0.9])
    for connection in plan.connections:
        for flow in connection.flows:
            flow.messages = [dataclasses.replace(m, length=0) if rng.random() < share else m for m in flow.messages]


def draw_bare_plan(seed: int) -> tuple[Plan, float]:
    """The plan, and the time within which most of it happens."""
    rng = Random(seed)
    planes = rng.choice([1, 2, 2, 3, 4, 4, 5, 8])
    knows_trim = rng.random() < 0.8
    trims = rng.random() < 0.5
    network = draw_network(rng, seed, planes)
    endpoint = EndpointConfig(
        ports=planes,
        sack_threshold_bytes=rng.choice([16 * 1024, 16 * 1024, 4096, 1 << 20]),
        sack_first_packet=rng.random() < 0.2,
        timestamps=rng.random() < 0.8,
        trim_nack=knows_trim,
        peer_trim_nack=knows_trim or rng.random() < 0.3,
        probe_interval_us=rng.choice([1_000.0, 1_000.0, 100.0]),
        probe_interval_max_us=rng.choice([1_000_000.0, 20_000.0]),
        revival_answers=rng.choice([3, 3, 1]),
        proves_addresses=Random(f"proof {seed}").random() < 0.5,
        # Seeds that are listed stay what they were.
        sack_gap_us=Random(f"gap {seed}").choice([0.0, 50.0, 500.0]) if seed >= 4_000_000 else 0.0,
    )
    dynamic_mpr = rng.random() < 0.3
    connections = []
    size = 0
    most = rng.choice([1, 5, 12, 30])
    horizon_us = rng.choice([50.0, 300.0, 2_000.0, 20_000.0, 100_000.0])
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        connection, size = draw_connection(rng, size, most, dynamic_mpr, horizon_us)
        connections.append(connection)
    size = max(size, 1)
    at_top = rng.random() < 0.2
    vas = ((1 << 64) - size, rng.getrandbits(40)) if at_top else (rng.getrandbits(48), 0)
    gives_up = rng.random() < 0.2
    cc_profile = draw_congestion(rng, network)
    if trims and network.port_rate_bps and cc_profile.algorithm == "nscc":
        # A window that never shrinks would be trimmed for ever: the pair's only queue is the sender's own.
        network = dataclasses.replace(network, trim_above_bytes=rng.choice([0, 6_000]))
    plan = Plan(
        seed=seed,
        planes=planes,
        anchors=(rng.randrange(planes),) * 2 if rng.random() < 0.85 else (rng.randrange(planes), rng.randrange(planes)),
        network=network,
        endpoint=endpoint,
        ev_profile=draw_paths(rng, planes),
        cc_profile=cc_profile,
        mtu=rng.choice([512, 1024, 1500, 4096, 4096, 9000]),
        dynamic_mpr=dynamic_mpr,
        timeout=rng.choice([0, 4, 8, 8, 8, 12]),
        retry_linear=rng.randint(5, 7) if gives_up else rng.randint(0, 7),
        retry_exponential=rng.randint(4, 8) if gives_up else RETRY_FOREVER,
        connections=connections,
        memory_size=size,
        va=vas,
    )
    if plan.patience_us < LEAST_PATIENCE_US or plan.anchors[0] != plan.anchors[1]:
        plan.retry_exponential = RETRY_FOREVER
    if rng.random() < 0.9:
        if rng.random() < 0.7:
            # Most faults should find traffic under way.
            horizon_us = min(max(plan.ideal_us * rng.choice([0.3, 1.0, 3.0]), 10.0), 100_000.0)
        draw_faults(rng, plan, trims, horizon_us)
    if seed >= STEERED:
        plan.ev_profile = dataclasses.replace(plan.ev_profile, leaves_slow_ports=True)
        draw_slow_planes(rng, plan, horizon_us)
    if seed >= LINKED:
        plan.cc_profile = draw_link_control(Random(f"links {seed}"), plan.cc_profile)
    return plan, horizon_us
