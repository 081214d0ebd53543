"""Docstrings as the house writes them (plain text, `names`, indented formulas) in the markup that Sphinx reads."""

from __future__ import annotations

import re
from itertools import groupby


def markup(lines: list[str]) -> list[str]:
    """The lines in reStructuredText: names as literals, indented blocks as they stand, all else as plain text."""
    made: list[str] = []
    for indented, block in groupby(_paragraphs(lines), key=lambda part: part[0].startswith("  ")):
        for number, part in enumerate(block):
            if indented and number == 0:
                made += ["::", ""]
            made += [*([f"    {line}" for line in part] if indented else map(_plain, part)), ""]
    return made


def _paragraphs(lines: list[str]) -> list[list[str]]:
    """Runs of lines without a blank one; an indented line begins a part of its own."""
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if not line.strip():
            paragraphs.append([])
            continue
        last = paragraphs[-1]
        if last and line.startswith("  ") != last[0].startswith("  ") and not _is_item(last):
            paragraphs.append([])
        paragraphs[-1].append(line)
    return [part for part in paragraphs if part]


def _is_item(part: list[str]) -> bool:
    return part[0].startswith("- ")


def _plain(line: str) -> str:
    """One line of text: `name` becomes a literal, signs that mean something to Sphinx do not."""
    parts = re.split(r"(`[^`]+`)", line)
    return "".join(f"`{part}`" if part.startswith("`") else re.sub(r"([*|\\_])", r"\\\1", part) for part in parts)
