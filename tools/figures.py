"""Measured figures in one place: docs/evidence/figures/NAME.json for each benchmark, and the page made from them.

    python tools/figures.py measure [--only udp,join] [--quick]    run benchmarks, store the results, render
    python tools/figures.py render [--check]                       write docs/evidence/benchmarks.md from what is stored
    python tools/figures.py stale                                  list results whose measured files have changed since

A file has one result for each machine (processor and number of cores); a new one replaces that machine's last.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STORE = ROOT / "docs" / "evidence" / "figures"
PAGE = ROOT / "docs" / "evidence" / "benchmarks.md"
STALE = "> **Stale**"


@dataclass(frozen=True)
class Benchmark:
    """What a benchmark compares, and the files whose changes make its figures stale, besides its own module."""

    compares: str
    measures: tuple[str, ...]


PROTOCOL = ("core/base", "core/wire", "core/proto")
SOCKETS = (*PROTOCOL, "core/crypto", "core/host", "core/udp", "src/softmrc/device", "src/softmrc/connection")
GROUPS = (*SOCKETS, "core/collectives", "src/softmrc/collectives")
BENCHMARKS = {
    "engine": Benchmark("The protocol engine on one core: packet rate, memory, time to leave a dead path.", PROTOCOL),
    "udp": Benchmark("Goodput and latency over real sockets, compared with TCP and plain UDP.", SOCKETS),
    "sealed": Benchmark("Encrypted packets compared with plain ones; forged, replayed and spoofed packets.", SOCKETS),
    "failover": Benchmark("Time to recover when a plane fails under load, compared with MPTCP.", SOCKETS),
    "allreduce": Benchmark("All-reduce compared with Gloo in the same run, and while a plane fails.", GROUPS),
    "join": Benchmark("Group set-up of 2 to 16 torch ranks, compared with Gloo.", (*GROUPS, "src/softmrc/torch")),
    "nccl": Benchmark(
        "NCCL's all-reduce over the plugin, compared with NCCL's own sockets: two processes on one GPU.",
        (*SOCKETS, "core/nccl", "src/softmrc/nccl"),
    ),
    "operate": Benchmark(
        "The mapper, the exporter, the dashboard and `softmrc explain`, on faults placed at random.",
        ("src/softmrc/ops", "src/softmrc/lab", "core/sim"),
    ),
    "assess": Benchmark(
        "The closed forms of the cost model, compared with Monte Carlo and with simulated packets.",
        ("src/softmrc/planner", "src/softmrc/fabric", "src/softmrc/sim", "core/sim", "core/proto"),
    ),
    "sim": Benchmark(
        "The simulator compared with a public reference; speed, memory and scaling over cores.",
        (*PROTOCOL, "core/sim", "src/softmrc/sim"),
    ),
    "lab": Benchmark(
        "A lab of 8 hosts and 4 planes: build time, paths, and traffic during faults, compared with MPTCP.",
        (*SOCKETS, "src/softmrc/lab"),
    ),
}  # fmt: skip


def git(*words: str, root: Path = ROOT) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(done.stderr.strip())
    return done.stdout.strip()


def paths_of(name: str) -> list[str]:
    return [*BENCHMARKS[name].measures, f"benchmarks/softmrc_bench/{name}.py"]


def machine() -> dict[str, Any]:
    """Processor, cores that may be used, kernel, and how busy the machine was before the run."""
    facts: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    memory_kib = int(Path("/proc/meminfo").read_text(encoding="utf-8").split()[1])
    return {
        "cpu": facts.get("model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "virtual": "hypervisor" in facts.get("flags", "").split(),
        "memory_gib": round(memory_kib / (1 << 20)),
        "kernel": platform.release(),
        "load": round(os.getloadavg()[0], 1),
    }


def identity(result: dict[str, Any]) -> tuple[int, str]:
    return result["machine"]["cores"], result["machine"]["cpu"]


def stored(store: Path = STORE) -> dict[str, list[dict[str, Any]]]:
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(store.glob("*.json"))}
    return {name: found[name] for name in BENCHMARKS if name in found}


def keep(name: str, result: dict[str, Any], store: Path = STORE) -> None:
    """Replace this machine's result of a benchmark."""
    others = [one for one in stored(store).get(name, []) if identity(one) != identity(result)]
    store.mkdir(parents=True, exist_ok=True)
    text = ",\n".join(written(one) for one in sorted([*others, result], key=identity))
    (store / f"{name}.json").write_text(f"[{text}]\n", encoding="utf-8")


def written(result: dict[str, Any]) -> str:
    """A result as JSON, one row a line."""
    head = json.dumps({key: value for key, value in result.items() if key != "rows"}, ensure_ascii=False)
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in result["rows"])
    return f'{head[:-1]}, "rows": [\n{rows}]}}'


def rounded(value: Any) -> Any:
    """Six significant digits: no clock has more."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return {key: rounded(one) for key, one in value.items()} if isinstance(value, dict) else value


def measure(name: str, quick: bool) -> dict[str, Any]:
    """Run one benchmark; `ValueError` says why it cannot run here."""
    about, words = machine(), ["bench", name, "--json", *(["--quick"] if quick else [])]
    changed = git("status", "--porcelain", "--", *paths_of(name))
    done = subprocess.run([sys.executable, "-P", "-m", "softmrc", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1])
    return {
        "commit": git("rev-parse", "HEAD"),
        "uncommitted": bool(changed),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": " ".join(["softmrc", *words]),
        "quick": quick,
        "machine": about,
        "rows": rounded(json.loads(done.stdout)["rows"]),
    }


def staleness(result: dict[str, Any], paths: list[str], root: Path = ROOT) -> str:
    """Why a result is stale; empty while nothing that it measures has changed."""
    if result["uncommitted"]:
        return "measured with uncommitted changes"
    try:
        count = int(git("rev-list", "--count", f"{result['commit']}..HEAD", "--", *paths, root=root))
    except ValueError:
        return f"commit {result['commit'][:8]} is not in this repository"
    return f"{count} commit{'s' * (count > 1)} changed the measured files since" if count else ""


def number(value: float | None) -> str:
    if value is None:
        return "—"
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 or value == int(value) else f"{value:.3g}"


def spread(measured: dict[str, Any]) -> str:
    """A value and, of several rounds, the least and the greatest."""
    rounds = measured.get("rounds", [])
    least_to_most = f" [{number(min(rounds))}–{number(max(rounds))}]" if len(rounds) > 1 else ""
    return number(measured["value"]) + least_to_most


def table(rows: list[dict[str, Any]]) -> list[str]:
    """One line a figure; what a ratio compares stands in the line of the ratio alone."""
    pairs = [row["versus"] for row in rows if "versus" in row]
    beside = {pair[side]["key"] for pair in pairs for side in ("ours", "theirs")}
    lines = ["| figure | unit | SoftMRC | n | compared with | ratio | limit |", "|---|---|--:|--:|---|--:|--:|"]
    for row in rows:
        if row["key"] in beside and "limit" not in row and "versus" not in row:
            continue
        pair = row.get("versus")
        limit = f"{row['limit']} {'✓' if row['holds'] else '✗'}" if "limit" in row else ""
        if pair and row["key"] != pair["ours"]["key"]:
            unit, ours, ratio = pair["unit"], spread(pair["ours"]), spread(row)
        else:
            unit, ours, ratio = row["unit"], spread(row), ""
        rival = f"{pair['rival']}: {spread(pair['theirs'])}" if pair else ""
        count = str(len(row["rounds"])) if row.get("rounds") else ""
        lines.append(f"| {row['figure']} | {unit} | {ours} | {count} | {rival} | {ratio} | {limit} |")
    return lines


def held(rows: list[dict[str, Any]]) -> str:
    limited = [row for row in rows if "limit" in row]
    return f"{sum(row['holds'] for row in limited)} of {len(limited)}"


def named(result: dict[str, Any]) -> str:
    about = result["machine"]
    return f"{about['cores']} cores, {about['cpu']}{' (virtual machine)' if about['virtual'] else ''}"


def section(name: str, results: list[dict[str, Any]], root: Path) -> list[str]:
    lines = [f"## Bench: {name}", "", BENCHMARKS[name].compares, ""]
    if not results:
        return [*lines, f"Not measured yet: `make figures ONLY={name}`.", ""]
    for result in results:
        about = result["machine"]
        lines += [f"**{named(result)}**, {about['memory_gib']} GiB, Linux {about['kernel']}", ""]
        lines += [f"`{result['command']}`, commit `{result['commit'][:8]}`, {result['date']}", ""]
        if why := staleness(result, paths_of(name), root):
            lines += [f"{STALE}: {why}.", ""]
        if result["quick"]:
            lines += ["> Quick run: few, short rounds.", ""]
        if about["load"] > 0.5 * about["cores"]:
            lines += [f"> Busy machine: load {about['load']} before the run.", ""]
        lines += [*table(result["rows"]), ""]
    return lines


def page(found: dict[str, list[dict[str, Any]]], root: Path = ROOT) -> str:
    lines = [
        "# Benchmarks",
        "",
        "Generated by `make figures` from `docs/evidence/figures/`; do not edit. To measure one benchmark on your",
        "machine, run `make figures ONLY=udp`.",
        "",
        "How to read the tables:",
        "",
        "- *SoftMRC* is the median of n rounds, with [least–greatest], unless the figure says p99 or worst.",
        "- Rounds of SoftMRC alternate with rounds of what it is compared with. *Ratio* is the median over the rounds.",
        "- *Limit* is what the project requires: ✓ met, ✗ missed.",
        "- — means that this machine cannot measure it.",
        "",
        "| benchmark | machine | measured | limits met |",
        "|---|---|---|--:|",
    ]
    for name in BENCHMARKS:
        for result in found.get(name, []):
            lines.append(f"| [{name}](#bench-{name}) | {named(result)} | {result['date']} | {held(result['rows'])} |")
        if not found.get(name):
            lines.append(f"| [{name}](#bench-{name}) | | not yet | |")
    lines.append("")
    for name in BENCHMARKS:
        lines += section(name, found.get(name, []), root)
    return "\n".join(lines[:-1]) + "\n"


def without_staleness(text: str) -> str:
    """The page less what every commit may change."""
    return "\n".join(line for line in text.split("\n\n") if not line.startswith(STALE))


def render(check: bool) -> int:
    text = page(stored())
    if not check:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(text, encoding="utf-8")
        return 0
    is_current = PAGE.exists() and without_staleness(PAGE.read_text(encoding="utf-8")) == without_staleness(text)
    if not is_current:
        print(f"{PAGE.relative_to(ROOT)} is not current: run `python tools/figures.py render`", file=sys.stderr)
    return 0 if is_current else 1


def stale() -> int:
    """Print what is stale; 1 where anything is."""
    found = [
        f"{name}, {named(result)}: {why}"
        for name, results in stored().items()
        for result in results
        if (why := staleness(result, paths_of(name)))
    ]
    print("\n".join(found) or "No result is stale.")
    return 1 if found else 0


def measure_all(names: list[str], quick: bool) -> int:
    """Each in turn; those that this machine cannot run are named."""
    failed = 0
    for name in names:
        print(f"{name} ...", flush=True)
        try:
            keep(name, measure(name, quick))
        except ValueError as error:
            failed += 1
            print(f"{name}: not measured: {error}", file=sys.stderr)
    render(check=False)
    return 1 if failed == len(names) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure, store and render the project's figures.")
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="run benchmarks, store the results and render the page")
    measuring.add_argument("--only", default="", help="names, comma-separated; all by default")
    measuring.add_argument("--quick", action="store_true", help="few, short rounds")
    commands.add_parser("render", help="write the page").add_argument("--check", action="store_true")
    commands.add_parser("stale", help="list stale results")
    given = parser.parse_args()
    if given.command == "render":
        return render(given.check)
    if given.command == "stale":
        return stale()
    names = [one for one in given.only.split(",") if one] or list(BENCHMARKS)
    if unknown := sorted(set(names) - set(BENCHMARKS)):
        parser.error(f"unknown benchmark {', '.join(unknown)}; choose from {', '.join(BENCHMARKS)}")
    return measure_all(names, given.quick)


if __name__ == "__main__":
    sys.exit(main())
