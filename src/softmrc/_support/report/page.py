"""The paper that reports are printed on: one HTML file with its style and its script in it, and nothing to fetch."""

from __future__ import annotations

import html
from collections.abc import Sequence

from softmrc._support.report import plots

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
.prose{white-space:normal;text-align:left;min-width:11em}
th{font-weight:600;color:var(--soft)} th:first-child,td:first-child{text-align:left} tr:last-child td{border-bottom:0}
.pill{display:inline-block;border-radius:99px;padding:1px 10px;font-size:13px;font-weight:600;margin-right:8px;
color:#fff}
.ok{background:#15803d} .no{background:#b42318} figure{margin:0;min-width:0}
section>svg{max-width:100%%;height:auto}
.row{display:grid;grid-template-columns:repeat(4,1fr);gap:18px 14px} .row svg{max-width:100%%;height:auto}
@media(max-width:760px){.row{grid-template-columns:repeat(2,1fr)}}
figcaption{font-size:13px;color:var(--soft);margin-bottom:4px} pre{font-size:13px;overflow-x:auto;margin:0}
.save{font:inherit;font-size:12.5px;color:var(--soft);background:none;border:0;padding:2px 0;cursor:pointer;
text-decoration:underline} p.note{font-size:13px} ul{margin:4px 0 12px;padding-left:20px;color:var(--soft)}
@media(max-width:500px){main{padding:20px 12px 40px}section{padding:12px 10px}h1{font-size:21px}}
#tip{position:fixed;pointer-events:none;background:var(--ink);color:var(--bg);border-radius:7px;padding:6px 10px;
font-size:12.5px;display:none;z-index:9;font-variant-numeric:tabular-nums}
details summary{cursor:pointer;color:var(--soft)} .cross{stroke:var(--soft);stroke-width:1;opacity:.6}
</style></head><body><main>
<h1>%(title)s</h1><p>%(setting)s</p>%(verdicts)s
%(sections)s
</main><div id="tip"></div><script>%(script)s</script></body></html>
"""

_SCRIPT = """\
const tip=document.getElementById('tip');
const show=v=>Math.abs(v)>=100?Math.round(v).toLocaleString('en'):(+v.toPrecision(3)).toString();
const csv=d=>['series,x,y',...d.series.flatMap(s=>s.x.map((x,i)=>
  [JSON.stringify(s.name),x,s.y[i]===null?'':s.y[i]].join(',')))].join('\\n');
document.querySelectorAll('svg[data-plot]').forEach((svg,n)=>{
  const d=JSON.parse(svg.dataset.plot),box=svg.viewBox.baseVal,save=document.createElement('button');
  save.className='save';save.textContent='data (CSV)';
  save.onclick=()=>{const a=document.createElement('a');a.download='plot-'+(n+1)+'.csv';
    a.href='data:text/csv;charset=utf-8,'+encodeURIComponent(csv(d));a.click()};
  svg.after(save);if(d.left===undefined)return;
  const line=document.createElementNS('http://www.w3.org/2000/svg','line');
  line.setAttribute('class','cross');line.setAttribute('y1',0);line.setAttribute('y2',box.height-42);
  line.style.display='none';svg.appendChild(line);
  svg.addEventListener('mousemove',e=>{
    const r=svg.getBoundingClientRect(),px=(e.clientX-r.left)/r.width*box.width;
    const t=(px-d.left)/d.inner;if(t<0||t>1){line.style.display=tip.style.display='none';return}
    let x=d.x0+t*(d.x1-d.x0);if(d.log)x=10**x;
    const rows=d.series.map(s=>{let i=s.x.findIndex(v=>v>=x);if(i<0)i=s.x.length-1;
      return s.name+': '+(s.y[i]===null?'none':show(s.y[i]))});
    tip.textContent='';[show(x)+' '+d.unit,...rows].forEach((text,i)=>{
      const p=document.createElement('div');p.textContent=text;if(!i)p.style.opacity=.7;tip.appendChild(p)});
    tip.style.display='block';tip.style.left=Math.min(e.clientX+14,innerWidth-230)+'px';tip.style.top=e.clientY+14+'px';
    line.style.display='';line.setAttribute('x1',px);line.setAttribute('x2',px)});
  svg.addEventListener('mouseleave',()=>{line.style.display=tip.style.display='none'})});
"""


def page_of(title: str, setting: str, verdicts: Sequence[str], sections: Sequence[str]) -> str:
    """The whole file."""
    return _PAGE % {
        "title": html.escape(title),
        "style": plots.STYLE,
        "setting": html.escape(setting),
        "verdicts": "".join(verdicts),
        "sections": "".join(sections),
        "script": _SCRIPT,
    }


A_FIGURE = 30  # characters, with its unit


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; cells are text. Columns of figures keep to a line; those of sentences fold, to be read at any width."""
    kinds = [' class="prose"' if any(len(row[at]) > A_FIGURE for row in rows) else "" for at in range(len(head))]
    tops = [f"<th{kind}>{html.escape(cell)}</th>" for kind, cell in zip(kinds, head, strict=True)]
    lines = [[f"<td{kind}>{html.escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)] for row in rows]
    return "<table>" + "".join("<tr>" + "".join(line) + "</tr>" for line in [tops, *lines]) + "</table>"


def verdict_line(is_good: bool, kind: str, name: str, text: str) -> str:
    """One line at the top: a coloured word, whose it is, and why."""
    pill = f'<span class="pill {"ok" if is_good else "no"}">{html.escape(kind)}</span>'
    return f'<p class="verdict">{pill}<b>{html.escape(name)}</b>: {html.escape(text)}</p>'


def section(title: str, text: str, body: str) -> str:
    """A heading, a sentence, and what belongs under them; nothing where there is nothing to show."""
    if not body:
        return ""
    about = f"<p>{html.escape(text)}</p>" if text else ""
    return f"<h2>{html.escape(title)}</h2>{about}<section>{body}</section>\n"
