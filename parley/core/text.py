"""Text that others wrote, before it reaches a terminal or a spreadsheet."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def printable(text: object) -> str:
    """`text` with everything that a terminal would obey or hide written out: escape sequences, line breaks, bidi marks.

    >>> printable("c1\\x1b[2J")
    'c1\\\\x1b[2J'
    """
    text = str(text)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def plain_cell(text: str) -> str:
    """`text` for a cell of a spreadsheet: what would be taken for a formula gets a quote in front.

    >>> plain_cell("=1+1"), plain_cell("client 7")
    ("'=1+1", 'client 7')
    """
    return f"'{text}" if text.startswith(_FORMULA) else text
