"""What a user can set on a class."""

from dataclasses import MISSING, dataclass, field
from typing import Annotated, Any, Literal

import pytest

from parley.core.fields import field_docs, options_of, settings_of, summary, type_text


@dataclass(frozen=True)
class Base:
    """The first line.

    More of it.
    """

    lr: float = 0.1
    """Step size."""
    undocumented: int = 1
    kept: bool = True
    """A text
    over two lines."""


@dataclass(frozen=True)
class Derived(Base):
    lr: float = 0.2
    """Another step size."""
    names: list[str] = field(default_factory=lambda: ["a"])
    """A list."""
    hidden: int = field(default=3, init=False)
    """Not for users."""


def test_docs_come_from_the_most_derived_class():
    docs = field_docs(Derived)
    assert docs["lr"] == "Another step size."
    assert docs["kept"] == "A text\nover two lines."
    assert "undocumented" not in docs


def test_settings_have_types_and_defaults():
    settings = {setting.name: setting for setting in settings_of(Derived)}
    assert list(settings) == ["lr", "undocumented", "kept", "names"]
    assert settings["lr"].default == 0.2
    assert settings["names"].default == ["a"]
    assert settings["names"].hint == list[str]
    assert not settings["lr"].required


def test_options_of_a_function():
    def load(path: str, verify: bool = True) -> None: ...

    path, verify = options_of(load)
    assert (path.name, path.hint, path.required, path.default) == ("path", str, True, MISSING)
    assert (verify.name, verify.hint, verify.default) == ("verify", bool, True)


def test_summary_is_the_first_line():
    assert summary(Base) == "The first line."


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (float, "a number"),
        (int | None, "a whole number"),
        (bool, "true or false"),
        (Literal["a", "b"], "'a' or 'b'"),
        (int | Literal["none", "all"], "a whole number, 'none' or 'all'"),
        (tuple[int, ...], "a list of whole numbers"),
        (tuple[float, float], "a list of 2 numbers"),
        (list[str], "a list of strings"),
        (dict[str, Any], "a table"),
        (Annotated[int, "limit"], "a whole number"),
        (Base, "a section"),
        (list[Literal["x", "y"]], "a list of values, each 'x' or 'y'"),
    ],
)
def test_types_in_words(hint: Any, text: str):
    assert type_text(hint) == text
