"""Four methods written from docs/extending.md alone: each works at once in every runtime, from a study, and resumed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import parley as pl
from parley.conformance import cases, load_method

HERE = Path(__file__).parent / "from_docs"
METHODS = {
    "fedexp.py:FedExP": "inline",
    "fedproto.py:FedProto": "refused",
    "trimmed_mean.py:TrimmedMean": "inline",
    "refereed.py:Refereed": "refused",
}
"""And whether the runtime 'stacked' takes them."""
CHECKED = {"fedexp.py:FedExP": f"{HERE}/fedexp.py:checked"}
STUDY = """
rounds = 4

[data]
name = "digits"
clients = 5

[data.partition]
name = "dirichlet"
alpha = 0.5

[model]
name = "mlp"
hidden = [8]

[algorithm]
name = "{name}"
lr = 0.1
steps = 2

[cohort]
size = 4

[evaluate]
every = 4
"""


def study(name: str, folder: Path, *settings: str) -> pl.Study:
    """A study file that names the method by its file."""
    file = folder / f"{name.partition('.')[0]}.toml"
    file.write_text(STUDY.format(name=HERE / name))
    return pl.load_study(file, settings)


def equal(one: pl.Run, other: pl.Run, memories: bool = True) -> bool:
    """The same bits in the state and in all memories; those of nodes stay there."""
    pairs = [(one.state, other.state)]
    if memories:
        pairs += [(one.memory(i), other.memory(i)) for i in one.federation.ids]
    return all(
        a.tensors.keys() == b.tensors.keys() and all(torch.equal(v, b.tensors[n]) for n, v in a.tensors.items())
        for a, b in pairs
    )


@pytest.mark.parametrize("name", METHODS)
def test_it_trains_from_a_study_and_uses_public_names_only(name: str, tmp_path: Path):
    run = pl.train(study(name, tmp_path, "runtime.name=inline"))
    assert run.status == "finished"
    assert not [failure for record in run.records for failure in record.failures]
    imports = [line for line in (HERE / name.partition(":")[0]).read_text().splitlines() if "parley" in line[:20]]
    assert all(line.startswith(("import parley as pl", "from parley.conformance import")) for line in imports)


@pytest.mark.parametrize("name", METHODS)
def test_pool_and_wire_give_the_same_bits_and_stacked_the_same_numbers(name: str, tmp_path: Path):
    def run(runtime: str) -> pl.Run:
        return pl.train(study(name, tmp_path, f"runtime.name={runtime}", "runtime.workers=2"), secret=bytes(16))

    inline = run("inline")
    assert equal(inline, run("wire"), memories=False)
    assert equal(inline, run("pool"))
    if METHODS[name] == "refused":
        with pytest.raises(pl.UnsupportedError, match='use "inline"'):
            run("stacked")
        return
    stacked = run("stacked")
    for tensor, value in inline.state.tensors.items():
        torch.testing.assert_close(stacked.state.tensors[tensor], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_a_channel_takes_it_or_says_why_not(name: str, tmp_path: Path):
    plain = pl.train(study(name, tmp_path, "runtime.name=inline"))
    if name.startswith("fedproto"):  # it declares nothing that may be compressed
        with pytest.raises(pl.ParleyError, match="compress"):
            pl.train(study(name, tmp_path, "runtime.name=inline", 'channels.up=["top-k(0.1)"]'))
        return
    sparse = pl.train(study(name, tmp_path, "runtime.name=inline", 'channels.up=["top-k(0.1)"]'))
    assert sparse.status == "finished"
    assert sparse.total("up/bytes") < 0.5 * plain.total("up/bytes")


KILLED = """
import os, signal, sys
import parley as pl

class Killer(pl.Listener):
    def exchange(self, number, index, asked, sent, replies):
        if number == 3:
            os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    for study in sys.argv[1:]:
        child = os.fork()
        if child == 0:
            pl.train(pl.load_study(study, ["runtime.name=inline"]), store=study + ".db", listeners=[Killer()])
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
"""


def test_runs_killed_in_the_middle_of_a_round_go_on_with_the_same_bits(tmp_path: Path):
    """`kill -9` of real processes, one a method."""
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    studies = [study(name, tmp_path, "runtime.name=inline") for name in METHODS]
    files = [str(tmp_path / f"{name.partition('.')[0]}.toml") for name in METHODS]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    subprocess.run([sys.executable, str(script), *files], env=environment, timeout=200, check=True)
    for each, file in zip(studies, files, strict=True):
        with pl.RunStore(file + ".db") as store:
            resumed = pl.train(each, store=store, resume=True)
            assert resumed.records[-1].number == 4
            assert len(list(store.runs())) == 1
            assert equal(resumed, pl.train(each))


@pytest.mark.parametrize("name", METHODS)
def test_it_settles_where_it_says(name: str):
    """The first line of `parley conformance file.py:Method`."""
    lines = cases(load_method(CHECKED.get(name, f"{HERE / name}")))
    assert {case.stackable for case in lines} == {METHODS[name] != "refused"}
    assert lines[0].check("inline").passed


@pytest.mark.long
@pytest.mark.parametrize("name", METHODS)
def test_every_line_of_conformance_holds(name: str):
    for case in cases(load_method(CHECKED.get(name, f"{HERE / name}"))):
        assert case.check("stacked" if case.stackable else "inline").passed, case.statement
