"""Builds the pages as a site, from README.md and docs/: python tools/site.py. A dangling link or anchor is an error.

Pages link to each other as they lie in the repository. Links to sources and tests become plain words, since a site has
no sources. Pictures are placed next to their pages.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build" / "pages"
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
TOP = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PLACED = ("*.md", "*.svg", "*.png", "*.css")


def placed() -> dict[Path, Path]:
    """Where each page and picture of the repository goes on the site."""
    found = {ROOT / "README.md": PAGES / "index.md"}
    for pattern in PLACED:
        found |= {file: PAGES / file.relative_to(ROOT / "docs") for file in (ROOT / "docs").rglob(pattern)}
    return found | {ROOT / name: PAGES / name for name in TOP if (ROOT / name).exists()}


def relinked(file: Path, places: dict[Path, Path]) -> str:
    """The page with its links as they are on the site; one that leads nowhere in the repository raises."""

    def link(match: re.Match[str]) -> str:
        picture, words, target, anchor = match[1], match[2], match[3], match[4] or ""
        if "://" in target:
            return match[0]
        there = (file.parent / target).resolve()
        if not there.exists():
            raise SystemExit(f"{file.relative_to(ROOT)} links to {target}, which is not there")
        if there.is_dir() and there / "README.md" in places:
            there = there / "README.md"
        if there not in places:
            if picture:
                raise SystemExit(f"{file.relative_to(ROOT)} shows {target}, which is not placed on the site")
            return words
        here = places[file].parent
        return f"{picture}[{words}]({Path(*_relative(places[there], here))}{anchor})"

    return LINK.sub(link, file.read_text(encoding="utf-8"))


def _relative(target: Path, folder: Path) -> tuple[str, ...]:
    return Path(os.path.relpath(target, folder)).parts


def gather() -> None:
    shutil.rmtree(PAGES, ignore_errors=True)
    places = placed()
    for file, place in places.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            place.write_text(relinked(file, places), encoding="utf-8")
        else:
            shutil.copy(file, place)


def main() -> None:
    gather()
    command = [Path(sys.executable).parent / "mkdocs", "build", "-q", "--strict"]
    done = subprocess.run(command, cwd=ROOT, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    if done.returncode:
        sys.exit(done.returncode)
    print(f"site/index.html, {len(list((ROOT / 'site').rglob('*.html')))} pages; search needs a server:")
    print("  python -m http.server -d site 8000 --bind 127.0.0.1")


if __name__ == "__main__":
    main()
