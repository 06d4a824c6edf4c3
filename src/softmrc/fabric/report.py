"""Reports as one HTML file each: tables, charts and the drawing, with nothing to download."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from softmrc.fabric import charts, findings
from softmrc.fabric.assess import Assessment
from softmrc.fabric.drawing import draw
from softmrc.fabric.losses import POLICIES, TRANSPORT_WORDS, TRANSPORTS
from softmrc.fabric.months import MONTH_H
from softmrc.fabric.plan import Design, Impossible, Prices, Question
from softmrc.units import count_text, money_text, power_text, rate_text, share_text

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
        "cost": lambda: money_text(design.cost_usd),
        "power": lambda: power_text(design.power_w),
        "energy": lambda: money_text(design.energy_usd),
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
        ("Cost", lambda d: d.cost_usd, lambda d: money_text(d.cost_usd)),
    ):
        parts.append(f"<h2>{heading}</h2>")
        parts.append(charts.bars([(n, value(d), words(d)) for n, d in zip(labels, designs, strict=True)]))
    return page(title, parts)


def assess_html(found: Assessment) -> str:
    """The assessment as a report."""
    title = f"Fabric {found.description.name}"
    colours = [charts.BLUE, charts.RED] * len(POLICIES)
    lost = [
        (f"{POLICIES[p]}, {TRANSPORT_WORDS[t]}", found.losses[p][t].lost, share_text(found.losses[p][t].lost))
        for p in POLICIES
        for t in TRANSPORTS
    ]
    answer = "".join(f"<p class='big'>{escape(line)}</p>" for line in findings.answer_lines(found))
    flips = "".join(f"<li>{escape(line)}</li>" for line in findings.flip_lines(found))
    parts = [
        f"<h1>{escape(title)}</h1>{answer}",
        f"<h2>{findings.LOSSES_TITLE}</h2>", table(["", *findings.LOSSES_HEAD], findings.losses_rows(found)),
        "<h3>Lost in all, of the job's time</h3>", charts.bars(lost, colours),
        f"<h2>What would change the answer</h2><ul>{flips}</ul>",
        "<h3>The slowest host of the first month that was drawn, with MRC</h3>",
        charts.steps(found.drawn["mrc"].timeline, "hour", "share of its capacity", MONTH_H),
        "<h2>Ways between two hosts</h2>", table(findings.DIVERSITY_HEAD, findings.diversity_rows(found)),
        "<h2>Failure domains, the largest first</h2>", table(findings.DOMAIN_HEAD, findings.domain_rows(found)),
        "<h3>What one failure takes away, in hosts' worth of capacity (logarithmic)</h3>",
        charts.bars([(d.what, d.fabric_hosts, count_text(d.fabric_hosts)) for d in found.domains], logarithmic=True),
        "<h2>Topology</h2>", draw(found.description.fabric, "Topology"),
        "<h2>Assumptions</h2>", table(["key", "value", "from"], findings.assumption_rows(found)),
        f"<p class='note'>{escape(findings.assess_note(found))}</p>",
    ]  # fmt: skip
    return page(title, parts)
