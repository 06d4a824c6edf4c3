"""Writes docs/reference/api.md: what `softmrc` offers to programs, from its docstrings. `python tools/api.py`"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import softmrc

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "api.md"
HEAD = """# Python API

What most programs need is in `softmrc` itself, and is imported when it is first used. This page is written from the
docstrings by `make api`. Beyond it:

| package | has |
|---|---|
| `softmrc.connection` | connections: `connect`, `listen` and what they return ([guide](../guides/connections.md)) |
| `softmrc.device` | devices, queue pairs, completion queues and memory ([guide](../guides/connections.md)) |
| `softmrc.collectives` | groups of ranks: collectives without torch ([guide](../guides/collectives.md)) |
| `softmrc.torch` | `device_of` and `group_of`: what is under a process group ([guide](../guides/pytorch.md)) |
| `softmrc.engine` | two endpoints in memory with a manual clock, and the engine itself |
| `softmrc.sim` | whole fabrics in simulated time ([guide](../guides/scenarios.md)) |
| `softmrc.fabric` | designs, addresses and configurations ([tutorial](../tutorials/design-a-fabric.md)) |
| `softmrc.lab` | a fabric of network namespaces ([guide](../guides/lab.md)) |
| `softmrc.wire` | packets: build, read and compare them, capture files ([reference](wire.md)) |
| `softmrc_bench` | benchmarks, in the separate distribution softmrc-bench |

"""
SHOWN = ("connect", "connect_async", "listen", "Connection", "Listener", "Device", "Group", "DirectoryStore", "Pair")


def signature_of(found: Any) -> str:
    parameters = list(inspect.signature(found).parameters.values())
    words, is_keyword = [], False
    for one in parameters:
        if one.name == "self" or one.name.startswith("_"):
            continue
        if one.kind is one.KEYWORD_ONLY and not is_keyword:
            words.append("*")
            is_keyword = True
        default = "" if one.default is one.empty else f"={_shown(one.default)}"
        words.append({one.VAR_KEYWORD: "**", one.VAR_POSITIONAL: "*"}.get(one.kind, "") + one.name + default)
    return ", ".join(words)


def _shown(value: Any) -> str:
    return value.__name__ if callable(value) else repr(value)


def text_of(found: Any) -> str:
    return " ".join((inspect.getdoc(found) or "").split("\n\n")[0].split())


def entry(name: str) -> str:
    found = getattr(softmrc, name)
    if not inspect.isclass(found):
        return f"## {name}\n\n`{name}({signature_of(found)})`\n\n{text_of(found)}\n"
    lines = [f"## {name}\n", text_of(found) + "\n"]
    init = text_of(found.__init__) if "__init__" in vars(found) else ""
    if name not in ("Connection", "Listener"):
        lines.append(f"`{name}({signature_of(found.__init__)})` {init}\n")
    rows = []
    for member, value in vars(found).items():
        if member.startswith("_"):
            continue
        plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if isinstance(value, property):
            rows.append((f"`{member}`", text_of(value)))
        elif inspect.isfunction(plain):
            hidden = "cls, " if isinstance(value, classmethod) else ""
            shown = signature_of(plain).removeprefix("cls").removeprefix(", ") if hidden else signature_of(plain)
            rows.append((f"`{member}({shown})`", text_of(plain)))
    lines += ["| | |", "|---|---|"]
    lines += [f"| {left} | {right.replace('|', chr(92) + '|')} |" for left, right in rows if right]
    return "\n".join(lines) + "\n"


def errors() -> str:
    tree = inspect.getdoc(softmrc.errors) or ""
    return f"## Errors\n\n```\n{tree}\n```\n"


def page() -> str:
    return HEAD + "\n".join(entry(name) for name in SHOWN) + "\n" + errors()


if __name__ == "__main__":
    PAGE.write_text(page())
