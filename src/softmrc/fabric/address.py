"""Addresses and paths: which uSID a node has, which addresses lead where, and which links an entropy value names.

    carrier     block : LEAF : SPINE : LEAF' : DOWNLINK : LEAF' : function
    uSIDs       leaf 0x0100+l   spine or aggregation 0x0300+s   core 0x0500+c   downlink 0x1000+d

The downlink's uSID is only unique under its leaf, so the leaf follows it once more: what arrives at a NIC is
block:DOWNLINK:LEAF::, an address that no other NIC has. An EV of a pair of hosts is a number, `path * planes + plane`,
so that neighbours in number lie in different planes.

Two ways to send: in an outer header (`path`), or as plain UDP to a carrier whose dropped uSIDs add up to nothing
(`carrier`), so that the checksum holds at both ends. Which of the two a host uses is not decided here.
"""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network
from itertools import pairwise
from typing import TYPE_CHECKING

from softmrc.errors import ConfigError
from softmrc.fabric.description import Addressing
from softmrc.fabric.shape import Node, Shape, Tier
from softmrc.wire.srv6 import MAX_USIDS, Path, PathTemplate, Srh
from softmrc.wire.srv6 import carrier as build_carrier

if TYPE_CHECKING:
    import numpy as np

T0_USID, T1_USID, T2_USID, DOWNLINK_USID = 0x0100, 0x0300, 0x0500, 0x1000
MAX_T0, MAX_T1, MAX_T2 = 0x200, 0x200, 0x400  # of a plane
ADJACENCY_USID = 0xE000  # + the port's number on its switch
MAX_ADJACENCIES = 0x800
DECAP_USID = 0xD006  # the function: take the outer header off
DECAP_USID_WITH_PLANE = 0x1D06
# Where the first uSID of a checksum-neutral carrier may fall; leaves take the whole range for themselves.
NEUTRAL_PREFIXES = ((0xE800, 37), (0xF000, 36))
PLANE_SHIFT, PLANE_WIDTH = 13, 3
COMPUTED_UPLINKS = 256  # the uplink is written into the low byte of the T1's uSID


class AddressPlan:
    """All addresses of one fabric, by arithmetic: nothing is stored per host."""

    def __init__(self, shape: Shape, addressing: Addressing | None = None) -> None:
        self.shape = shape
        self.addressing = addressing or Addressing()
        self._check_numbers()
        self._check_planes()
        self._check_length()

    def _check_numbers(self) -> None:
        """Refuse more switches than there are uSIDs for."""
        s = self.shape
        for key, count, most, word in (
            ("hosts", s.leaves, MAX_T0, "leaves"),
            ("pods" if s.pods else "spines", s.t1_switches, MAX_T1, f"{s.tier_word(Tier.T1)}s"),
            ("cores_per_spine", s.t2_switches, MAX_T2, "cores"),
        ):
            if count > most:
                problem = f"must make at most {most} {word} a plane, and makes {count}"
                raise ConfigError(f"fabric.{key}", getattr(s, key), problem)

    def _check_planes(self) -> None:
        a, planes = self.addressing, self.shape.planes
        if a.plane_in == "usid" and planes > 1 << PLANE_WIDTH:
            problem = f'must be "block" with more than {1 << PLANE_WIDTH} planes; there are {planes}'
            raise ConfigError("addressing.plane_in", a.plane_in, problem)
        if a.plane_in == "block" and (a.block_number & 0xFF) + planes > 0x100:
            problem = f"must be a block whose eighth nibble pair leaves room for {planes} planes, as fcbb:bb00::/32"
            raise ConfigError("addressing.block", a.block, problem)

    def _check_length(self) -> None:
        """Refuse paths that do not fit one carrier where there may be no SRH."""
        if self.addressing.srh:
            return
        longest = len(self.usids(0, self.shape.hosts - 1, 0, 0)) + 1
        if longest > MAX_USIDS:
            named = f"{longest} uSIDs ({2 * self.shape.tiers - 1} switches, the NIC in two, the function)"
            problem = f'must be true with route = "strict" here: a path takes {named}, a carrier holds {MAX_USIDS}'
            raise ConfigError("addressing.srh", False, problem)

    # uSIDs.

    def block(self, plane: int) -> int:
        """The 32-bit block of a plane."""
        return self.addressing.block_number + (plane if self.addressing.plane_in == "block" else 0)

    def _placed(self, usid: int, plane: int) -> int:
        return usid if self.addressing.plane_in == "block" else usid | plane << PLANE_SHIFT

    def usid(self, node: Node) -> int:
        """The uSID of a switch."""
        base = {Tier.T0: T0_USID, Tier.T1: T1_USID, Tier.T2: T2_USID}[node.tier]
        return self._placed(base + node.index, node.plane)

    def downlink_usid(self, host: int, plane: int) -> int:
        return self._placed(DOWNLINK_USID + self.shape.downlink_of(host), plane)

    def decap_usid(self, plane: int) -> int:
        """The function that ends an outer header at a host."""
        return DECAP_USID if self.addressing.plane_in == "block" else self._placed(DECAP_USID_WITH_PLANE, plane)

    def prefix(self, plane: int, *usids: int) -> IPv6Network:
        """What a table matches: the block and these uSIDs."""
        return IPv6Network((build_carrier(self.block(plane), usids), 32 + 16 * len(usids)))

    # Hosts.

    def nic_address(self, host: int, plane: int) -> IPv6Address:
        """Where a packet arrives when all its uSIDs but the NIC's are gone."""
        leaf = self.usid(Node(Tier.T0, plane, self.shape.leaf_of(host)))
        return build_carrier(self.block(plane), [self.downlink_usid(host, plane), leaf])

    def host_address(self, host: int) -> IPv6Address:
        """A host's own address, the same in all planes: the inner destination."""
        return IPv6Address(self.addressing.inner_number << 96 | host << 64 | 0xFFFF_FFFF << 32 | 1)

    def host_prefix(self, host: int) -> IPv6Network:
        """Everything that is this host, whatever path the address names."""
        return IPv6Network((self.addressing.inner_number << 96 | host << 64, 64))

    def path_address(self, destination: int, plane: int, path: int) -> IPv6Address:
        """An inner address that a kernel route sends along this path."""
        self._check_plane(plane)
        return IPv6Address(self.addressing.inner_number << 96 | destination << 64 | plane << 48 | path << 32 | 1)

    # Paths and entropy values.

    def evs(self, source: int, destination: int) -> int:
        """How many paths a pair has, over all planes."""
        return self.shape.planes * self.shape.paths(source, destination)

    def ev_of(self, plane: int, path: int) -> int:
        return path * self.shape.planes + plane

    def place_of(self, ev: int) -> tuple[int, int]:
        """Plane and path of an EV."""
        return ev % self.shape.planes, ev // self.shape.planes

    def _check_plane(self, plane: int) -> None:
        if not 0 <= plane < self.shape.planes:
            raise ConfigError("plane", plane, f"must be 0 to {self.shape.planes - 1}")

    def _switches(self, source: int, destination: int, plane: int, path: int) -> list[Node]:
        """The switches of a path, in order."""
        s = self.shape
        for field, host in (("source", source), ("destination", destination)):
            if not 0 <= host < s.hosts:
                raise ConfigError(field, host, f"must be 0 to {s.hosts - 1}")
        self._check_plane(plane)
        if not 0 <= path < s.paths(source, destination):
            raise ConfigError("path", path, f"must be 0 to {s.paths(source, destination) - 1} between these hosts")
        leaf, last = s.leaf_of(source), s.leaf_of(destination)
        first_node, last_node = Node(Tier.T0, plane, leaf), Node(Tier.T0, plane, last)
        if leaf == last:
            return [first_node]
        if not s.pods or s.pod_of_leaf(leaf) == s.pod_of_leaf(last):
            return [first_node, Node(Tier.T1, plane, s.t1_of(leaf, path)), last_node]
        uplink, up = divmod(path, s.cores_per_spine)
        t1 = s.t1_of(leaf, uplink)
        core = s.core_of(t1, up)
        t1_down = s.t1_of_core(core, s.pod_of_leaf(last))
        middle = [Node(Tier.T1, plane, t1), Node(Tier.T2, plane, core), Node(Tier.T1, plane, t1_down)]
        return [first_node, *middle, last_node]

    def usids(self, source: int, destination: int, plane: int, path: int) -> list[int]:
        """The uSIDs of a path up to its NIC, without the function.

        Loose routes leave out what has no choice, but only where the carrier would overflow: the aggregation below a
        core (a core meets one in each pod), then the first leaf (a port hangs on one).
        """
        switches = self._switches(source, destination, plane, path)
        if self.addressing.route == "loose" and len(switches) == 5:
            switches = [switches[1], switches[2], switches[4]]
        leaf = Node(Tier.T0, plane, self.shape.leaf_of(destination))
        return [*map(self.usid, switches), self.downlink_usid(destination, plane), self.usid(leaf)]

    def path(self, source: int, destination: int, plane: int, path: int) -> Path:
        """The outer header's path, which ends with the function that takes the header off.

        One that does not fit a carrier continues in an SRH. The NIC's uSIDs stay together in it: a carrier that ended
        between them would arrive at the NIC under an address that is not its own.
        """
        block, function = self.block(plane), self.decap_usid(plane)
        usids = [*self.usids(source, destination, plane, path), function]
        if len(usids) <= MAX_USIDS:
            return Path(build_carrier(block, usids))
        rest = build_carrier(block, usids[-3:])
        return Path(build_carrier(block, usids[:-3]), Srh((rest,), segments_left=1))

    def carrier(self, source: int, destination: int, plane: int, path: int) -> IPv6Address:
        """A checksum-neutral destination for plain UDP: it arrives as `nic_address`, and both have the same sum.

        The first uSID is the one's complement of those that go with it, and every leaf takes it for its own.
        """
        if self.addressing.plane_in != "block":
            raise ConfigError(
                "addressing.plane_in", self.addressing.plane_in, 'must be "block", for checksum-neutral carriers'
            )
        switches = self._switches(source, destination, plane, path)
        named = switches[1:] if len(switches) < 5 else [switches[1], switches[2], switches[4]]
        dropped = [self.usid(node) for node in named]
        neutral = 0xFFFF - sum(dropped) % 0xFFFF
        leaf = Node(Tier.T0, plane, self.shape.leaf_of(destination))
        tail = [self.downlink_usid(destination, plane), self.usid(leaf)]
        return build_carrier(self.block(plane), [neutral, *dropped, *tail])

    def adjacency_path(self, source: int, destination: int, plane: int, path: int) -> IPv6Address:
        """The same links, named one by one (uA) instead of by the switches they lead to."""
        usids = []
        for link in self.links(source, destination, plane, path)[1:-1]:
            node, _ = self.shape.ends(link)
            port = self.port_of(node, link)
            if port >= MAX_ADJACENCIES:
                raise ConfigError("port", port, f"must be 0 to {MAX_ADJACENCIES - 1}, for a path of adjacencies")
            usids.append(ADJACENCY_USID + port)
        leaf = Node(Tier.T0, plane, self.shape.leaf_of(destination))
        tail = [self.downlink_usid(destination, plane), self.usid(leaf)]
        return build_carrier(self.block(plane), [*usids, *tail])

    def template(self, source: int, destination: int) -> PathTemplate:
        """The rule by which a NIC computes a path of this pair from plane and uplink, instead of looking it up."""
        s = self.shape
        if s.pods or s.spines > COMPUTED_UPLINKS:
            problem = f"must be at most {COMPUTED_UPLINKS}, in two tiers, for paths that are computed"
            raise ConfigError("fabric.spines", s.spines, problem)
        if s.leaf_of(source) == s.leaf_of(destination):
            raise ConfigError(
                "destination", destination, "must be a host under another leaf: there is no uplink to choose"
            )
        in_block = self.addressing.plane_in == "block"
        return PathTemplate(
            self.block(0),
            (*self.usids(source, destination, 0, 0), self.decap_usid(0)),
            plane_in_usid=None if in_block else (PLANE_SHIFT, PLANE_WIDTH),
            plane_in_block=(0, 8) if in_block else None,
            uplink_in_t1=(0, 8),
        )

    # EVs name links, links name EVs.

    def links(self, source: int, destination: int, plane: int, path: int) -> tuple[int, ...]:
        """The directed links of a path, in order."""
        s = self.shape
        switches = self._switches(source, destination, plane, path)
        first, last = s.host_up(plane, source), s.host_down(plane, destination)
        if len(switches) == 1:
            return first, last
        leaf, leaf_down = switches[0].index, switches[-1].index
        if len(switches) == 3:
            return first, s.leaf_up(plane, leaf, path), s.leaf_down(plane, leaf_down, path), last
        uplink, up = divmod(path, s.cores_per_spine)
        t1, t1_down = switches[1].index, switches[3].index
        across = (s.t1_up(plane, t1, up), s.t1_down(plane, t1_down, up))
        return first, s.leaf_up(plane, leaf, uplink), *across, s.leaf_down(plane, leaf_down, uplink), last

    def evs_over(self, link: int, source: int, destination: int) -> list[int]:
        """The EVs of a pair that cross a directed link."""
        s = self.shape
        plane = s.plane_of(link)
        start, end = s.ends(link)
        count = s.paths(source, destination)
        leaf, last = s.leaf_of(source), s.leaf_of(destination)
        spread = count // s.spines  # paths through one uplink of a leaf
        chosen: range | list[int] = []
        if Tier.HOST in (start.tier, end.tier):
            on_it = start == Node(Tier.HOST, 0, source) or end == Node(Tier.HOST, 0, destination)
            chosen = range(count) if on_it else []
        elif leaf == last:
            chosen = []
        elif {start.tier, end.tier} == {Tier.T0, Tier.T1}:
            rising = start.tier is Tier.T0
            t1 = end.index if rising else start.index
            uplink = t1 % s.spines
            if (start.index == leaf) if rising else (end.index == last):
                chosen = range(uplink * spread, (uplink + 1) * spread)
        elif s.pod_of_leaf(leaf) != s.pod_of_leaf(last):
            rising = start.tier is Tier.T1
            t1, core = (start.index, end.index) if rising else (end.index, start.index)
            if t1 // s.spines == s.pod_of_leaf(leaf if rising else last):
                chosen = [core]  # cores are numbered as the paths through them
        return [self.ev_of(plane, path) for path in chosen]

    def port_of(self, node: Node, link: int) -> int:
        """The number of a port on its node: downlinks first, then uplinks."""
        return (self.shape.downlinks(node) + self.shape.uplinks(node)).index(link)

    # The same as arrays, for a driver that keeps one address per EV. NumPy is imported here only: most commands do not
    # need it.

    def carriers(self, source: int, destination: int) -> np.ndarray:
        """The checksum-neutral carrier of every EV of a pair: (EVs, 16) bytes, in the order of EVs."""
        return self._packed([self.carrier(source, destination, *self.place_of(ev))
                             for ev in range(self.evs(source, destination))])  # fmt: skip

    def path_addresses(self, source: int, destination: int) -> np.ndarray:
        """The inner address that kernel routes send along each EV of a pair: (EVs, 16) bytes."""
        return self._packed([self.path_address(destination, *self.place_of(ev))
                             for ev in range(self.evs(source, destination))])  # fmt: skip

    def planes_of_evs(self, source: int, destination: int) -> np.ndarray:
        """The plane, which is the port, of every EV of a pair."""
        import numpy as np

        return np.arange(self.evs(source, destination)) % self.shape.planes

    @staticmethod
    def _packed(addresses: list[IPv6Address]) -> np.ndarray:
        import numpy as np

        return np.frombuffer(b"".join(a.packed for a in addresses), dtype=np.uint8).reshape(-1, 16)


def _check_ranges() -> None:
    """The ranges of uSIDs must not meet, and neutral first uSIDs must fall where the leaves expect them."""
    ranges = [(T0_USID, MAX_T0), (T1_USID, MAX_T1), (T2_USID, MAX_T2), (DOWNLINK_USID, 0x800)]
    for (start, size), (following, _) in pairwise(ranges):
        assert start + size <= following
    lowest = 0xFFFF - (T0_USID + T1_USID + T2_USID + MAX_T0 + MAX_T1 + MAX_T2 - 3)
    assert lowest >= NEUTRAL_PREFIXES[0][0]


_check_ranges()
