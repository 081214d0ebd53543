"""Files and texts from outside."""

from __future__ import annotations

import os

import pytest

from parley.core.errors import InputError
from parley.core.files import regular_file
from parley.core.text import shown


def test_a_regular_file_and_a_link_to_one_will_do(tmp_path):
    (tmp_path / "a").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert regular_file(tmp_path / "a") == tmp_path / "a"
    assert regular_file(str(tmp_path / "link")) == tmp_path / "link"


def test_everything_else_is_refused_in_a_sentence(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    cases = {
        tmp_path / "none": "there is no table",
        tmp_path / "pipe": "is a pipe, not a regular file",
        tmp_path: "is a folder, not a regular file",
        "/dev/null": "is a device",
        "a\0b": "no file can have such a name",
        tmp_path / ("n" * 4000): "cannot be opened",
        tmp_path / "loop": "cannot be opened",
    }
    for path, match in cases.items():
        with pytest.raises(InputError, match=match) as caught:
            regular_file(path, "table")
        assert str(caught.value).isprintable()


def test_texts_are_cut_and_cannot_steer_a_terminal():
    assert shown("plain é") == "plain é"
    assert shown("\x1b[31mred\r\n\u202e") == "\\x1b[31mred\\r\\n\\u202e"
    assert len(shown("x" * 5000)) == 200
