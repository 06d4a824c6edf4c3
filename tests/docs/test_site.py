"""The pages as a site: each has a title and a place in the navigation, and every link and anchor leads somewhere."""

from __future__ import annotations

import importlib.util
import re
import unicodedata
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
FILE_NAME = re.compile(r"[\w/.-]+\.(md|svg|png)")


@cache
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_tool", ROOT / "tools" / "site.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


PAGES = sorted(file for file in site().placed() if file.suffix == ".md")


def words(page: Path) -> str:
    """The page without its code."""
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def slug(heading: str) -> str:
    """As Python-Markdown makes it."""
    plain = unicodedata.normalize("NFKD", re.sub(r"[`*]", "", heading)).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


@cache
def anchors(page: Path) -> set[str]:
    text = words(page)
    headings = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", one) for one in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    return {slug(one) for one in headings} | set(re.findall(r'\bid="([^"]+)"', text))


def dangling(page: Path) -> list[str]:
    found = []
    for match in re.finditer(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", words(page)):
        target, anchor = match[1], match[2]
        there = (page.parent / target).resolve() if target else page
        if "://" in target:
            continue
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors(there)):
            found.append(match[0])
    return found


def test_the_check_can_fail(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A title: with `code`\n[a](#a-title-with-code) [b](#b) [c](gone.md) [d](page.md#d) [e](page.md)\n"
    )
    assert dangling(page) == ["](#b)", "](gone.md)", "](page.md#d)"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_lead_somewhere(page: Path) -> None:
    assert dangling(page) == []


def test_every_page_has_one_title() -> None:
    counts = {page.name: len(re.findall(r"^# ", words(page), re.MULTILINE)) for page in PAGES}
    assert {name: count for name, count in counts.items() if count != 1} == {}


def test_every_page_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n", 1)[1]
    listed = re.findall(r"([\w/.-]+\.md)$", nav, re.MULTILINE)
    there = [str(place.relative_to(site().PAGES)) for file, place in site().placed().items() if file in PAGES]
    assert sorted(listed) == sorted(there)


def test_link_texts_are_titles_and_no_file_names() -> None:
    texts = {page.name: re.findall(r"(?<!!)\[([^\]]*)\]\(", words(page)) for page in PAGES}
    assert [(name, text) for name, found in texts.items() for text in found if FILE_NAME.fullmatch(text)] == []


def test_pictures_of_pages_are_placed() -> None:
    places = site().placed()
    for page in PAGES:
        for target in re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", words(page)):
            assert (page.parent / target).resolve() in places, (page.name, target)


def test_every_picture_says_what_it_shows() -> None:
    for page in PAGES:
        assert "![](" not in page.read_text(), page.name


def test_the_code_of_the_first_page_is_narrow() -> None:
    """A site shows 72 columns next to its table of contents."""
    blocks = FENCED.findall((ROOT / "README.md").read_text())
    indented = re.findall(r"^    .*$", words(ROOT / "README.md"), re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines()] + indented
    assert [line for line in lines if len(line) > 76] == []


def test_generated_pages_are_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("formats", ROOT / "tools" / "formats.py")
    assert spec is not None and spec.loader is not None
    formats = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(formats)
    assert formats.PAGE.read_text() == formats.page(), "make settings"
