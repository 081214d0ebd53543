"""Text of others: nothing in it moves the cursor of a terminal or is computed by a spreadsheet."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.core.text import plain_cell, printable


@given(st.text())
def test_nothing_that_is_obeyed_or_hidden_remains(text: str):
    shown = printable(text)
    assert shown.isprintable()
    assert text != shown or text.isprintable()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("client 7, Zürich", "client 7, Zürich"),
        ("\x1b[2J\x07", "\\x1b[2J\\x07"),
        ("a\nb\r\t", "a\\nb\\r\\t"),
        ("\x9b31m", "\\x9b31m"),
        ("abc\u202etxt.exe", "abc\\u202etxt.exe"),
        (17, "17"),
    ],
)
def test_what_is_written_out(text: object, shown: str):
    assert printable(text) == shown


@pytest.mark.parametrize("first", list("=+-@\t\r\n"))
def test_no_formula_reaches_a_spreadsheet(first: str):
    assert plain_cell(f"{first}cmd|'/c calc'!A1") == f"'{first}cmd|'/c calc'!A1"
    assert plain_cell(f"a{first}") == f"a{first}"
    assert plain_cell("") == ""
