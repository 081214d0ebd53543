"""What outsiders hand in: files that are safe to open, texts that are safe to print."""

from __future__ import annotations

import stat
from pathlib import Path

from parley.core.errors import InputError

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def regular_file(path: Path | str, what: str = "file") -> Path:
    """The path, if a regular file (or a link to one) is there: opening a pipe would wait for ever, a device read on."""
    try:
        mode = Path(path).stat().st_mode
    except FileNotFoundError:
        raise InputError(f"there is no {what} '{shown(path)}'.") from None
    except OSError as error:
        raise InputError(f"the {what} '{shown(path)}' cannot be opened: {error.strerror}.") from None
    except ValueError:  # a NUL in the path
        raise InputError(f"the {what} '{shown(path)}' cannot be opened: no file can have such a name.") from None
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise InputError(f"the {what} '{shown(path)}' is {kind}, not a regular file.")
    return Path(path)


def shown(value: object, most: int = 200) -> str:
    r"""A text that came from outside, for a sentence: control characters escaped, cut where it is long.

    >>> shown("red\x1b[31m\n")
    'red\\x1b[31m\\n'
    """
    text = str(value)
    cut = text if len(text) <= most else f"{text[: most - 1]}…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)
