"""Text that came from outside: file names made safe to show, and names that may have been meant."""

import difflib
from collections.abc import Iterable
from typing import Any


def printable(text: Any) -> str:
    """The text with control characters, line breaks and broken Unicode as escapes: it cannot forge or hide a line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text))


def closest_first(word: Any, known: Iterable[str]) -> list[str]:
    """The known names, those most like the word before the others."""
    return sorted(known, key=lambda name: -difflib.SequenceMatcher(None, str(word).lower(), name).ratio())
