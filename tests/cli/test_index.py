"""`parley list` without loading what it lists."""

import json
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from parley.cli import index as module
from parley.core.errors import ParleyWarning


def test_the_index_is_in_step_with_the_code():
    written = json.loads(module.FILE.read_text(encoding="utf-8"))
    assert written == module.made(), "run python -m parley.cli.index"


def test_the_details_are_in_step_with_the_code():
    written = json.loads(module.DETAILS.read_text(encoding="utf-8"))
    assert written == module.all_details(), "run python -m parley.cli.index"


def test_what_one_method_is_costs_no_torch():
    code = (
        "import sys, time; from parley.cli.main import main\n"
        "try: main(['list', 'algorithms', 'fedbabu'])\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules and time.process_time() < 1, time.process_time()"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "personalise_after" in ended.stdout
    assert "Secure sums: yes" in ended.stdout


def test_a_broken_entry_point_is_shown_and_breaks_nothing(parley, monkeypatch: pytest.MonkeyPatch):
    group = "parley.algorithms"
    points = EntryPoints(
        [EntryPoint("bad", "no_such_package:thing", group), EntryPoint("good", "collections:deque", group)]
    )
    monkeypatch.setattr(module, "entry_points", lambda: points)
    code, out, _ = parley("list")
    assert code == 0
    assert "bad (algorithms) is broken: no_such_package:thing raises ModuleNotFoundError" in out
    assert "bad, centralised" in out
    code, out, _ = parley("list", "algorithms")
    assert "good" in out
    assert "broken" in out


def test_our_warnings_are_one_line(parley, capfd, monkeypatch: pytest.MonkeyPatch):
    import warnings

    from parley.cli import catalogue

    def speak() -> dict[str, dict[str, str]]:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("something is odd.", ParleyWarning, stacklevel=2)
        return {"algorithms": {}}

    monkeypatch.setattr(catalogue, "index", speak)
    code, _, err = parley("list")
    assert code == 0
    assert err == "parley: warning: something is odd.\n"
