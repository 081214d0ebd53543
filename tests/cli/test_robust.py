"""Robust folding and attackers on the command line: the commands of docs/robust.md, and what is refused."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "robust-digits.toml"


def test_the_commands_of_the_page_run(parley):
    page = (ROOT / "docs" / "robust.md").read_text(encoding="utf-8")
    lines = re.findall(r"^parley run (.*)$", page, re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        words = line.replace("examples/", f"{ROOT}/examples/").split()
        code, out, err = parley("run", *words, "--set", "rounds=3")
        assert code == 0, err
        assert "8 of 40 clients attack (simulated" in " ".join((out + err).split())


def test_who_attacked_is_in_the_records(parley, tmp_path):
    assert parley("run", EXAMPLE, "--set", "rounds=2", "--set", 'faults.attackers=["1", "7"]')[0] == 0
    assert parley("runs", "export", "last", tmp_path / "all.csv")[0] == 0
    assert re.search(r"attackers.*2", (tmp_path / "all.csv").read_text())


def test_what_is_wrong_is_one_sentence(parley):
    for settings, sentence in (
        (("robust.f=20",), "20 attackers are no minority of 40 replies"),
        (("algorithm.name=fednova",), "FedNova cannot be folded robustly: it reads single replies"),
        (("robust.rule=kurm",), "robust.rule must be"),
        (('faults.attackers=["me"]',), "faults.attackers names 'me', which is no client"),
        (('channels.up=["secure-sum"]', "faults.attackers=0"), "of a secure sum no single reply is known"),
    ):
        code, _, err = parley("run", EXAMPLE, *(word for each in settings for word in ("--set", each)))
        assert code == 2
        assert sentence in " ".join(err.split())


def test_methods_say_whether_they_can(parley):
    assert "Robust folding: yes" in parley("list", "algorithms", "scaffold")[1]
    words = " ".join(parley("list", "algorithms", "fednova")[1].split())
    assert "Robust folding: no: it reads single replies ('client')" in words
