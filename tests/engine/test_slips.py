"""Slips of the pen in a method of the user's own are told by name, file and line, in one sentence."""

from pathlib import Path

import pytest
import torch

import parley as pl
from parley.algorithms.exchange import exchange
from parley.algorithms.protocol import Replies
from parley.cli.main import main
from parley.core.errors import InputError, QuorumError, user_line
from parley.study.skeleton import new_algorithm


@pytest.fixture
def skeleton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `parley new algorithm slip` writes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PARLEY_STORE", raising=False)
    method, study, _ = new_algorithm("slip", tmp_path)
    study.write_text(study.read_text().replace("rounds = 3", "rounds = 2"))
    return method


def ended(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        main(["run", "slip.toml", "--runtime", "inline", *options])
    return int(end.value.code or 0), " ".join(capsys.readouterr().err.split())


SLIPS = [
    (
        'mean_change("update")',
        'mean_change("updaet")',
        "the clients sent no tree 'updaet': did you mean 'update'? (slip.py, ",
    ),
    (
        'mean_change("update")',
        'mean_change("step")',
        "'step': choose one of update (slip.py, line {line})",
    ),
    ('add(state["model"]', 'add(state["modle"]', "no tree 'modle': did you mean 'model'? (slip.py, line {line})"),
    ("replace(model=", "replace(modle=", "put 'modle' into the server's state and left 'model' as it was: did you"),
    ('x = message["model"]', 'x = message["modle"]', "raised InputError: a message has no tree 'modle': did you mean"),
    ('x = message["model"]', 'x = message["modle"]', "'? (slip.py, line {line})"),
]


@pytest.mark.parametrize(("right", "wrong", "sentence"), SLIPS)
def test_a_slip_is_one_sentence(
    skeleton: Path, capsys: pytest.CaptureFixture[str], right: str, wrong: str, sentence: str
):
    source = skeleton.read_text()
    assert source.count(right) == 1
    skeleton.write_text(source.replace(right, wrong))
    code, said = ended(capsys)
    assert code == 2, said
    line = source[: source.index(right)].count("\n") + 1
    assert sentence.format(line=line) in said
    assert "Traceback" not in said


def test_the_skeleton_itself_is_not_refused(skeleton: Path, capsys: pytest.CaptureFixture[str]):
    assert ended(capsys)[0] == 0


def test_an_error_of_torch_names_the_line_of_the_method(skeleton: Path, capsys: pytest.CaptureFixture[str]):
    skeleton.write_text(skeleton.read_text().replace('x = message["model"]', 'x = message["model"]; self.lost(x)'))
    with skeleton.open("a") as file:
        file.write("\n    def lost(self, x):\n        import torch\n\n        torch.nn.Linear(2, 2)(torch.ones(3))\n")
    said = ended(capsys)[1]
    assert "raised RuntimeError: " in said
    assert f"(slip.py, line {len(skeleton.read_text().splitlines())})" in said


def test_trees_that_may_be_missing():
    sent = pl.Message.of(update={"w": torch.ones(2)})
    replies = Replies({"a": sent, "b": sent}, {"a": 0.5, "b": 0.5})
    assert replies.mean_change("buffers", optional=True) == replies.sum("buffers", optional=True) == {}
    for fold in (replies.mean_change, replies.mean, replies.sum):
        with pytest.raises(InputError, match="the clients sent no tree 'buffers': choose one of update"):
            fold("buffers")
    silent = Replies({"a": pl.Message()}, {"a": 1.0})
    assert silent.mean_change("update") == Replies({}, {}).mean_change("update") == {}


class Grows(pl.OneExchange):
    """Puts new trees beside old ones of the same form, with names that are alike."""

    def __init__(self, name: str, *, step: bool = False) -> None:
        self.name, self.step = name, step

    def init(self, task, key):
        return pl.State.of(model=task.initial())

    @exchange()
    def client(self, task, message, memory, data, context):
        return pl.Reply(pl.Message.of(update=message["model"]))

    def aggregate(self, task, state, replies, number, key):
        kept = {self.name.format(number): pl.tree.scale(state["model"], 1.0)}
        return state.replace(**kept, **({"model": replies.mean_change("update")} if self.step else {}))


@pytest.mark.parametrize(
    ("name", "step", "refused"),
    [("mdoel", False, True), ("models", False, True), ("mdoel", True, False), ("model{}", False, False),
     ("momentum", False, False)],
)  # fmt: skip
def test_only_what_must_be_a_slip_is_refused(name: str, step: bool, refused: bool):
    """Not what is counted on, what has another name, or a tree beside one that did change."""
    federation = pl.data.iris().split("iid", clients=2)
    options = {"model": pl.models.linear(), "rounds": 2, "runtime": "inline"}
    if refused:
        with pytest.raises(InputError, match="left 'model' as it was: did you mean 'model'"):
            pl.train(Grows(name, step=step), federation, **options)
    else:
        assert pl.train(Grows(name, step=step), federation, **options).status == "finished"


def test_the_line_is_the_user_s_own():
    with pytest.raises(InputError) as caught:
        pl.Message()["model"]
    assert user_line(caught.value).startswith(" (test_slips.py, line ")
    assert user_line(InputError("never raised")) == ""


def test_mended_code_is_started_anew(skeleton: Path, capsys: pytest.CaptureFixture[str]):
    whole = skeleton.read_text()
    skeleton.write_text(whole.replace('x = message["model"]', 'x = message["model"]; 1 / 0'))
    _, said = ended(capsys)
    assert "it can be resumed if the cause lay outside the code; with changed code or settings, start it anew." in said
    skeleton.write_text(whole)
    code, said = ended(capsys, "--resume")
    assert code == 2
    assert f"the file {skeleton} has changed since run 'slip-digits-" in said
    assert "no run goes on with other code: start it without --resume." in said
    assert ended(capsys)[0] == 0


def test_numbers_that_are_none_are_not_worth_resuming():
    federation = pl.data.digits().split("iid", clients=2)
    with pytest.raises(QuorumError, match="resumed, it would come to the same: lower the step sizes, or clip"):
        pl.train(pl.FedAvg(lr=1e30), federation, model=pl.models.mlp(8), rounds=5, runtime="inline")
