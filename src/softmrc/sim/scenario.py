"""A scenario: one question, and everything needed to answer it again. TOML on disk, dataclasses here.

    question = "A spine reboots under load: who notices, and for how long?"
    [fabric]      planes, hosts, leaves, spines, rates
    [transport]   MRC or RoCE, and how it is set
    [queues]      marking, trimming and dropping, in bandwidth-delay products of a host's link
    [workload]    what is sent; [[workload]] where there are several
    [faults]      what breaks, and when
    [run]         when to stop, how finely to look
    [answer]      which figure answers the question
    [[compare]]   the same again with some keys changed, side by side

A scenario is whole and checked before anything runs.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softmrc import _core
from softmrc._support.files import located, parse_toml, read_text
from softmrc._support.tables import known_keys, read_table, refuse, setting
from softmrc._support.units import counted, rate_text
from softmrc.errors import MISSING, ConfigError
from softmrc.sim import workloads
from softmrc.sim.fabric import Fabric, read_fabric
from softmrc.sim.faults import Faults, read_faults

ANSWERS = (
    "last_flow", "makespan", "slowest_flow", "goodput", "step", "worst_step", "exposed", "collective", "victim",
    "retransmitted",
)  # fmt: skip


@dataclass(frozen=True)
class Transport:
    """What the hosts speak."""

    kind: str = setting("mrc", choices=("mrc", "roce"))
    mtu_bytes: int = setting(4096, low=256, high=65536)
    header_bytes: int = setting(104, low=0, high=1024)  # on the link, besides the payload
    control_packet_bytes: int = setting(128, low=1, high=4096)
    trimmed_packet_bytes: int = setting(128, low=1, high=4096)
    base_rtt_us: float = setting(0.0, low=0)  # 0: worked out from the fabric
    timeout: int = setting(-1, low=-1, high=24)  # 1.024 µs · 2^timeout; -1: about eight base RTTs
    # MRC
    evs: int = setting(128, low=1, high=1024)  # at most; listed paths are not listed twice
    paths: str = setting("listed", choices=("listed", "drawn"))  # drawn: at random, some more than once; so with ecmp
    spares: int = setting(0, low=0, high=1024)
    mpr: int = setting(16, low=8, high=255)
    spraying: str = setting("adaptive", choices=("adaptive", "oblivious"))
    sack_first_packet: bool = False
    congestion_control: str = setting("nscc", choices=tuple(_core.controllers()))
    window_bdp: float = setting(1.5, above=0)
    shared_window_bdp: float = setting(2.0, low=0)  # of all queue pairs of a host together; 0: no limit
    hints: bool = False  # queue pairs know how many others there will be, as if from a controller
    probe_interval_us: float = setting(1000.0, above=0)
    # How much later another packet must have been sent, and acknowledged, for a missing one to be lost: at least this.
    # Queues of switches make paths overtake each other by more than a quiet network shows. -1: a quarter base RTT.
    reorder_window_us: float = setting(-1.0, low=-1)
    qps_per_pair: int = setting(1, low=1, high=16)  # MRC: messages take them in turn; RoCE: each is cut between them
    # RoCE
    dcqcn: bool = True
    pfc: bool = True


@dataclass(frozen=True)
class Queues:
    """Output queues of the switches; thresholds in bandwidth-delay products of a host's link."""

    trim: bool = True
    trim_bdp: float = setting(1.0, above=0)
    last_hop_trim_bdp: float = setting(1.5, above=0)
    ecn: bool = True
    ecn_low_bdp: float = setting(0.2, low=0)
    ecn_high_bdp: float = setting(0.8, low=0)
    ecn_on_last_hop: bool = False
    data_bdp: float = setting(5.0, above=0)
    control_bdp: float = setting(2.0, above=0)


@dataclass(frozen=True)
class RunSettings:
    """When to stop, and how finely to look."""

    seed: int = setting(1, low=0, high=2**63 - 1)
    until_ms: float = setting(0.0, low=0)  # 0: until every flow is done
    stall_ms: float = setting(200.0, above=0)  # nothing arrives for this long, and nothing more is planned: stuck
    chain: str = setting("delivery", choices=("delivery", "acknowledgement"))  # of what lets the next flow start
    bin_us: float = setting(0.0, low=0)  # of the series over time; 0: 10 µs
    speedup: float = setting(1.0, low=1)  # by how much the faults' spans are compressed; only printed


@dataclass(frozen=True)
class AnswerSettings:
    """[answer]: the figure that answers the question; answer.py says what each is."""

    figure: str = setting("", choices=("", *ANSWERS))  # "": the workload decides


@dataclass(frozen=True)
class Variant:
    name: str
    scenario: Scenario


@dataclass(frozen=True)
class Scenario:
    question: str
    fabric: Fabric = dataclasses.field(default_factory=Fabric)
    transport: Transport = dataclasses.field(default_factory=Transport)
    queues: Queues = dataclasses.field(default_factory=Queues)
    workloads: tuple[Any, ...] = ()
    faults: Faults = dataclasses.field(default_factory=Faults)
    run: RunSettings = dataclasses.field(default_factory=RunSettings)
    answer: AnswerSettings = dataclasses.field(default_factory=AnswerSettings)
    name: str = "MRC"
    compare: tuple[Variant, ...] = ()
    source: str = ""  # the file, for messages
    table: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False, compare=False)  # as it was read

    def variants(self) -> list[Variant]:
        """This scenario first, then what it is compared with."""
        return [Variant(self.name, self), *self.compare]

    def with_keys(self, changes: dict[str, Any]) -> Scenario:
        """The same scenario with some keys set, each named by its dotted path."""
        table = copy.deepcopy(self.table)
        for key, value in changes.items():
            set_key(table, key, value, self.source)
        return parse(table, self.source)

    @property
    def base_rtt_us(self) -> float:
        """A full packet there and its SACK back on the longest path through an empty network."""
        if self.transport.base_rtt_us:
            return self.transport.base_rtt_us
        t, f = self.transport, self.fabric
        bits = 8 * (t.mtu_bytes + t.header_bytes + t.control_packet_bytes)
        at_host, inside = bits / f.host_link_bps * 1e6, bits / f.fabric_link_bps * 1e6
        across = 2 * inside / f.cables_per_link + (f.hops - 4) * inside / f.cables_per_core_link
        return 2 * f.hops * f.link_delay_us + 2 * at_host + across

    @property
    def timeout(self) -> int:
        if self.transport.timeout >= 0:
            return self.transport.timeout
        return next((t for t in range(25) if 1.024 * 2**t >= 7.5 * self.base_rtt_us), 24)

    @property
    def bin_us(self) -> float:
        return self.run.bin_us or 10.0


_TABLES = {"transport": Transport, "queues": Queues, "run": RunSettings, "answer": AnswerSettings}
_KEYS = ("question", "name", "fabric", *_TABLES, "workload", "faults", "compare")


def load(path: str | Path) -> Scenario:
    """A scenario from its file."""
    path = Path(path)
    text = read_text(path, "file")
    table = parse_toml(text, str(path))
    try:
        return parse(table, str(path))
    except ConfigError as error:
        raise located(error, str(path), text) from None


def parse(table: dict[str, Any], source: str = "") -> Scenario:
    """A scenario from its table; `source` names it in messages; files it mentions are relative to its folder."""
    for key, value in table.items():
        if key not in _KEYS:
            raise refuse(source, key, value, "unknown key", known_keys(key, list(_KEYS), ""))
    question = table.get("question", MISSING)
    if not isinstance(question, str) or not question.strip():
        raise refuse(
            source,
            "question",
            question,
            "is missing" if question is MISSING else "must be a text",
            "Set it to the question that this scenario answers.",
        )
    name = table.get("name", "")
    if not isinstance(name, str):
        raise refuse(source, "name", name, "must be a text")
    parts: dict[str, Any] = {key: read_table(kind, table.get(key, {}), source, key) for key, kind in _TABLES.items()}
    parts["fabric"] = read_fabric(table.get("fabric", {}), source)
    scenario = Scenario(
        question=question.strip(),
        name=_named(name, parts["fabric"], parts["transport"]),
        workloads=_read_workloads(table, source),
        faults=read_faults(table.get("faults", {}), source),
        compare=_read_compare(table, source),
        source=source,
        table=table,
        **parts,
    )
    _check_sums(scenario)
    return scenario


def _named(name: str, fabric: Fabric, transport: Transport) -> str:
    """What a run is called: by its transport, or as it says, with {transport}, {planes} and {port} (the rate of one)
    filled in."""
    said = {"{planes}": counted(fabric.planes, "plane"), "{port}": rate_text(fabric.host_link_bps)}
    said |= {"{transport}": transport.kind.replace("mrc", "MRC").replace("roce", "RoCE")}
    name = name or "{transport}"
    for mark, words in said.items():
        name = name.replace(mark, words)
    return name


def _read_workloads(table: dict[str, Any], source: str) -> tuple[Any, ...]:
    given = table.get("workload")
    if given is None:
        raise refuse(source, "workload", MISSING, "is missing", "Add a table [workload] that says what is sent.")
    tables = given if isinstance(given, list) else [given]
    return tuple(
        workloads.read_workload(one, source, "workload" if one is given else f"workload[{i}]")
        for i, one in enumerate(tables)
    )


def _read_compare(table: dict[str, Any], source: str) -> tuple[Variant, ...]:
    given = table.get("compare", [])
    if not isinstance(given, list):
        raise refuse(source, "compare", given, "must be [[compare]] tables")
    variants = []
    for i, changes in enumerate(given):
        where = f"compare[{i}]"
        if not isinstance(changes, dict) or not isinstance(changes.get("name"), str):
            raise refuse(source, f"{where}.name", MISSING, "is missing", "Set it to a text that names this variant.")
        merged = merge({k: v for k, v in table.items() if k != "compare"}, changes)
        try:
            chosen = parse(merged, source)
            variants.append(Variant(chosen.name, chosen))
        except ConfigError as error:
            raise error.replaced(field=f"{where}.{error.field}") from None
    return tuple(variants)


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it, table by table; a workload or fault list of another kind replaces the old."""
    merged = copy.deepcopy(base)
    for key, value in changes.items():
        old = merged.get(key)
        is_new_kind = (
            isinstance(old, dict) and isinstance(value, dict) and value.get("kind", old.get("kind")) != old.get("kind")
        )
        if isinstance(old, dict) and isinstance(value, dict) and not (key == "workload" and is_new_kind):
            merged[key] = merge(old, value)
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def set_key(table: dict[str, Any], key: str, value: Any, source: str) -> None:
    """By its dotted path, in which entries of a list have their number: faults.events[0].value."""
    at: Any = table
    steps = [int(number) if number else name for name, number in re.findall(r"([^.\[\]]+)|\[(\d+)\]", key)]
    for i, step in enumerate(steps):
        is_last, path = i + 1 == len(steps), "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps[:i])
        path = path.removeprefix(".")
        if isinstance(step, int):
            if not isinstance(at, list):
                raise refuse(source, key, value, f"must have no index: {path} is not a list")
            if step >= len(at):
                raise refuse(source, key, value, f"no such entry: {path} has {len(at)}")
        elif not isinstance(at, dict):
            how = f"{path}[0], its first entry, and so on" if isinstance(at, list) else f"{path} is none"
            raise refuse(source, key, value, f"must be a key of a table: {how}")
        if is_last:
            at[step] = value
        else:
            at = at[step] if isinstance(step, int) else at.setdefault(step, {})


def _check_sums(s: Scenario) -> None:
    """What no single key can tell."""
    f, t, q = s.fabric, s.transport, s.queues

    def need(holds: bool, key: str, value: object, problem: str) -> None:
        if not holds:
            raise refuse(s.source, key, value, problem)

    need(
        f.hosts % f.hosts_per_leaf == 0,
        "fabric.hosts",
        f.hosts,
        f"must be a multiple of hosts_per_leaf = {f.hosts_per_leaf}",
    )
    ranks = [one.kind for one in s.workloads if one.kind in ("job", "chakra")]
    words = f"needs a fabric with one NIC a GPU, over which a rank sends; this one has {f.nics_per_gpu}"
    need(f.nics_per_gpu == 1 or not ranks, "workload.kind", ranks[0] if ranks else None, words)
    need(not f.pods or f.leaves % f.pods == 0, "fabric.pods", f.pods, f"must divide the number of leaves, {f.leaves}")
    need(
        not f.pods or f.cores_per_spine > 0,
        "fabric.cores_per_spine",
        f.cores_per_spine,
        "must be at least 1 with three tiers",
    )
    need(
        bool(f.pods) or not f.cores_per_spine,
        "fabric.cores_per_spine",
        f.cores_per_spine,
        "must be 0 where pods is 0: two tiers",
    )
    need(
        q.ecn_low_bdp <= q.ecn_high_bdp,
        "queues.ecn_low_bdp",
        q.ecn_low_bdp,
        f"must be at most ecn_high_bdp = {q.ecn_high_bdp}",
    )
    if t.kind == "mrc":
        need(t.evs % f.planes == 0, "transport.evs", t.evs, f"must be a multiple of the {f.planes} planes")
        need(t.spares % f.planes == 0, "transport.spares", t.spares, f"must be a multiple of the {f.planes} planes")
    else:
        kinds = [one.kind for one in s.workloads if one.kind in ("collective", "job", "chakra")]
        words = "must be 'ring' or 'training' with RoCE, which has no collectives"
        need(not kinds, "workload.kind", kinds[0] if kinds else None, words)
        need(f.forwarding in ("auto", "ecmp"), "fabric.forwarding", f.forwarding, "must be 'ecmp' with RoCE")
