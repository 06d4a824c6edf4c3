"""Reports as one HTML file each: tables, charts and the drawing, with nothing to download."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from softmrc.fabric import charts
from softmrc.fabric.assess import MONTH_H, Assessment
from softmrc.fabric.drawing import draw
from softmrc.fabric.plan import Design, Impossible, Prices, Question
from softmrc.units import rate_text, share_text

STYLE = """
body{font:15px/1.5 ui-sans-serif,system-ui,sans-serif;color:#0f172a;max-width:980px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem;margin-bottom:.2rem}h2{font-size:1.15rem;margin-top:2.2rem}
p.note{color:#64748b;font-size:.9rem}p.big{font-size:1.1rem}
table{border-collapse:collapse;font-size:.9rem;margin:.8rem 0;display:block;overflow-x:auto}
th,td{padding:.32rem .7rem;border-bottom:1px solid #e2e8f0;text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left}th{color:#475569;font-weight:600}
svg{max-width:100%;height:auto}
"""
Cell = str


def table(head: Sequence[Cell], rows: Sequence[Sequence[Cell]]) -> str:
    """A table; cells are text."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def page(title: str, parts: Sequence[str]) -> str:
    head = f"<meta charset='utf-8'><meta name='viewport' content='width=device-width'><title>{escape(title)}</title>"
    body = "".join(parts)
    return f"<!doctype html><html lang='en'><head>{head}<style>{STYLE}</style></head><body>{body}</body></html>\n"


def money(usd: float) -> str:
    """$ 1.63 G, $ 77 M: three digits are more than the prices deserve."""
    for suffix, scale in ((" G", 1e9), (" M", 1e6), (" k", 1e3)):
        if usd >= scale:
            return f"$ {usd / scale:.3g}{suffix}"
    return f"$ {usd:.0f}"


def power(watts: float) -> str:
    for suffix, scale in ((" MW", 1e6), (" kW", 1e3)):
        if watts >= scale:
            return f"{watts / scale:.3g}{suffix}"
    return f"{watts:.0f} W"


# Label and figure; a label alone opens a group.
PLAN_ROWS: tuple[tuple[str, str], ...] = (
    ("ports of a switch", "radix"),
    ("down : up at a T0", "split"),
    ("most NICs", "max_nics"),
    ("switches", "switches"),
    ("optics (800G)", "optics"),
    ("cables", "links"),
    ("switches, longest path", "longest_path_switches"),
    ("NICs one hop away", "neighbours_one_hop"),
    ("paths, farthest NICs", "paths"),
    ("a NIC loses, with one", ""),
    (" T0–T1 link, in plane", "link_share_in_plane"),
    (" T0–T1 link, in all", "link_share"),
    (" NIC port or its cable", "port_share"),
    (" T1 above it", "t1_share"),
    (" T0 it hangs on", "t0_share"),
    (" plane", "plane_share"),
    ("cost", "cost"),
    ("power", "power"),
    ("energy over its life", "energy"),
)


def count_text(value: float) -> str:
    """A count or an average of counts, with no more digits than mean something."""
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:,.3g}"


def plan_cell(design: Design, key: str) -> str:
    """One figure of a design, as text."""
    special = {
        "shape": lambda: f"{design.planes} × {design.tiers}",
        "split": lambda: f"{float(design.oversubscription):g} : 1",
        "radix": lambda: f"{design.radix} × {rate_text(design.port_bps)}",
        "optics": lambda: f"{design.optics_800g:,.0f}",
        "t0_share": lambda: share_text(design.port_share),
        "plane_share": lambda: share_text(design.port_share),
        "": lambda: "",
        "cost": lambda: money(design.cost_usd),
        "power": lambda: power(design.power_w),
        "energy": lambda: money(design.energy_usd),
    }
    if key in special:
        return special[key]()
    value = getattr(design, key)
    return share_text(value) if key.endswith(("share", "in_plane")) else f"{value:,}"


def plan_title(question: Question) -> str:
    rates = f"NICs of {rate_text(question.nic_bps)}, switches of {rate_text(question.switch_bps)}"
    return f"{question.gpus:,} GPUs, {rates}"


def plan_note(prices: Prices) -> str:
    assumed = "assumed prices, not quotes; pass your own with --prices"
    book = assumed if prices.are_assumptions else "your price file"
    return f"Cost, power and energy over {prices.energy.years:g} years rest on {book}."


def plan_html(question: Question, found: Sequence[Design | Impossible], prices: Prices) -> str:
    """The comparison as a report."""
    designs = [d for d in found if isinstance(d, Design)]
    title = plan_title(question)
    rows = [[label, *(plan_cell(d, key) for d in designs)] for label, key in PLAN_ROWS]
    names = [plan_cell(d, "shape") for d in designs]
    slim = len({d.oversubscription for d in designs}) > 1
    labels = [f"{d.planes} planes, {d.tiers} tiers" + (f", {plan_cell(d, 'split')}" if slim else "") for d in designs]
    parts = [f"<h1>{escape(title)}</h1><p class='note'>{escape(plan_note(prices))}</p>"]
    parts.append(table(["planes × tiers", *names], rows))
    refused = [d for d in found if isinstance(d, Impossible)]
    parts += [f"<p>{d.planes} × {d.tiers} cannot be built; {escape(d.reason)}</p>" for d in refused]
    for heading, value, words in (
        ("Switches", lambda d: d.switches, lambda d: f"{d.switches:,}"),
        ("Optics, in 800G transceivers", lambda d: d.optics_800g, lambda d: f"{d.optics_800g:,.0f}"),
        ("What one failed NIC port takes from its NIC", lambda d: d.port_share, lambda d: share_text(d.port_share)),
        ("What one failed T0–T1 link takes from its NICs", lambda d: d.link_share, lambda d: share_text(d.link_share)),
        ("Cost", lambda d: d.cost_usd, lambda d: money(d.cost_usd)),
    ):
        parts.append(f"<h2>{heading}</h2>")
        parts.append(charts.bars([(n, value(d), words(d)) for n, d in zip(labels, designs, strict=True)]))
    return page(title, parts)


def diversity_rows(found: Assessment) -> list[list[str]]:
    return [
        [d.relation, share_text(d.share_of_pairs), str(d.switches), f"{d.paths_per_plane:,}", f"{d.paths:,}"]
        for d in found.diversity
    ]


def domain_rows(found: Assessment) -> list[list[str]]:
    return [
        [d.what, f"{d.count:,}", f"{d.hosts:,}", share_text(d.share), count_text(d.fabric_hosts),
         count_text(found.month.failures[d.what]) if d.what in found.month.failures else "—"]
        for d in found.domains
    ]  # fmt: skip


DIVERSITY_HEAD = ["the other host is", "share of pairs", "switches", "paths a plane", "paths"]
DOMAIN_HEAD = ["one failed", "there are", "hosts hit", "each loses", "in hosts", "a month"]


def month_lines(found: Assessment) -> list[str]:
    """What the month came to, as sentences."""
    m, job = found.month, found.description.job
    flaps = sum(count for what, count in m.failures.items() if what.startswith("flap"))
    broken = sum(m.failures.values()) - flaps

    def hours(value: float) -> str:
        return f"{value:,.0f} GPU-hours ({share_text(value / m.gpu_h)})" if m.gpu_h else "0"

    return [
        f"{count_text(broken)} failures and {count_text(flaps)} flaps a month; "
        f"the fabric keeps {100 * m.mean_capacity:.4f} % of its capacity.",
        f"The slowest host has {100 * m.worst_host_mean:.1f} % of its own on average, "
        f"and {100 * m.worst_host_p01:.1f} % or less in one hour of a hundred.",
        f"With MRC the job runs on at the slowest host's pace and loses {hours(m.mrc_lost_gpu_h)}.",
        f"With a restart on every outage over {job.rides_out_s:g} s it restarts {count_text(m.restarts)} times "
        f"and loses {hours(m.restart_lost_gpu_h)}.",
    ]


def assess_note(found: Assessment) -> str:
    job = found.description.job
    return (
        f"{found.month.trials} months drawn with seed {found.month.seed}. Rates, repair times and the job "
        f"({share_text(job.communication_share)} of a step is communication, a checkpoint every "
        f"{job.checkpoint_every_min:g} min, {job.restart_min:g} min to restart) are assumptions unless the file sets "
        "them."
    )


def assess_html(found: Assessment) -> str:
    """The assessment as a report."""
    m, title = found.month, f"Fabric {found.description.name}"
    lost = [
        (f"with {what}", hours, f"{hours:,.0f}")
        for what, hours in (("MRC", m.mrc_lost_gpu_h), ("restarts", m.restart_lost_gpu_h))
    ]
    month = "".join(f"<p class='big'>{escape(line)}</p>" for line in month_lines(found))
    parts = [
        f"<h1>{escape(title)}</h1>", draw(found.description.fabric, "Topology"),
        "<h2>Ways between two hosts</h2>", table(DIVERSITY_HEAD, diversity_rows(found)),
        "<h2>Failure domains, the largest first</h2>", table(DOMAIN_HEAD, domain_rows(found)),
        "<h3>What one failure takes away, in hosts' worth of capacity (logarithmic)</h3>",
        charts.bars([(d.what, d.fabric_hosts, count_text(d.fabric_hosts)) for d in found.domains], logarithmic=True),
        f"<h2>A month of failures</h2>{month}",
        "<h3>The slowest host, hour by hour, in the first of the months</h3>",
        charts.steps(m.timeline, "hour", "lowest share of its capacity in the hour", MONTH_H),
        "<h3>GPU-hours lost in a month</h3>",
        charts.bars(lost, [charts.BLUE, charts.RED]),
        f"<p class='note'>{escape(assess_note(found))}</p>",
    ]  # fmt: skip
    return page(title, parts)
