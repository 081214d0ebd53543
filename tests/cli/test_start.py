"""What `parley run examples/digits.toml` loads, and how much code a round goes through."""

import json
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.toml"
MOST_MODULES = 150
MOST_FILES = 40
HEAVY = ("sklearn", "scipy", "pandas", "matplotlib", "sympy", "torch._dynamo", "ray", "flwr", "cryptography")

COUNT = """
import json, sys
from parley.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert end.code == 0
parley = [name for name in sys.modules if name.partition(".")[0] == "parley"]
print(json.dumps({"parley": parley, "others": [name for name in sys.modules if name not in parley]}))
"""

TRACE = """
import json, sys
import parley as pl
from parley.engine.loop import Loop

files = set()

def called(frame, event, argument):
    if event == "call" and "/parley/" in frame.f_code.co_filename:
        files.add(frame.f_code.co_filename.rpartition("/parley/")[2])

def step(self, number, *arguments, **more):
    sys.setprofile(called if number == 2 else None)  # without evaluation, and with what is set up once behind it
    try:
        return original(self, number, *arguments, **more)
    finally:
        sys.setprofile(None)

original, Loop.step = Loop.step, step
study = pl.load_study(sys.argv[1], ["rounds=3", "evaluate.every=3", "faults.dropout=0.0"])
pl.train(study)
print(json.dumps(sorted(files)))
"""


def output_of(code: str, *words: str, place: Path) -> object:
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True, cwd=place, timeout=300
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_a_run_loads_what_it_uses(tmp_path: Path):
    loaded = output_of(COUNT, "run", str(EXAMPLE), place=tmp_path)
    assert isinstance(loaded, dict)
    assert len(loaded["parley"]) <= MOST_MODULES
    assert [name for name in HEAVY if name in loaded["others"]] == []


def test_a_report_and_a_comparison_load_what_they_use(tmp_path: Path):
    output_of(COUNT, "run", str(EXAMPLE), "--rounds", "2", "-q", place=tmp_path)
    for words in (["report"], ["compare"]):
        loaded = output_of(COUNT, *words, place=tmp_path)
        assert isinstance(loaded, dict)
        assert [name for name in HEAVY if name in loaded["others"] and name != "matplotlib"] == [], words
        assert len(loaded["parley"]) <= MOST_MODULES + 20


def test_a_round_goes_through_few_files(tmp_path: Path):
    files = output_of(TRACE, str(EXAMPLE), place=tmp_path)
    assert isinstance(files, list)
    assert "engine/loop.py" in files
    assert len(files) <= MOST_FILES, files
