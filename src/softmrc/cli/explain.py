"""`softmrc explain`: why an operation was slow."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from softmrc._support.files import runtime_folder
from softmrc.cli.options import AsJson, print_json
from softmrc.cli.terminal import say
from softmrc.collectives.ring_file import Owner, Recording, read
from softmrc.errors import ConfigError, UsageError, printable
from softmrc.ops import control
from softmrc.ops.bursts import BurstExplainer
from softmrc.ops.explain import Cause, Explainer, Explanation


def explain(
    number: Annotated[
        int | None, typer.Argument(min=1, metavar="N", help="Number of the operation. Default: the one that lost most.")
    ] = None,
    recording: Annotated[
        list[Path] | None, typer.Option(help="A rank's recording. Repeatable. Default: this user's newest job.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", "-d", help="Explain bursts of this running device of the NCCL plugin: 4711-0."),
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Operations of this group. Default: the newest job's busiest group.")
    ] = None,
    groups: Annotated[bool, typer.Option("--groups", help="List the groups that have recordings.")] = False,
    every: Annotated[bool, typer.Option("--list", help="List every operation that took longer than usual.")] = False,
    as_json: AsJson = False,
) -> None:
    """Explain why a collective operation was slow.

    It reads what ranks record with SOFTMRC_RECORD=1, or asks a running device of the NCCL plugin (--device)."""
    if groups:
        there = _groups(_in_folder(runtime_folder()))
        if as_json:
            print_json({"groups": [one.to_json() for one in there]})
        else:
            say("\n".join(map(str, there)) or "no recordings found")
        return
    explainer = _bursts_of(device) if device else Explainer(_recordings(recording, group))
    found = explainer.slow() if every else [explainer.explain(number)]
    if as_json:
        print_json({"operations": [_as_json(verdict) for verdict in found]})
        return
    if number is None and all(one.cause is Cause.NOTHING for one in found):
        print("no operation took longer than usual")
        return
    for verdict in found:
        say(verdict)


def _bursts_of(device: str) -> BurstExplainer:
    with control.find_device(device) as node:
        return BurstExplainer.of(node)


def _recordings(named: list[Path] | None, group: str | None) -> list[Recording]:
    """Those that are named; or of the newest job the group that did most, of each rank the newest."""
    if named:
        return _of_one_group([read(path) for path in named], group)
    there = _groups(_in_folder(runtime_folder()))
    wanted = [one for one in there if group in (None, one.name, one.owner.group)]
    if not wanted:
        _refuse_unknown(group, [one.name for one in there])
        return []
    newest = wanted[-1]
    of_the_job = [one for one in wanted if one.pids & newest.pids]
    chosen = max(of_the_job, key=lambda one: one.operations)
    if len(of_the_job) > 1:
        say(f"softmrc: of {chosen}; `softmrc explain --groups` lists the others", stderr=True)
    return list(chosen.recordings.values())


@dataclass
class _Group:
    """Ranks that met, as the recordings of this user tell."""

    owner: Owner  # of one of the recordings
    recordings: dict[int, Recording] = field(default_factory=dict)  # by rank

    @property
    def name(self) -> str:
        """Groups of one job may be called alike, as those of torch are; each time that ranks meet has a name of its
        own."""
        return f"{self.owner.group}/{self.owner.run[:8]}" if self.owner.run else self.owner.group

    @property
    def pids(self) -> set[int]:
        return {recording.owner.pid for recording in self.recordings.values()}

    @property
    def operations(self) -> int:
        return max(int(recording.operations["number"].max(initial=0)) for recording in self.recordings.values())

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "operations": self.operations,
            "ranks": self.owner.size,
            "recordings": len(self.recordings),
            "program": self.owner.program,
        }

    def __str__(self) -> str:
        ranks = (
            f"{len(self.recordings)} of {self.owner.size} ranks"
            if len(self.recordings) < self.owner.size
            else "all ranks"
        )
        done = f"{self.operations:,} operation{'s' * (self.operations != 1)}"
        return printable(f"{self.name}: {done}, recordings of {ranks}, {self.owner.program}")


def _groups(found: list[Recording]) -> list[_Group]:
    """The one of which a recording was written last comes last."""
    groups: dict[tuple[str, int, str], _Group] = {}
    for one in found:
        key = (one.owner.group, one.owner.size, one.owner.run)
        group = groups.pop(key, None) or _Group(one.owner)
        group.recordings[one.owner.rank] = one
        groups[key] = group
    return list(groups.values())


def _in_folder(where: Path) -> list[Recording]:
    """Every recording there, the newest last. Unreadable files are skipped with a warning."""
    found, refused = [], []
    for path in sorted(where.glob("*.flight") if where.is_dir() else (), key=_written_at):
        try:
            found.append(read(path))
        except ConfigError as error:
            refused.append(error)
    if refused:
        more = f"; so are {len(refused) - 1} more" if len(refused) > 1 else ""
        say(f"softmrc: passed over: {refused[-1]}{more}", stderr=True)
    return found


def _written_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0  # it was there a moment ago


def _of_one_group(found: list[Recording], group: str | None) -> list[Recording]:
    names = sorted({one.owner.group for one in found})
    if group is None and len(names) > 1:
        shown = printable(", ".join(names))
        raise UsageError(f"there are recordings of several groups ({shown}); say which with --group")
    kept = [one for one in found if group is None or one.owner.group == group]
    if not kept:
        _refuse_unknown(group, names)
    return kept


def _refuse_unknown(group: str | None, names: list[str]) -> None:
    if names:
        raise UsageError(printable(f"no group {group}; there {'is' if len(names) == 1 else 'are'} {', '.join(names)}"))


def _as_json(verdict: Explanation) -> dict[str, object]:
    return {
        "number": verdict.number,
        "kind": verdict.kind,
        "took_s": verdict.took_s,
        "usual_s": verdict.usual_s,
        "cause": verdict.cause.value,
        "rank": verdict.rank,
        "plane": verdict.plane,
        "peer": verdict.peer,
        "words": verdict.words,
    }
