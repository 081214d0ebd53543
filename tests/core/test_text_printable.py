"""Names from elsewhere cannot command a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.core.text import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("hospital 7 (Zürich) ✓", "hospital 7 (Zürich) ✓"),
        ("\x1b[2J\x1b]52;c;aGk=\x07", "\\x1b[2J\\x1b]52;c;aGk=\\x07"),
        ("a\rb\nc\td", "a\\rb\\nc\\td"),
        ("\x9b31mred", "\\x9b31mred"),
        ("abc\u202ecba", "abc\\u202ecba"),
        ("two\u2028lines", "two\\u2028lines"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_a_terminal_obeys_is_shown_instead(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(alphabet=st.characters()))
def test_only_what_is_hidden_changes(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert printable(shown) == shown
    assert (shown == text) == text.isprintable()
