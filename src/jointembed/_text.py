"""Text that came from outside, such as file names, made safe to show."""

from typing import Any


def printable(text: Any) -> str:
    """The text with control characters, line breaks and broken Unicode as escapes: it cannot forge or hide a line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text))
