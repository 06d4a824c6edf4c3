"""Runs every shipped scenario and writes docs/evidence/scenario-answers.md: question, answer, and command.

    python tools/answers.py                  everything, some minutes
    python tools/answers.py slow-link        only these; the others stay on the page as they are

Some scenarios are made smaller, so that all of them together take minutes; the command on the page says how. What
a seed finds is the same on every machine, so the page changes only when an answer does.
"""

from __future__ import annotations

import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from softmrc import sim
from softmrc._support import resources
from softmrc.sim.answer import FIGURES, Answer, VariantResult, answer, number

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "evidence" / "scenario-answers.md"
SEEDS = 3

# What is made smaller, and which are left out: they are the same question, larger.
SMALLER: dict[str, dict[str, Any]] = {
    "t1-reboot": {"fabric.hosts": 32},
    "paper/all-to-all": {"fabric.hosts": 32, "workload.message_bytes": 65536},
    "paper/all-to-all-loss-0.1": {"fabric.hosts": 32, "workload.message_bytes": 65536},
    "paper/all-to-all-loss-1": {"fabric.hosts": 32, "workload.message_bytes": 65536},
    "paper/cold-start": {"fabric.hosts": 32, "workload.bytes": 8_000_000},
    "paper/ev-loss": {"fabric.hosts": 32},
    "paper/incast-victim": {"workload.message_bytes": 4_000_000, "workload.victim.messages": 120},
    "paper/links-20": {"fabric.hosts": 32},
    "paper/nic-port-down": {"workload.messages": 10},
    "paper/permutation": {"fabric.hosts": 32, "workload.message_bytes": 16_000_000},
    "paper/ring-all-reduce": {"fabric.hosts": 32, "workload.bytes": 16_000_000},
    "paper/ring-all-reduce-loss-0.1": {"fabric.hosts": 32, "workload.bytes": 16_000_000},
    "paper/ring-all-reduce-loss-1": {"fabric.hosts": 32, "workload.bytes": 16_000_000},
}
LEFT_OUT = ("all-reduce/128-64MiB", "all-reduce/1024-64MiB", "all-reduce/1024-8KiB")


def command(name: str) -> str:
    changes = "".join(f" --set {key}={value}" for key, value in SMALLER.get(name, {}).items())
    return f"softmrc sim {name} --seeds {SEEDS}{changes}"


def ask(name: str) -> tuple[str, str, Answer]:
    scenario = sim.load(resources.names(resources.SCENARIOS)[name])
    if name in SMALLER:
        scenario = scenario.with_keys(SMALLER[name])
    first = scenario.run.seed
    return name, scenario.question, answer([sim.run_all(scenario, first + i) for i in range(SEEDS)])


def row(one: VariantResult, own: VariantResult, unit: str) -> str:
    """A variant: its mean and range over seeds, and how many times that of the scenario's own run it is."""
    if not one.values:
        return f"| {one.name} | does not finish: {one.why or 'no figure'} | | |"
    low, high = min(one.values), max(one.values)
    times = one.mean / own.mean if one is not own and own.values and own.mean else None
    stuck = f" ({one.unfinished} of {one.unfinished + len(one.values)} do not finish)" if one.unfinished else ""
    ratio = f"{times:.2f} ×" if times is not None else ""
    return f"| {one.name}{stuck} | {number(one.mean)} {unit} | {number(low)} to {number(high)} | {ratio} |"


def section(name: str, question: str, found: Answer) -> str:
    """A table of the variants, what the sentence says beyond it, and the command."""
    own = found.found[0]
    words = FIGURES[found.figure].words.rstrip(",")
    more = "" if ". " not in found.text else found.text.split(". ", 1)[1]
    lines = [
        f"## {name}",
        "",
        question,
        "",
        f"| variant | {words} | {SEEDS} seeds | of the first |",
        "|---|---|---|---|",
    ]
    lines += [row(one, own, found.unit) for one in found.found]
    return "\n".join([*lines, *(["", more] if more else []), "", f"    {command(name)}", ""])


HEAD = f"""# Scenario answers

Every scenario that comes with SoftMRC asks a question. Here are the answers: means and ranges over {SEEDS} seeds.
`make answers` writes this page.

The command below a table asks again. Where it sets keys, the scenario was made smaller than it is shipped.

"""


def sections_of(page: str) -> dict[str, str]:
    """What is on the page already, by the name of its scenario."""
    found = {}
    for part in page.split("\n## ")[1:]:
        match = re.search(r"^    softmrc sim (\S+)", part, re.MULTILINE)
        if match:
            found[match[1]] = "## " + part.rstrip("\n") + "\n"
    return found


def main(wanted: list[str]) -> int:
    known = [name for name in resources.names(resources.SCENARIOS) if name not in LEFT_OUT]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        print(f"There is no {unknown[0]}; there are {', '.join(known)}.", file=sys.stderr)
        return 1
    sections = sections_of(PAGE.read_text(encoding="utf-8")) if wanted and PAGE.exists() else {}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for name, question, found in pool.map(ask, wanted or known):
            sections[name] = section(name, question, found)
            print(f"{name}: {found.text}", flush=True)
            PAGE.write_text(HEAD + "\n".join(sections[one] for one in known if one in sections), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
