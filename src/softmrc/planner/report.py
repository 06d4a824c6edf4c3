"""Reports as one HTML file each: tables, charts and the drawing, with nothing to download."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from html import escape

from softmrc._support.report import plots
from softmrc._support.report.page import page_of, section, table, verdict_line
from softmrc._support.units import count_text, counted, money_text, power_text, rate_text, ratio_text, share_text
from softmrc.fabric.drawing import draw
from softmrc.planner import summary
from softmrc.planner.assess import Assessment
from softmrc.planner.availability import POLICIES, TRANSPORT_WORDS, TRANSPORTS
from softmrc.planner.monte_carlo import MONTH_H
from softmrc.planner.plan import Design, DesignSpec, Impossible, Prices, gpus_text
from softmrc.planner.study import Point, Study, answer, by_planes, hour_text, outs

# Label and figure; a label alone opens a group.
PLAN_ROWS: tuple[tuple[str, str], ...] = (
    ("ports of a switch", "radix"),
    ("down : up at leaf", "split"),
    ("NICs", "hosts"),
    ("most NICs", "max_nics"),
    ("switches", "switches"),
    ("optics (800G)", "optics"),
    ("cables", "links"),
    ("switches, longest path", "longest_path_switches"),
    ("NICs one hop away", "neighbours_one_hop"),
    ("paths, farthest NICs", "paths"),
    ("a NIC loses, with one", ""),
    (" leaf uplink, in plane", "link_share_in_plane"),
    (" leaf uplink, in all", "link_share"),
    (" NIC port or its cable", "port_share"),
    (" switch above leaf", "t1_share"),
    (" its leaf", "t0_share"),
    (" plane", "plane_share"),
    ("cost", "cost"),
    ("power", "power"),
    ("energy over its life", "energy"),
)


def plan_cell(design: Design, key: str) -> str:
    """One figure of a design, as text."""
    special = {
        "shape": lambda: f"{design.planes} × {design.tiers}",
        "split": lambda: ratio_text(design.down_up) if design.down_up else "–",
        "radix": lambda: f"{design.radix} × {rate_text(design.port_bps)}",
        "optics": lambda: f"{design.optics_800g:,.0f}",
        "t0_share": lambda: share_text(design.port_share),
        "plane_share": lambda: share_text(design.port_share),
        "": lambda: "",
        "cost": lambda: money_text(design.cost_usd),
        "power": lambda: power_text(design.power_w),
        "energy": lambda: money_text(design.energy_usd),
    }
    if key in special:
        return special[key]()
    if design.tiers == 1 and key in ("link_share_in_plane", "link_share", "t1_share"):
        return "–"  # nothing is there that could break
    value = getattr(design, key)
    return share_text(value) if key.endswith(("share", "in_plane")) else f"{value:,}"


def plan_title(question: DesignSpec) -> str:
    rates = f"NICs of {rate_text(question.nic_bps)}, switches of {rate_text(question.switch_bps)}"
    return f"{gpus_text(question)}, {rates}"


def plan_note(prices: Prices) -> str:
    assumed = "assumed prices, not quotes; pass your own with --prices"
    book = assumed if prices.are_assumptions else "your price file"
    return f"Cost, power and energy over {prices.energy.years:g} years rest on {book}."


def spare_places(found: Sequence[Design | Impossible]) -> list[str]:
    """Where a design has more NICs than requested."""
    more = [d for d in found if isinstance(d, Design) and d.hosts != d.nics]
    if not more:
        return []
    counts = ", ".join(f"{d.hosts - d.nics:,} ({plan_cell(d, 'shape')}, {plan_cell(d, 'split')})" for d in more)
    where = "cables, optics, cost and power have them, and so has the fabric that is written"
    return [f"NICs more than asked for, so that all leaves have as many: {counts}; {where}."]


def lane_notes(question: DesignSpec, found: Sequence[Design | Impossible]) -> list[str]:
    """Where lanes, and not the rate of a port, say how many ports a switch has."""
    bound = [d for d in found if isinstance(d, Design) and d.port_bps < question.lane_bps]
    if not bound:
        return []
    which = ", ".join(plan_cell(d, "shape") for d in bound)
    lanes = f"{question.switch_bps // question.lane_bps} lanes of {rate_text(question.lane_bps)}"
    return [f"A switch has {lanes}, and no more ports, however slow they are: {which} (--serdes)."]


def _design_name(d: Design) -> str:
    return f"{counted(d.planes, 'plane')}, {counted(d.tiers, 'tier')}"


def plan_html(question: DesignSpec, found: Sequence[Design | Impossible], prices: Prices) -> str:
    """The comparison as a report."""
    designs = [d for d in found if isinstance(d, Design)]
    rows = [[label.replace(" ", "\u2003", 1) if label.startswith(" ") else label, *(plan_cell(d, key) for d in designs)]
            for label, key in PLAN_ROWS]  # fmt: skip
    names = [plan_cell(d, "shape") for d in designs]
    slim = len({d.oversubscription for d in designs}) > 1
    labels = [_design_name(d) + (f", {plan_cell(d, 'split')}" if slim else "") for d in designs]
    refused = [d for d in found if isinstance(d, Impossible)]
    lines = [verdict_line(False, "not feasible", d.name, d.reason) for d in refused]
    lines += [f"<p>{escape(words)}</p>" for words in spare_places(found) + lane_notes(question, found)]
    if not designs:
        return page_of(plan_title(question), "None of the requested designs can be built.", lines, [])
    parts = [section("In figures", "", table(["planes × tiers", *names], rows))]
    for heading, key in (
        ("Switches", "switches"),
        ("Optics, in 800G transceivers", "optics_800g"),
        ("What one failed NIC port takes from its NIC", "port_share"),
        ("What one failed leaf uplink takes from its NICs", "link_share"),
        ("Cost", "cost_usd"),
        ("Power", "power_w"),
    ):
        if key == "link_share" and all(d.tiers == 1 for d in designs):
            continue  # there are none
        words = [plan_cell(d, WORDS_OF.get(key, key)) for d in designs]
        parts.append(section(heading, "", plots.bar_chart(labels, [getattr(d, key) for d in designs], key, (), words)))
    return page_of(plan_title(question), plan_note(prices), lines, parts)


WORDS_OF = {"optics_800g": "optics", "cost_usd": "cost", "power_w": "power"}


def assess_html(found: Assessment) -> str:
    """The assessment as a report."""
    cases = [(p, t) for p in POLICIES for t in TRANSPORTS]
    names = [f"{POLICIES[p]}, {TRANSPORT_WORDS[t]}" for p, t in cases]
    lost = [100 * found.losses[p][t].lost for p, t in cases]
    inks = [plots.color(TRANSPORTS.index(t)) for _, t in cases]
    answer, *rest = summary.answer_lines(found)
    flips = "".join(f"<li>{escape(line)}</li>" for line in summary.flip_lines(found))
    hours, capacity = zip(*_hourly(found.drawn["mrc"].timeline), strict=True)
    domains = sorted(found.domains, key=lambda d: -d.fabric_hosts)
    sections = [
        section("Lost in all", "Per cent of the job's time, by policy and transport.",
                plots.bar_chart(names, lost, "%", inks, [share_text(x / 100) for x in lost])),
        section(summary.LOSSES_TITLE, "", table(["", *summary.LOSSES_HEAD], summary.losses_rows(found))),
        section("What would change the answer", "Each assumption moved on its own.", f"<ul>{flips}</ul>"),
        section("The slowest host", "The least share of its capacity in each hour of the first month drawn, with MRC.",
                plots.step_chart(hours, capacity, "slowest host", "hours", "share of its capacity", MONTH_H)),
        section("Paths between two hosts", "", table(summary.DIVERSITY_HEAD, summary.diversity_rows(found))),
        section("Failure domains, the largest first", "", table(summary.DOMAIN_HEAD, summary.domain_rows(found))),
        section("What one failure takes away", "In hosts' worth of capacity.",
                plots.bar_chart([d.what for d in domains], [d.fabric_hosts for d in domains], "hosts", (),
                                [count_text(d.fabric_hosts) for d in domains])),
        section("Topology", "", draw(found.description.fabric, "Topology")),
        section("Assumptions", summary.assess_note(found),
                table(["key", "value", "from"], summary.assumption_rows(found))),
    ]  # fmt: skip
    lines = [f'<p class="verdict"><b>{escape(answer)}</b></p>', *(f"<p>{escape(line)}</p>" for line in rest)]
    return page_of(f"Fabric {found.description.name}", summary.summary(found), lines, sections)


def _hourly(timeline: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The least value of each hour: what a plot can show."""
    least: dict[int, float] = {}
    held = 1.0
    moments = deque(timeline)
    for hour in range(int(MONTH_H)):
        least[hour] = held
        while moments and moments[0][0] < hour + 1:
            held = moments.popleft()[1]
            least[hour] = min(least[hour], held)
    return [(float(hour), value) for hour, value in least.items()]


STUDY_HEAD = ["design", "cost", "lost", "hosts", "network", "uplinks", "useful hour"]


def study_row(p: Point) -> list[str]:
    shares = (p.lost_share, p.hosts_share, p.network_share, p.uplinks_share)
    return [p.name, money_text(p.cost_usd), *map(share_text, shares), hour_text(p.useful_hour_usd)]


def planes_rows(points: Sequence[Point]) -> list[list[str]]:
    """One for each number of planes."""
    found = by_planes(points)
    none = [""] * (len(STUDY_HEAD) - 1)
    return [
        study_row(p) if p else [f"{counted(planes, 'plane')}: none can be built, or is wanted", *none]
        for planes, p in found.items()
    ]


def study_note(prices: Prices) -> str:
    whose = "assumed prices, not quotes; pass your own with --prices" if prices.are_assumptions else "your price file"
    years = f"{prices.energy.years:g} years"
    return (
        f"Cost: to build it, its energy and the spares that stand by, over {years}, by {whose}. Lost: of the job's "
        "time (hosts: with a network that never fails; network: of what they leave, what its failures take, with MRC; "
        "uplinks: of what is left, what lean ones take). Useful hour: the cost and that of the GPUs, for each GPU-hour "
        "that is not lost."
    )


def study_html(asked: Study, points: Sequence[Point], prices: Prices) -> str:
    """A study as a report: the front, and why the others are out."""
    front, out = [p for p in points if not p.out], [p for p in points if p.out]
    picture = plots.scatter_chart(
        [(kind, [p.cost_usd / 1e6 for p in chosen], [100 * p.lost_share for p in chosen], [p.name for p in chosen])
         for kind, chosen in (("Pareto-optimal", front), ("out", [p for p in out if p.is_built]))],
        "cost, $ M", "lost, % of the job's time",
    )  # fmt: skip
    best = [p for p in by_planes(points).values() if p]
    lost = [p.network_lost for p in best]
    bars = plots.bar_chart([p.name for p in best], [100 * x for x in lost], "%", (), [share_text(x) for x in lost])
    worth = bars if best else ""
    fronts = [[*study_row(p), power_text(p.power_w), p.policy] for p in front]
    reasons = "".join(f"<li>{escape(line)}</li>" for line in outs(points))
    each = table(["design", "because"], [[p.name, p.out] for p in out])
    sections = [
        section("The front", "Beaten by none: nothing costs less and loses as little.",
                table([*STUDY_HEAD, "power", "policy"], fronts) if front else ""),
        section("By planes", "With each number of planes, the design whose useful hours cost least.",
                table(STUDY_HEAD, planes_rows(points)) if best else ""),
        section("What the network loses",
                "Of those: per cent of the time that hosts leave, to the network's failures and lean uplinks.", worth),
        section("All that can be built", "", picture),
        section("Why the others are out", "",
                f"<ul>{reasons}</ul><details><summary>one by one</summary>{each}</details>" if out else ""),
    ]  # fmt: skip
    said = [f'<p class="verdict"><b>{escape(answer(asked, points))}</b></p>']
    return page_of(f"{asked.gpus:,} GPUs: {len(points)} designs", study_note(prices), said, sections)


def retries_html(head: list[str], rows: list[list[str]], lines: list[str]) -> str:
    """What retransmissions cost, fault by fault, as a report."""
    said, *more = [f"<p>{escape(line)}</p>" for line in lines]
    verdict = said.replace("<p>", '<p class="verdict">')
    return page_of(
        "Lost to retries",
        "MRC and RoCE, fault by fault",
        [verdict, *more],
        [section("In figures", "", table(head, rows))],
    )
