"""The page that shows a run: one HTML file with everything in it, to be opened, mailed or kept.

It has goodput over time with the faults marked, the distribution of completion times, the load of planes and links, and
the states of EVs, and says how the run can be had again.
"""

from __future__ import annotations

import html
import json

import numpy as np

from softmrc.sim import plots
from softmrc.sim.plots import Band, Series
from softmrc.sim.result import Result

GBPS = 1e9

_PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>%(title)s</title><style>%(style)s
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:920px;margin:0 auto;padding:36px 24px 64px} h1{font-size:25px;line-height:1.25;margin:0 0 6px}
h2{font-size:17px;margin:38px 0 4px} p{margin:4px 0 12px;color:var(--soft)} p.verdict{color:var(--ink)}
section{background:var(--card);border-radius:12px;padding:18px 20px;margin-top:10px;overflow-x:auto}
table{border-collapse:collapse;width:100%%;font-variant-numeric:tabular-nums;font-size:13.5px}
th,td{text-align:right;padding:6px 6px;border-bottom:1px solid var(--grid);white-space:nowrap}
th{font-weight:600;color:var(--soft)} th:first-child,td:first-child{text-align:left} tr:last-child td{border-bottom:0}
.pill{display:inline-block;border-radius:99px;padding:1px 10px;font-size:13px;font-weight:600;margin-right:8px;
color:#fff}
.ok{background:#15803d} .no{background:#b42318} figure{margin:0;min-width:0}
.row{display:grid;grid-template-columns:repeat(4,1fr);gap:18px 14px} .row svg{max-width:100%%;height:auto}
@media(max-width:760px){.row{grid-template-columns:repeat(2,1fr)}}
figcaption{font-size:13px;color:var(--soft);margin-bottom:4px} pre{font-size:13px;overflow-x:auto;margin:0}
#tip{position:fixed;pointer-events:none;background:var(--ink);color:var(--bg);border-radius:7px;padding:6px 10px;
font-size:12.5px;display:none;z-index:9;font-variant-numeric:tabular-nums}
details summary{cursor:pointer;color:var(--soft)} .cross{stroke:var(--soft);stroke-width:1;opacity:.6}
</style></head><body><main>
<h1>%(question)s</h1><p>%(setting)s</p>%(verdicts)s
%(sections)s
</main><div id="tip"></div><script>%(script)s</script></body></html>
"""

_SCRIPT = """\
const tip=document.getElementById('tip');
const show=v=>Math.abs(v)>=100?Math.round(v).toLocaleString('en'):(+v.toPrecision(3)).toString();
document.querySelectorAll('svg[data-plot]').forEach(svg=>{
  const d=JSON.parse(svg.dataset.plot),box=svg.viewBox.baseVal;
  const line=document.createElementNS('http://www.w3.org/2000/svg','line');
  line.setAttribute('class','cross');line.setAttribute('y1',0);line.setAttribute('y2',box.height-42);
  line.style.display='none';svg.appendChild(line);
  svg.addEventListener('mousemove',e=>{
    const r=svg.getBoundingClientRect(),px=(e.clientX-r.left)/r.width*box.width;
    const t=(px-d.left)/d.inner;if(t<0||t>1){line.style.display=tip.style.display='none';return}
    let x=d.x0+t*(d.x1-d.x0);if(d.log)x=10**x;
    const rows=d.series.map(s=>{let i=s.x.findIndex(v=>v>=x);if(i<0)i=s.x.length-1;return s.name+': '+show(s.y[i])});
    tip.textContent='';[show(x)+' '+d.unit,...rows].forEach((text,i)=>{
      const p=document.createElement('div');p.textContent=text;if(!i)p.style.opacity=.7;tip.appendChild(p)});
    tip.style.display='block';tip.style.left=Math.min(e.clientX+14,innerWidth-230)+'px';tip.style.top=e.clientY+14+'px';
    line.style.display='';line.setAttribute('x1',px);line.setAttribute('x2',px)});
  svg.addEventListener('mouseleave',()=>{line.style.display=tip.style.display='none'})});
"""


def page(results: list[Result]) -> str:
    """The report of a scenario and of what it was compared with."""
    first = results[0]
    f, s = first.scenario.fabric, first.scenario
    tiers = f"{f.leaves} leaves × {f.spines} spines" + (f" in {f.pods} pods, {f.t2_switches} cores" if f.pods else "")
    setting = (
        f"{f.hosts:,} hosts · {f.planes} plane{'s' if f.planes > 1 else ''} × {f.host_link_gbps:g} Gb/s"
        f" · {tiers} a plane"
        f" · base RTT {s.base_rtt_us:.1f} µs · seed {first.seed} · trace {first.trace_hash:016x}"
    )
    if s.run.speedup > 1:
        setting += f" · faults compressed {s.run.speedup:g} ×"
    sections = [
        _section("In figures", "", _figures(results)),
        _section("Goodput over time", "All hosts together. Shaded: something was broken.", goodput_plot(results)),
        _section("Training steps", "How long each took.", steps_plot(results)),
        _section("How long flows took", "The share of flows that were complete by then.", fct_plot(results)),
        _section("Load by plane", f"Goodput of each plane, {first.name}.", planes_plot(first)),
        _section(
            "Load by link",
            f"Share of each link's rate over the whole run, mean and most, {first.name}.",
            links_plot(first),
        ),
        _section("Paths", f"States of all entropy values of all senders, {first.name}.", evs_plot(first)),
        _section("The scenario", "", _recipe(first)),
    ]
    return _PAGE % {
        "title": html.escape(s.question),
        "style": plots.STYLE,
        "question": html.escape(s.question),
        "setting": html.escape(setting),
        "verdicts": "".join(_verdict(one) for one in results),
        "sections": "".join(sections),
        "script": _SCRIPT,
    }


def _section(title: str, text: str, body: str) -> str:
    if not body:
        return ""
    about = f"<p>{html.escape(text)}</p>" if text else ""
    return f"<h2>{html.escape(title)}</h2>{about}<section>{body}</section>\n"


def _verdict(result: Result) -> str:
    kind = "ok" if result.verdict else "no"
    name, text = html.escape(result.name), html.escape(result.verdict.text)
    pill = f'<span class="pill {kind}">{html.escape(result.verdict.kind)}</span>'
    return f'<p class="verdict">{pill}<b>{name}</b>: {text}</p>'


def _figures(results: list[Result]) -> str:
    columns = {
        "": lambda s: html.escape(s["name"]),
        "flows": lambda s: f"{s['flows_delivered']:,} of {s['flows']:,}",
        "mean": lambda s: _us(s["fct_mean_us"]),
        "p99": lambda s: _us(s["fct_p99_us"]),
        "last": lambda s: _us(s["fct_max_us"]),
        "slowest flow": lambda s: f"{s['slowest_flow_gbps']:,.1f} Gb/s",
        "resent": lambda s: f"{s['retransmitted']:,}",
        "trimmed": lambda s: f"{s['trimmed']:,}",
        "lost, control too": lambda s: f"{s['dropped'] + s['lost_to_faults']:,}",
    }
    head = "".join(f"<th>{name}</th>" for name in columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{show(one.summary())}</td>" for show in columns.values()) + "</tr>" for one in results
    )
    return f"<table><tr>{head}</tr>{rows}</table>"


def _us(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f} µs"


def bands(result: Result) -> list[Band]:
    """When something was broken, by what; flaps of one thing are separate spans."""
    end = max(result.simulated_us, 1.0)
    open_: dict[tuple[str, int], float] = {}
    found = []
    for action in result.faults:
        key = (action.label, int(action.links[0]))
        at = action.at_ps / 1e6
        if action.kind != "heal":
            open_.setdefault(key, at)
        elif key in open_:
            found.append(Band(open_.pop(key), at, action.label))
    found += [Band(at, end, label) for (label, _), at in open_.items()]
    return sorted((one for one in found if one.start <= end), key=lambda one: one.start)


def goodput_plot(results: list[Result], until_us: float | None = None) -> str:
    """Goodput of every variant; the scenario's own last bin is left out, as it is not full."""
    series = []
    for one in results:
        total = one.goodput_bps.sum(axis=0)[:-1] / GBPS
        x = (np.arange(len(total)) + 0.5) * one.bin_us
        if until_us is not None:
            total, x = total[x <= until_us], x[x <= until_us]
        series.append(Series(one.name, x, total))
    shown = max((float(one.x.max()) for one in series if len(one.x)), default=0)
    return plots.line_chart(series, "µs", "Gb/s", [one for one in bands(results[0]) if one.start < shown])


def planes_plot(result: Result) -> str:
    if result.goodput_bps.shape[0] < 2:
        return ""
    x = (np.arange(result.goodput_bps.shape[1] - 1) + 0.5) * result.bin_us
    series = [Series(f"plane {i}", x, plane[:-1] / GBPS) for i, plane in enumerate(result.goodput_bps)]
    return plots.line_chart(series, "µs", "Gb/s", bands(result))


def fct_plot(results: list[Result]) -> str:
    series = [Series(one.name, one.fct_us, one.fct_us, plots.color(i)) for i, one in enumerate(results)]
    return plots.cdf_chart(series, "µs")


def steps_plot(results: list[Result]) -> str:
    chosen = [one for one in results if len(one.step_us) > 1]
    series = [Series(one.name, np.arange(1, len(one.step_us) + 1), np.nan_to_num(one.step_us)) for one in chosen]
    return plots.line_chart(series, "step", "µs", height=200) if series else ""


def evs_plot(result: Result) -> str:
    if not len(result.ev_census) or not result.ev_census.any():
        return ""
    names = (("good", "--good"), ("skipped once", "--skip"), ("assumed bad", "--bad"), ("denied", "--denied"))
    parts = [(name, result.ev_census[:, i], f"var({ink})") for i, (name, ink) in enumerate(names)]
    return plots.stacked_chart(
        result.ev_census_us, [one for one in parts if one[1].any()], "µs", "entropy values", bands(result)
    )


def links_plot(result: Result) -> str:
    """A map for each plane of what went up, from leaves to spines; and the busiest links by name."""
    fabric = result.scenario.fabric
    loads = result.link_bytes * 8e6 / max(result.makespan_us, 1e-9) / fabric.fabric_link_bps
    up, down = (fabric.stages()[name] for name in ("T0 to T1", "T1 to T0"))
    maps = []
    for plane in range(min(fabric.planes, 8)):
        for links, way in ((up, "up"), (down, "down")):
            shape = (fabric.leaves, fabric.spines)
            named = links[plane].tolist() if links.shape[1] <= 4096 else []
            cells = [fabric.link_name(link) for link in named] or None
            picture = plots.heat_map(loads[links[plane]].reshape(shape), "leaf", "spine", cells)
            mean = float(loads[links[plane]].mean()) * 100
            caption = f"plane {plane} {way}: {mean:.0f} %, most {loads[links[plane]].max() * 100:.0f} %"
            maps.append(f"<figure><figcaption>{caption}</figcaption>{picture}</figure>")
    busiest = np.argsort(result.link_max_queue_bytes)[::-1][:5]
    rows = "".join(
        f"<tr><td>{html.escape(fabric.link_name(int(i)))}</td><td>{result.link_max_queue_bytes[i] / 1024:,.0f} KiB</td>"
        f"<td>{result.link_bytes[i] / 1e6:,.1f} MB</td></tr>"
        for i in busiest
    )
    queues = f"<table><tr><th>longest queues</th><th>at most</th><th>carried</th></tr>{rows}</table>"
    return f'<div class="row">{"".join(maps)}</div><br>{queues}'


def _recipe(result: Result) -> str:
    table = json.dumps(result.scenario.table, indent=2, ensure_ascii=False)
    source = html.escape(result.scenario.source or "this scenario")
    return (
        f"<p>Run it again: <code>softmrc sim {source} --seed {result.seed}</code></p>"
        f"<details><summary>every key</summary><pre>{html.escape(table)}</pre></details>"
    )
