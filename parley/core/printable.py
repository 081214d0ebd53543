"""Text from elsewhere (client ids, run names, reasons) made safe to print on a terminal."""

import unicodedata

_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Control characters, invisible ones that reorder or join text, half of a pair, and breaks of lines."""


def printable(text: str) -> str:
    """The text with everything a terminal would obey instead of show written as an escape, such as \\x1b.

    Escape sequences could otherwise recolour, hide or overwrite what is printed beside a name, or reach the clipboard.
    """
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) in _HIDDEN else char for char in text
    )
