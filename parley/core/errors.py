"""Errors a user can act on. The command line prints their one sentence and exits with code 2."""

import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

_PARLEY, _STDLIB = Path(__file__).parents[1], Path(sysconfig.get_path("stdlib"))
_PACKAGES = {"site-packages", "dist-packages"}
"""Folders of installed packages: the environment's own, the user's, the system's that an environment was built over."""


class ParleyError(Exception):
    """Base of all errors Parley raises on purpose; its text is one sentence: what, where, what to do."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows in place of Parley's own frames: the sentence, and the line that asked for it."""
        frame = _own_frame(self)
        where = "" if frame is None else f" (line {frame.lineno}{_of_file(frame.filename)})"
        return [f"{type(self).__name__}{where}: {self}"]


class InputError(ParleyError):
    """A configuration, argument, file or data set that cannot be used as it is."""


class ParleyWarning(UserWarning):
    """Something a user should know while the work goes on."""


class StopRun(Exception):
    """Raised by a listener to end a run well: what was done counts, and the run's status is `stopped`."""


class WireError(ParleyError):
    """Bytes that are not a well-formed message."""


class UnsupportedError(ParleyError):
    """A combination that this runtime, model or algorithm cannot do."""


class QuorumError(ParleyError):
    """Too few clients answered; the run stopped at its last checkpoint and can be resumed."""


def nearest(name: str, choices: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the closest valid choice, or all of them.

    >>> nearest("algoritm", ["algorithm", "data"])
    "did you mean 'algorithm'?"
    """
    valid = sorted(choices)
    close = get_close_matches(name, valid, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"choose one of {', '.join(valid)}." if valid else "there are no choices."


def user_line(error: BaseException) -> str:
    """The last line of the user's own code that an error came by, for a sentence: " (mine.py, line 12)"; else empty."""
    frame = _own_frame(error)
    return "" if frame is None else f" ({Path(frame.filename).name}, line {frame.lineno})"


def _own_frame(error: BaseException) -> traceback.FrameSummary | None:
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith("<frozen") and not _is_installed(Path(frame.filename)):
            return frame
    return None


def _is_installed(path: Path) -> bool:
    """Whether the code there is not the user's own."""
    return path.is_relative_to(_PARLEY) or path.is_relative_to(_STDLIB) or not _PACKAGES.isdisjoint(path.parts)


def _of_file(name: str) -> str:
    """The file of a line, for a sentence; a notebook's cell has none."""
    return "" if "ipykernel" in name or name.startswith("<") else f" of {Path(name).name}"


def raised_here(error: BaseException) -> bool:
    """Whether a line of Parley's raised it, not code that Parley called."""
    return Path(traceback.extract_tb(error.__traceback__)[-1].filename).is_relative_to(_PARLEY)


@contextmanager
def computable(what: str) -> Iterator[None]:
    """Say in a sentence about `what` that a number leaves the range of its type, or is divided by nothing.

    Whoever computes that in code of his own wants its traceback.
    """
    try:
        yield
    except (ArithmeticError, RuntimeError) as error:
        overflow = isinstance(error, ArithmeticError) or "without overflow" in str(error)  # torch's words
        if not overflow or user_line(error):
            raise
        raise InputError(
            f"{what}: a number leaves the range that can be computed with ({type(error).__name__}: {error}); take less "
            "extreme settings."
        ) from error
