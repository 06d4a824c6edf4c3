"""Guides use the words of RFCs, RDMA, Linux, PyTorch and NCCL: no retired words, metaphors or relative history."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIRST = ("install", "quickstart", "what-is-mrc", "is-this-for-me", "reference/compatibility", "reference/glossary")
GUIDES = [file for folder in ("guides", "tutorials") for file in sorted((ROOT / "docs" / folder).glob("*.md"))]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *(ROOT / "docs" / f"{name}.md" for name in FIRST), *GUIDES]
RETIRED = re.compile(
    r"\b(beside|meanwhile|whoever|somebody|nobody|anybody|no longer|earlier engine|mends?|mended|weather|swallows?"
    r"|strangers?|kin|resends?|resent|sealed packets)\b",
    re.IGNORECASE,
)
CODE = re.compile(r"^```.*?^```|^    [^\n]*$|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def retired(text: str) -> list[str]:
    return RETIRED.findall(CODE.sub("", text))


def test_the_check_can_fail() -> None:
    assert retired("Meanwhile nobody\n\n    code\n\nwaits beside it.") == ["Meanwhile", "nobody", "beside"]
    assert not retired("It waits.\n\n    beside\n\n```\nweather\n```\n`is_sealed`\n")


def test_guides_use_plain_words() -> None:
    found = {str(page.relative_to(ROOT)): retired(page.read_text(encoding="utf-8")) for page in PAGES}
    assert {page: words for page, words in found.items() if words} == {}
