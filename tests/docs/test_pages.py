"""Pages say what is so: sessions print what they show, commands and options exist, links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import shlex
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from softmrc.cli import app

ROOT = Path(__file__).resolve().parents[2]
NOTES = sorted((ROOT / "docs" / "design").glob("*.md"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NO_COMMANDS = ("import", "group", "seal", "identity")  # of Python; and labels in the derivation of keys
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_the_session_in_one_process_prints_what_it_shows() -> None:
    blocks = FENCED.findall((ROOT / "docs" / "guides" / "connections.md").read_text())
    at = next(n for n, (kind, text) in enumerate(blocks) if kind == "python" and "Pair(" in text)
    done = subprocess.run([sys.executable, "-c", blocks[at][1]], capture_output=True, text=True, timeout=60)
    assert done.stdout == blocks[at + 1][1], done.stderr


def test_the_connection_of_the_guide_connects(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    found = FENCED.findall((ROOT / "docs" / "guides" / "connections.md").read_text())
    text = next(text for kind, text in found if kind == "python" and "listen(" in text)
    common, server, client = re.split(r"\n(?=with )", text.replace("7000", port))
    known: dict[str, Any] = {}
    exec(common, known)
    thread = threading.Thread(target=exec, args=(server, known))
    thread.start()
    for _ in range(200):
        try:
            exec(client, known)
            break
        except known["connect"].__globals__["RemoteError"]:
            thread.join(0.05)
    thread.join(30)
    assert "Message(imm=1, length=5)" in capsys.readouterr().out


def tree() -> Any:
    return typer.main.get_command(app)


def commands_on(page: Path) -> list[str]:
    """Every `softmrc …` in a page's code, up to what is another command's."""
    text = page.read_text()
    code = "\n".join(block for _, block in FENCED.findall(text))
    code += "\n" + "\n".join(re.findall(r"^    (.*)$", text, re.MULTILINE))
    code += "\n" + "\n".join(re.findall(r"`([^`\n]+)`", text))
    found = re.findall(r"(?:^|[\s$>(])softmrc( [a-z][^\n|;&#`]*)", code)
    return sorted({one.strip() for one in found if one.split()[0] not in NO_COMMANDS})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_options_on_pages_exist(page: Path) -> None:
    for text in commands_on(page):
        try:
            words = shlex.split(text.replace("…", "x"))
        except ValueError:
            continue
        here = tree()
        while words and hasattr(here, "commands"):
            name = words.pop(0).rstrip(".,:)")
            if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
                break
            assert name in here.commands, f"{page.name}: softmrc {text}"
            here = here.commands[name]
        if hasattr(here, "commands"):
            continue
        known = {option for param in here.params for option in (*param.opts, *param.secondary_opts)} | {"--help"}
        for word in words:
            if word == "--":
                break
            if word.startswith("--"):
                assert word.split("=")[0].rstrip(".,:)") in known, f"{page.name}: softmrc {text}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_targets_of_make_on_pages_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = page.read_text()
    code = "\n".join([*(block for _, block in FENCED.findall(text)), *re.findall(r"`([^`\n]+)`", text)])
    for target in re.findall(r"(?:^|\s)make ([a-z][a-z0-9-]+)", code):
        assert target in targets, f"{page.name}: make {target}"


def test_links_lead_somewhere() -> None:
    site = tool("site")
    places = site.placed()
    for file in places:
        if file.suffix == ".md":
            site.relinked(file, places)


def test_the_index_of_design_notes_has_every_note() -> None:
    index = (ROOT / "docs" / "design" / "README.md").read_text()
    assert [note.name for note in NOTES if note.name != "README.md" and f"]({note.name})" not in index] == []


def test_design_notes_are_short() -> None:
    assert [note.name for note in NOTES if len(note.read_text().splitlines()) > 150] == []


def test_the_drawing_of_the_lab_is_up_to_date() -> None:
    done = CliRunner().invoke(app, ["fabric", "draw", str(ROOT / "examples" / "lab.toml"), "-o", "-"])
    assert done.stdout.strip() == (ROOT / "docs" / "pictures" / "lab.svg").read_text().strip(), done.output[:200]


def test_the_api_page_is_up_to_date() -> None:
    api = tool("api")
    assert api.PAGE.read_text() == api.page(), "make api"


def test_every_python_block_can_be_compiled() -> None:
    for page in PAGES:
        for kind, text in FENCED.findall(page.read_text()):
            if kind == "python" and ">>>" not in text:
                compile(text, page.name, "exec")


def test_no_page_promises_an_index_that_does_not_have_it() -> None:
    for page in PAGES:
        assert "pip install softmrc" not in page.read_text() and "pip install 'softmrc" not in page.read_text()
