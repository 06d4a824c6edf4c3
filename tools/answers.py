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
from softmrc.sim.answer import Answer, answer

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


def section(name: str, question: str, found: Answer) -> str:
    return f"## {question}\n\n{found.text}\n\n    {command(name)}\n"


HEAD = f"""# Scenario answers

Every scenario that comes with SoftMRC asks a question; here are the answers, computed from runs of {SEEDS} seeds each.
`make answers` writes this page.

The command below an answer asks again; where it sets keys, the scenario was made smaller than it is shipped.

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
