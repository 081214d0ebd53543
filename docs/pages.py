"""What the makers of pages share: tables, and a page of which one section is made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

END = "<!-- End of what is made. -->"


def rows(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """A table; bars in its cells are escaped."""
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def with_section(page: Path, begin: str, section: str) -> str:
    """The page with everything between the comment `begin` and the next END made anew."""
    before, rest = page.read_text(encoding="utf-8").split(begin, 1)
    return f"{before}{begin}\n\n{section}\n{END}{rest.split(END, 1)[1]}"
