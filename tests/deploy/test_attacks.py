"""A server whose operator lies, against the node's own code: nothing is learned that one honest run would not tell.

Files that run by name, and sentences that carry cells and paths, are in test_refusals; sums unmasked twice in
tests/secure/test_nodes.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from parley.core.key import Key
from parley.core.message import Message
from parley.core.wire import encode
from parley.deploy.answering import answer, invitation, work
from parley.deploy.enrolment import federation_of
from parley.deploy.node_data import info_to_json, load_data
from parley.deploy.node_folder import NodeFolder
from parley.deploy.proposal import Proposal
from parley.runtimes.frame import pack, unpack
from parley.runtimes.ledger import Ledger
from parley.runtimes.node import Envelope, EvaluationEnvelope, call_frame, evaluation_frame
from parley.study.train import make_task

from .conftest import ALL, SAME, key_of, proposed
from .test_consent import invited, why


class Liar:
    """A server that enrolled a node honestly and then asks whatever it likes."""

    def __init__(self, node: NodeFolder, proposal: Proposal) -> None:
        self.node, self.proposal, name = node, proposal, node.settings.name
        self.enrolled = invited(node, proposal)["data"]
        federation = federation_of({name: self.enrolled})
        study = proposal.rebuilt(node.modules)
        self.task = make_task(federation, study.model, study.seed) if study.model is not None else None
        self.model = study.algorithm.init(self.task, Key(0))["model"] if self.task is not None else {}
        self.common = json.dumps(info_to_json(federation.info)).encode()

    def sends(self, frame: bytes, run: str = "r") -> tuple[dict[str, Any], list[bytes]]:
        return unpack(answer(self.node, work("a", run, self.proposal.hash, 3, self.common, frame)))

    def asks(self, number: int = 1, exchange: int = 0, asked: str = "client", start: int = 1, by: float = 0.0) -> Any:
        letter = Envelope("x", start, number, exchange, asked, None, number - 1, key_of(0, number), "a", False)
        return self.sends(call_frame(letter, encode(self.moved(by))))

    def evaluates(self, number: int, by: float = 0.0, start: int = 1) -> Any:
        letter = EvaluationEnvelope(start, number, None, number - 1, "a")
        return self.sends(evaluation_frame(letter, encode(self.moved(by))))

    def moved(self, by: float) -> Message:
        return Message.of(model={name: value + by for name, value in self.model.items()})


@pytest.fixture
def liar(make_node) -> Liar:
    return Liar(make_node("a", ALL), proposed(evaluate={"every": 2}))


def read_by_evaluation(liar: Liar) -> list[float]:
    """Losses of models that the server chose, as many as it can get."""
    tries = [liar.evaluates(number, by, start) for start in (1, 2) for number in (1, 0, 2, 3) for by in (0.0, 0.1, 0.2)]
    return [head["loss"] for head, _ in tries if head["kind"] == "score"]


def test_evaluation_is_answered_once_a_round_and_over_everything(liar: Liar):
    assert len(set(read_by_evaluation(liar))) == 1  # of three models in four rounds, the one that came first each time
    own = {"kind": "evaluation", "recipient": "a", "version": None, "incarnation": 2, "round": 3}
    for rows in ({"start": 0, "stop": 1, "batch": 1}, {"stop": 1}, {"batch": 1}):
        head, _ = liar.sends(pack(own | {"durable": 2} | rows, encode(liar.moved(0.3))))
        assert "has an unknown" in why(liar.node, head)
    assert "is beyond the 3 rounds" in liar.evaluates(4)[0]["reason"]


def test_evaluation_is_answered_no_more_often_than_the_study_has_it(make_node):
    liar = Liar(make_node("a", ALL), proposed(rounds=6, evaluate={"every": 6}))
    kinds = [liar.evaluates(number)[0]["kind"] for number in range(7)]
    assert kinds == ["score"] * 3 + ["failure"] * 4


def test_nothing_is_evaluated_on_few_held_out_samples(make_node, tmp_path):
    """One held-out sample, whose label and values the losses of chosen models would tell."""
    node, data = make_node("a", ALL), dict(np.load(tmp_path / "a.npz"))
    np.savez(tmp_path / "test.npz", x=data["x"][:1], y=data["y"][:1])
    node.set(test=str(tmp_path / "test.npz"))
    liar = Liar(node, proposed(evaluate={"every": 1}))
    assert liar.enrolled["test_samples"] == 0
    assert liar.evaluates(1)[0]["reason"] == "has too few held-out samples to evaluate on."
    assert liar.asks()[0]["kind"] == "reply"
    (node.path / "policy.toml").write_text(ALL + "minimum_held_out = 1\n")
    assert liar.evaluates(1)[0]["samples"] == 1


def test_the_log_says_which_model_was_evaluated_on_how_many_samples(liar: Liar):
    for number, by in ((1, 0.0), (2, 0.5), (3, 0.5)):
        liar.evaluates(number, by)
    lines = [line for line in liar.node.logged() if line.get("asked") == "evaluation"]
    assert [line["rows"] for line in lines] == [10] * 3
    first, second, third = (line["model"] for line in lines)
    assert first != second == third


def test_metrics_are_rounded_before_they_leave(make_node):
    liar = Liar(make_node("a", ALL), proposed(evaluate={"every": 1, "digits": 1, "metrics": ["f1"]}))
    head, _ = liar.evaluates(1)
    for value in (head["loss"] / 10, head["correct"] / 10, *head["values"].values()):
        assert value == pytest.approx(round(value, 1), abs=1e-12)


def test_a_planted_mistake_lets_evaluation_be_asked_on_and_on(liar: Liar, monkeypatch):
    monkeypatch.setattr(Ledger, "_recorded", staticmethod(lambda file, asked: None))
    assert len(set(read_by_evaluation(liar))) == 3


def averaged(liar: Liar) -> list[bytes]:
    """Replies to round 1 under many starts of the server, exchanges and models: to average noise away, or subtract."""
    places = [(exchange, by) for exchange in (0, 1) for by in (0.0, 1.0)]
    tries = [liar.asks(1, exchange, start=start, by=by) for start in range(1, 12) for exchange, by in places]
    return [parts[0] for head, parts in tries if head["kind"] == "reply"]


@pytest.fixture
def noisy(make_node) -> Liar:
    local = {"epsilon": 50.0, "delta": 1e-3, "noise": "local"}
    return Liar(make_node("a", ALL), proposed(privacy=local, evaluate={"clients": "none"}))


def test_noise_is_neither_averaged_nor_subtracted_away(noisy: Liar):
    replies = averaged(noisy)
    assert len(replies) == 11
    assert len(set(replies)) == 1


def test_a_planted_mistake_subtracts_the_noise(noisy: Liar, monkeypatch):
    monkeypatch.setattr(Ledger, "_recorded", staticmethod(lambda file, asked: None))
    assert len(set(averaged(noisy))) > 1


def test_another_name_of_the_run_gives_no_other_noise_and_no_other_evaluation(noisy: Liar, make_node):
    """With an invitation or without one, by the policy or by the owner."""
    asked = Envelope("x", 1, 1, 0, "client", None, 0, key_of(0, 1), "a", False)
    scored = EvaluationEnvelope(1, 1, None, 0, "a")
    liar = noisy
    for frame in (call_frame(asked, encode(liar.moved(0.0))), evaluation_frame(scored, encode(liar.moved(0.0)))):
        for number in range(4):
            if number % 2:
                assert invited(liar.node, liar.proposal, f"run{number}")["kind"] == "pending"
            head, _ = liar.sends(frame, f"run{number}")
            assert head["reason"].startswith("does not take part in this run of the study")
    assert len(list((liar.node.path / "runs").iterdir())) == 1


def test_only_declared_exchanges_are_answered(liar: Liar):
    for asked in ("sketch", "learned", "_client", "round", "init"):
        assert f"declares no exchange '{asked}'" in why(liar.node, liar.asks(asked=asked)[0])


def test_batches_are_those_of_the_study(liar: Liar):
    """A server that chose a round's key would choose batches, and with two that differ in one sample that one."""
    for key in ("0" * 32, key_of(1, 1), key_of(0, 2), key_of(0, 1, "b")):
        letter = Envelope("x", 1, 1, 0, "client", None, 0, key, "a", False)
        assert "is not that of the study's seed" in why(
            liar.node, liar.sends(call_frame(letter, encode(liar.moved(0))))[0]
        )
    assert liar.asks()[0]["kind"] == "reply"


def test_the_federation_is_what_it_was_at_the_beginning(liar: Liar):
    """Its size and its classes come with every message, and belong to no question."""
    assert liar.asks(1)[0]["kind"] == "reply"
    common = json.loads(liar.common)
    other = json.dumps(common | {"classes": [], "vocabulary": 7}).encode()
    letter = Envelope("x", 1, 2, 0, "client", None, 1, key_of(0, 2), "a", False)
    frame = call_frame(letter, encode(liar.moved(0.0)))
    for population, told in ((3, other), (4, liar.common), (10**6, other)):
        head, _ = unpack(answer(liar.node, work("a", "r", liar.proposal.hash, population, told, frame)))
        assert head["reason"] == "received a different federation than at the start of this run."
    assert liar.asks(2)[0]["kind"] == "reply"


@pytest.mark.parametrize(
    ("name", "value"), [("class_weights", [1.0] + [0.0] * 9), ("target_scale", [1e-9] * 10), ("levels", [["a"]])]
)
def test_class_weights_and_scales_are_those_of_the_study(liar: Liar, name: str, value: list[Any]):
    """Told as agreed upon, weights of 0 for all classes but one left the gradient of that class's few samples."""
    liar.common = json.dumps(json.loads(liar.common) | {name: value}).encode()
    assert "what preprocessing sets, and owners approve" in why(liar.node, liar.asks(1)[0])


def test_a_model_to_evaluate_cannot_have_a_bias_for_each_sample(make_node):
    """The loss of a single evaluation was a number whose binary digits were the labels of all held-out samples."""
    liar = Liar(make_node("a", ALL), proposed(evaluate={"every": 1}, model={"name": "linear"}))
    rows = liar.enrolled["test_samples"]
    for name, value in liar.model.items():
        liar.model = liar.model | {name: torch.stack([value] * rows)}
        assert f"tensor '{name}' is torch.float32 [{rows}, " in why(liar.node, liar.evaluates(1)[0])
        liar.model = liar.model | {name: value}
    liar.model = liar.model | {"more": torch.zeros(1)}
    assert "tensor 'more' was not expected" in why(liar.node, liar.evaluates(1)[0])


def test_a_server_that_is_never_durable_fills_no_disk(make_node):
    """A reply and a memory for every round of the study, for ever."""
    policy = ALL.replace("rounds = 6", "rounds = 12")
    liar = Liar(make_node("a", policy), proposed("scaffold", rounds=12, evaluate={"clients": "none"}))
    model, version = liar.task.initial(), None
    message = encode(Message.of(model=model, c={name: value * 0 for name, value in model.items()}))
    for number in range(1, 13):
        letter = Envelope("x", 1, number, 0, "client", version, -1, key_of(0, number), "a", False)
        assert liar.sends(call_frame(letter, message))[0]["kind"] == "reply"
        version = letter.label
    folder = liar.node.run("r")
    assert len(list(folder.glob("memory-*"))) <= 4
    with closing(sqlite3.connect(folder / "ledger.db")) as file:
        assert file.execute("SELECT count(*) FROM answers WHERE reply IS NOT NULL").fetchone()[0] <= 4
        assert file.execute("SELECT count(*) FROM answers").fetchone() == (12,)


@pytest.mark.long
def test_an_answer_without_end_is_given_up(liar: Liar):
    """A policy that approves a method approves any number of its steps."""
    liar.node.set(hours=1 / 3600)
    endless = """if True:
        import sys, time
        from pathlib import Path
        from parley.deploy.clientapp import bounded
        from parley.deploy.node_folder import NodeFolder
        for seconds in (0, 60):
            with bounded(NodeFolder(Path(sys.argv[1]))):
                time.sleep(seconds)
            print("answered", flush=True)
        """
    ended = subprocess.run([sys.executable, "-c", endless, str(liar.node.path)], capture_output=True, timeout=55)
    assert (ended.returncode, ended.stdout) == (1, b"answered\n"), ended.stderr
    (line,) = [line for line in liar.node.logged() if line["event"] == "given up"]
    assert line["answered"].startswith("it would take more than 0.000277778 hours")


def test_a_fingerprint_confirms_no_guess_of_the_samples(make_node, liar: Liar):
    """Who knows all rows but one would try the values of that one."""
    own = load_data(liar.node.settings, liar.node.path)
    assert liar.enrolled["fingerprint"] != own.fingerprint()
    again = invited(liar.node, liar.proposal)["data"]
    assert again["fingerprint"] == liar.enrolled["fingerprint"]


@pytest.mark.parametrize("where", ["run", "study", "parley", "kind", "recipient"])
def test_a_frame_that_cannot_be_printed_is_logged_too(liar: Liar, where: str):
    """Half of a character is JSON and no text; it went past the log, and its exception to the server."""
    head = SAME | {"kind": "work", "recipient": "a", "run": "r", "study": "x", "population": 3} | {where: "\ud800"}
    before = len(list(liar.node.logged()))
    reply, _ = unpack(answer(liar.node, pack(head, b"", pack({"kind": "call", "asked": "\udfff"}))))
    assert reply["kind"] == "failure"
    assert "surrogate" not in reply["reason"]
    assert [line["event"] for line in liar.node.logged()][before:] == ["received", "message"]


@pytest.mark.parametrize(("where", "allowed"), [("algorithm", 0), ("model", 1), ("channels", 2)])
def test_a_name_of_100_kb_does_not_break_the_log(make_node, where: str, allowed: int):
    """It was quoted whole, and the next line sealed the last 64 KB of that line: the log looked changed for ever."""
    policy = ['algorithms = ["*"]', 'models = ["*"]'][:allowed]
    node, name = make_node("a", "\n".join([*policy, "rounds = 3"])), "x" * 100_000
    whole = json.loads(proposed().bytes())
    whole["study"][where] = {"up": [name]} if where == "channels" else whole["study"][where] | {"name": name}
    proposal = Proposal(whole["parley"], whole["study"], {})
    for _ in range(2):
        reply = answer(node, invitation("a", "r", proposal))
        assert len(reply) < 1000
    assert len(list(node.logged())) == 4
    assert max(map(len, (node.path / "audit.jsonl").read_bytes().splitlines())) < 10_000


def test_a_long_line_is_sealed_whole(make_node):
    node = make_node("a")
    for length in (10, 65_535, 65_536, 200_000, 10):
        node.log("owner", note="x" * length)
    assert len(list(node.logged())) == 5


FRAMES = st.tuples(
    st.sampled_from(["call", "call", "evaluation", "invitation"]),
    st.sampled_from(["r", "r", "r", "other"]),
    st.integers(0, 4),
    st.integers(0, 2),
    st.sampled_from([0.0, 1.0]),
    st.integers(1, 4),
)
Frame = tuple[str, str, int, int, float, int]


def fresh(place: Path, name: str) -> Liar:
    """A server and a node that has taken part in its run; all nodes have the same data and secrets."""
    node = NodeFolder.create(place / name, "a")
    node.point(data=str(_digits(place)))
    (node.path / "policy.toml").write_text(ALL)
    return Liar(node, proposed(evaluate={"every": 2}))


def sent(liar: Liar, frame: Frame) -> bytes | None:
    """What a frame is answered with; None for a refusal."""
    kind, run, number, exchange, by, start = frame
    if kind == "invitation":
        invited(liar.node, liar.proposal, run)
        return None
    model = encode(liar.moved(by))
    if kind == "evaluation":
        inner = evaluation_frame(EvaluationEnvelope(start, number, None, number - 1, "a"), model)
    else:
        letter = Envelope("x", start, number, exchange, "client", None, number - 1, key_of(0, number), "a", False)
        inner = call_frame(letter, model)
    head, parts = liar.sends(inner, run)
    return None if head["kind"] == "failure" else pack(head, *parts)


@settings(
    deadline=None, max_examples=6, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(FRAMES, min_size=1, max_size=14))
def test_whatever_is_asked_the_answers_are_some_of_one_honest_run_and_every_frame_is_logged(tmp_path_factory, frames):
    """Runs, rounds, exchanges, starts of the server and models in any order, again and again.

    What was answered, each once and in order, is what a server gets that asks just that, one question at a place in
    rounds that go forward: the same bytes.
    """
    place = tmp_path_factory.mktemp("nodes")
    with patch("secrets.token_bytes", lambda count: b"7" * count):
        liar, honest = fresh(place, "one"), fresh(place, "two")
        answered: dict[Frame, bytes] = {}
        for frame in frames:
            told = sent(liar, frame)
            if told is not None:
                assert answered.setdefault((*frame[:5], 1), told) == told
        assert [sent(honest, frame) for frame in answered] == list(answered.values())
    asked = [(kind, number) for kind, _, number, *_ in answered]
    assert len(set(asked)) == len(asked)
    assert sum(kind == "evaluation" for kind, _ in asked) <= 3 // 2 + 2
    assert all(run == "r" and number <= 3 for _, run, number, *_ in answered)
    assert [number for _, number in asked] == sorted(number for _, number in asked)
    assert [line["event"] for line in liar.node.logged()] == ["received", "message"] * (len(frames) + 1)


def test_a_planted_mistake_tells_more_than_one_honest_run(tmp_path, monkeypatch):
    liar = fresh(tmp_path, "one")
    frames = [("call", run, 1, 0, 0.0, 1) for run in ("r", "other")]
    assert [sent(liar, frame) is None for frame in frames] == [False, True]
    monkeypatch.setattr("parley.deploy.answering.takes_part", lambda *_: True)
    monkeypatch.setattr("parley.deploy.answering.engage", lambda *_: None)
    monkeypatch.setattr("parley.deploy.answering.ended", lambda *_: None)
    invited(liar.node, liar.proposal, "other")
    assert sent(liar, frames[1]) is not None


def _digits(place: Path) -> Path:
    x, y = load_digits(return_X_y=True)
    np.savez(place / "a.npz", x=(x[:50] / 16).astype(np.float32), y=y[:50])
    return place / "a.npz"
