"""A codec error handler: ASCII replacements for characters that stdout cannot encode. Imports no rich."""

from __future__ import annotations

import codecs

PLAINER = "softmrc-plainer"  # the name it is registered by
LETTERS = {"●": "*", "◐": "/", "○": "o", "·": ".", "✓": "+", "✗": "x", "–": "-", "—": "-", "−": "-", "×": "x", "µ": "u"}
LETTERS |= {"…": "...", "→": "->", "≥": ">=", "≤": "<="}


def plainer(error: UnicodeError) -> tuple[str | bytes, int]:
    """What a stream cannot express, in letters that it can; names of files that are no text, by their numbers."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(LETTERS.get(c) or c.encode("ascii", "backslashreplace").decode() for c in letters), error.end


codecs.register_error(PLAINER, plainer)
