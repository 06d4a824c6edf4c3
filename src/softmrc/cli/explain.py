"""`softmrc explain`: why an operation was slow."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from softmrc import control
from softmrc.errors import ConfigError, UsageError, printable
from softmrc.recorder.bursts import BurstExplainer
from softmrc.recorder.explain import Explainer, Verdict
from softmrc.recorder.tape import Recording, read


def explain(
    number: Annotated[
        int | None, typer.Argument(min=1, help="Of the operation; without it, the one that lost most.")
    ] = None,
    tape: Annotated[
        list[Path] | None, typer.Option(help="A rank's tape; repeat for all. Without: this user's.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", "-d", help="A running device that marks bursts (NCCL's plugin): 4711-0, or 4711."),
    ] = None,
    group: Annotated[str | None, typer.Option(help="Of which group, if there are several.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every operation that took longer than usual.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Say why an operation was slow, from the flight recorders of its ranks (SOFTMRC_RECORD=1), or a burst of a running
    NCCL job."""
    explainer = _bursts_of(device) if device else Explainer(_tapes(tape, group))
    found = explainer.slow() if every else [explainer.explain(number)]
    if not found and not as_json:
        print("no operation took longer than usual")
    for verdict in found:
        print(json.dumps(_as_json(verdict)) if as_json else str(verdict))


def _bursts_of(device: str) -> BurstExplainer:
    with control.the_device(device) as node:
        return BurstExplainer.of(node)


def _tapes(named: list[Path] | None, group: str | None) -> list[Recording]:
    """Those that are named; or of the newest run, of each rank the newest."""
    if named:
        return _of_one_group([read(path) for path in named], group)
    found = _of_one_group(_in_folder(control.folder()), group)
    if not found:
        return []
    newest = found[-1].owner
    run = [one for one in found if (one.owner.size, one.owner.run) == (newest.size, newest.run)]
    return list({one.owner.rank: one for one in run}.values())


def _in_folder(where: Path) -> list[Recording]:
    """Every tape there, the newest last. What cannot be read is passed over, in a line: nobody has named it."""
    found, refused = [], []
    for path in sorted(where.glob("*.flight") if where.is_dir() else (), key=_written_at):
        try:
            found.append(read(path))
        except ConfigError as error:
            refused.append(error)
    if refused:
        more = f"; so are {len(refused) - 1} more" if len(refused) > 1 else ""
        print(f"softmrc: passed over: {refused[-1]}{more}", file=sys.stderr)
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
        raise UsageError(f"there are tapes of several groups ({shown}); say which with --group")
    return [one for one in found if group is None or one.owner.group == group]


def _as_json(verdict: Verdict) -> dict[str, object]:
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
