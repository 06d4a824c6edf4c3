"""A fabric in a file: TOML, one section for each topic.

    name = "eight"                  [fabric]      the shape; required
                                    [addressing]  how paths are written
                                    [switch]      ECN, trimming, queues
                                    [failures]    how often things break, for `softmrc assess`
                                    [job]         what a failure costs, for `softmrc assess`
                                    [lab]         what only a lab of namespaces needs

A key that does not exist is refused with the nearest one that does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from ipaddress import IPv6Network
from pathlib import Path

from softmrc._support.files import located, parse_toml, read_text
from softmrc._support.tables import check_keys, read_table
from softmrc.errors import MISSING, ConfigError
from softmrc.fabric.shape import Shape

OPTIC_BPS = 800_000_000_000  # of a transceiver: what a plan buys, and what breaks


def _one_of(field_name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(field_name, value, "must be one of " + ", ".join(choices))


def _in_range(section: str, settings: object, **ranges: tuple[float, float]) -> None:
    for key, (least, most) in ranges.items():
        if not least <= getattr(settings, key) <= most:
            raise ConfigError(f"{section}.{key}", getattr(settings, key), f"must be {least:g} to {most:g}")


@dataclass(frozen=True)
class Addressing:
    """How a path becomes an address."""

    block: str = "fcbb:bb00::/32"  # of plane 0, or of all planes
    plane_in: str = "block"  # "block": a block a plane; "usid": one block, the plane in the top three bits of each uSID
    route: str = "loose"  # "strict": every switch is named; "loose": those left out that have no choice
    srh: bool = True  # whether switches and NICs take a path that needs a segment routing header
    inner: str = "fd4d:5243::/32"  # where hosts have their own addresses, inside the outer header

    def __post_init__(self) -> None:
        _one_of("addressing.plane_in", self.plane_in, ("block", "usid"))
        _one_of("addressing.route", self.route, ("loose", "strict"))
        for key in ("block", "inner"):
            try:
                prefix = IPv6Network(getattr(self, key))
            except ValueError:
                prefix = None
            if prefix is None or prefix.prefixlen != 32:
                raise ConfigError(f"addressing.{key}", getattr(self, key), "must be an IPv6 prefix of 32 bits")

    @property
    def block_number(self) -> int:
        return int(IPv6Network(self.block).network_address) >> 96

    @property
    def inner_number(self) -> int:
        return int(IPv6Network(self.inner).network_address) >> 96


@dataclass(frozen=True)
class SwitchSettings:
    """Queues of a switch port. Zeros are worked out from the rate: ECN from 0.2 to 0.8 of a bandwidth-delay product,
    trimming at 1 (the last hop at 1.5), drops at 4."""

    ecn: bool = False
    trim: bool = False
    base_rtt_us: float = 0.0  # 0: 4 ms in a lab, 8 µs elsewhere
    ecn_min_bytes: int = 0
    ecn_max_bytes: int = 0
    trim_bytes: int = 0
    trim_last_hop_bytes: int = 0
    queue_bytes: int = 0

    def __post_init__(self) -> None:
        keys = [f.name for f in fields(self) if f.name.endswith("_bytes")]
        _in_range("switch", self, base_rtt_us=(0, 1e6), **dict.fromkeys(keys, (0, 1 << 31)))


@dataclass(frozen=True)
class Failures:
    """How often each part breaks and how long repairing it takes. docs/guides/failure-costs.md says which are
    published, by whom, and which are assumptions."""

    link_per_year: float = 0.0068  # of each cable
    nic_per_year: float = 0.0029  # of a NIC as a whole: its host is lost, however many planes it has
    nic_port_per_year: float = 0.0003  # of each port of a NIC, alone
    optic_per_year: float = 0.005  # of each transceiver between hosts and leaves, at either end
    switch_per_year: float = 0.04
    gpu_per_year: float = 0.156  # what stops a GPU or its host, the network apart
    power_per_year: float = 0.01  # of what feeds hosts_per_feed hosts
    flap_per_link_year: float = 0.1
    link_repair_h: float = 1.0
    nic_repair_h: float = 3.0
    nic_port_repair_h: float = 3.0
    optic_repair_h: float = 1.0
    switch_repair_h: float = 4.0
    gpu_repair_h: float = 24.0
    power_repair_h: float = 2.0
    flap_s: float = 3.0
    dispatch_h: float = 4.0  # from a failure until work can begin
    crews: int = 0  # who repair, one thing each at a time; 0: as many as it takes
    maintenance_days: float = 7.0  # between windows in which everything is repaired that was left broken
    links_per_optic: int = 0  # of a leaf's transceiver: links to as many hosts, that fail together; 0: as 800G hold
    planes_per_optic: int = 0  # of a NIC's transceiver: its planes that fail together; 0: as 800G hold
    planes_per_cable: int = 1  # that share a cable to a host
    hosts_per_feed: int = 32  # that a power feed takes with it, whatever switches they hang on

    def __post_init__(self) -> None:
        ranges = {f.name: (0.0, 1e4) if "per" in f.name and "year" in f.name else (1e-6, 1e5) for f in fields(self)}
        ranges |= {"dispatch_h": (0, 1e5), "crews": (0, 1e6), "links_per_optic": (0, 64)}
        ranges |= {"planes_per_optic": (0, 16), "planes_per_cable": (1, 16), "hosts_per_feed": (1, 1e6)}
        _in_range("failures", self, **ranges)


@dataclass(frozen=True)
class JobSettings:
    """One job on the whole fabric, all hosts in step. The defaults are assumptions."""

    gpus: int = 0  # that the NICs belong to; 0: gpus_per_host to each. Fewer: GPUs with several NICs, or NICs to spare
    gpus_per_host: int = 1
    nics_per_gpu: int = 0  # 0: as many as there are for each
    communication_share: float = 0.3  # of a step spent waiting for the network, at full capacity
    crossing_share: float = 1.0  # of what a host sends: what leaves its leaf
    checkpoint_every_min: float = 30.0
    checkpoint_s: float = 5.0  # the job stands still while one is written
    detect_min: float = 3.0  # until a hung job is detected
    restart_min: float = 10.0
    warmup_min: float = 5.0  # after a restart, until steps take as long as before
    spare_share: float = 0.01  # of the hosts, standing by
    rides_out_s: float = 30.0  # without MRC: how long an outage may last before the job has to restart
    reroute_s: float = 1.0  # without MRC: until switches have rerouted around a failure above the leaves
    gpu_hour_usd: float = 2.5
    gpu_w: float = 1200.0  # with its share of host and network

    def __post_init__(self) -> None:
        ranges: dict[str, tuple[float, float]] = {
            f.name: (0, 1e5) for f in fields(self) if f.name.endswith(("_min", "_s", "_usd", "_w"))
        }
        ranges |= dict.fromkeys(("communication_share", "crossing_share", "spare_share"), (0, 1))
        ranges |= {"gpus": (0, 1e9), "gpus_per_host": (1, 64), "nics_per_gpu": (0, 64)}
        ranges |= {"checkpoint_every_min": (0.01, 1e5), "restart_min": (0.01, 1e5)}
        _in_range("job", self, **ranges)


@dataclass(frozen=True)
class LabSettings:
    """What only a lab of namespaces needs."""

    mtu: int = 1500
    encap: bool = True  # routes that put a packet for a path's address into an outer header
    checksums: bool = True  # real checksums on every veth, and no segmentation offload

    def __post_init__(self) -> None:
        _in_range("lab", self, mtu=(1280, 65535))


@dataclass(frozen=True)
class Description:
    """Everything a fabric file says."""

    name: str = "mrc"
    fabric: Shape = field(default_factory=Shape)
    addressing: Addressing = field(default_factory=Addressing)
    switch: SwitchSettings = field(default_factory=SwitchSettings)
    failures: Failures = field(default_factory=Failures)
    job: JobSettings = field(default_factory=JobSettings)
    lab: LabSettings = field(default_factory=LabSettings)

    def __post_init__(self) -> None:
        letters = self.name.replace("-", "").replace("_", "")
        if not (letters.isascii() and letters.isalnum() and len(self.name) <= 32):
            raise ConfigError("name", self.name, "must be up to 32 letters, digits, - and _")
        for key in ("planes_per_cable", "planes_per_optic"):
            together = getattr(self.failures, key)
            if together and together < self.fabric.planes and self.fabric.planes % together:
                raise ConfigError(
                    f"failures.{key}", together, f"must divide the number of planes, {self.fabric.planes}"
                )
        most = self.fabric.hosts * self.job.gpus_per_host
        if self.job.gpus > most:
            raise ConfigError("job.gpus", self.job.gpus, f"must be at most {most:,}: gpus_per_host to each of the NICs")
        if self.nics > self.fabric.hosts:
            fewer = f"must be at most {self.fabric.hosts // self.machines}: the fabric has so many NICs for each"
            raise ConfigError("job.nics_per_gpu", self.job.nics_per_gpu, fewer)

    @property
    def gpus(self) -> int:
        return self.job.gpus or self.fabric.hosts * self.job.gpus_per_host

    @property
    def machines(self) -> int:
        """What breaks and is swapped whole: a GPU with all its NICs, or the GPUs that share one."""
        return -(-self.gpus // self.job.gpus_per_host)

    @property
    def links_of_an_optic(self) -> int:
        """Of a leaf, towards hosts."""
        links = self.failures.links_per_optic or OPTIC_BPS // self.fabric.host_link_bps
        return max(1, min(links, self.fabric.hosts_per_leaf))

    @property
    def planes_of_an_optic(self) -> int:
        """Of a NIC. Where a transceiver holds no whole share of its planes, fewer go with each."""
        planes = self.fabric.planes
        most = min(self.failures.planes_per_optic or OPTIC_BPS // self.fabric.host_link_bps, planes)
        return max(n for n in range(1, planes + 1) if planes % n == 0 and n <= max(most, 1))

    @property
    def spares(self) -> int:
        """Machines that stand by."""
        return math.ceil(self.job.spare_share * self.machines)

    @property
    def feeds(self) -> int:
        """Power feeds of the job's hosts."""
        return -(-self.machines // self.failures.hosts_per_feed)

    @property
    def nics_per_machine(self) -> int:
        return self.job.nics_per_gpu or self.fabric.hosts // self.machines

    @property
    def nics(self) -> int:
        """That the job uses. Others are spares', or there because leaves have as many each."""
        return self.machines * self.nics_per_machine

    @property
    def places(self) -> int:
        """Spares that have ports."""
        return (self.fabric.hosts - self.nics) // self.nics_per_machine

    @property
    def spanned(self) -> Description:
        """What the job spans: of each leaf as many NICs as it uses, and nothing that no packet crosses."""
        shape = self.fabric.crossed
        each = -(-self.nics // shape.leaves)
        return replace(self, fabric=replace(shape, hosts=each * shape.leaves, hosts_per_leaf=each))


def parse(text: str, default_name: str = "mrc") -> Description:
    """Read a description from TOML text."""
    table = parse_toml(text, default_name)
    check_keys([one.name for one in fields(Description)], table, "", "")
    if "fabric" not in table:
        raise ConfigError(
            "fabric", MISSING, "is missing", "Add a section [fabric] with planes, hosts, hosts_per_leaf and spines."
        )
    description: Description = read_table(Description, {"name": default_name, **table}, "", "")
    return description


def load(path: Path | str) -> Description:
    """Read a fabric file; a fabric without a name has the file's."""
    path = Path(path)
    text = read_text(path, "file")
    stem = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in path.stem)[:32]
    try:
        return parse(text, stem or "mrc")
    except ConfigError as error:
        raise located(error, str(path), text) from None
