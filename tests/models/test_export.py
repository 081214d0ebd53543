"""Exports: each format gives the module's outputs back, a format that cannot is reported, folders are whole."""

import json
import logging
import warnings
from pathlib import Path
from zipfile import ZipFile

import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from safetensors.torch import load_file
from torch import nn

from parley import models
from parley.core.errors import InputError
from parley.core.key import Key
from parley.models.folder import new_folder

CASES = {
    "linear": (models.linear(), (6,)),
    "mlp": (models.mlp(7), (1, 4, 4)),
    "cnn001": (models.cnn001(), (1, 12, 12)),
    "resnet20": (models.resnet20(shortcut="pad"), (1, 8, 8)),
    "lstm": (models.lstm(hidden=5), (6,)),
    "text-bag": (models.text_bag(20, 4), (6,)),
}


def inputs(name: str, shape: tuple[int, ...], count: int, seed: int = 0) -> torch.Tensor:
    generator = Key(seed).torch()
    if name in ("lstm", "text-bag"):
        return torch.randint(0, 3, (count, *shape), generator=generator)
    return torch.randn((count, *shape), generator=generator)


@pytest.mark.parametrize("name", CASES)
def test_every_format_returns_the_modules_outputs(name: str, tmp_path: Path) -> None:
    spec, shape = CASES[name]
    module = models.build_module(spec, shape, 3, Key(0))
    files = models.export_module(module, inputs(name, shape, 1), tmp_path / "out", card={"rounds": 7})
    assert {file.name for file in files} == {file.name for file in (tmp_path / "out").iterdir()}
    assert module.training, "the caller's module is left as it was"

    x = inputs(name, shape, 5, seed=1)
    expected = module.eval()(x).detach()
    fresh = models.build_module(spec, shape, 3, Key(99))
    fresh.load_state_dict(load_file(tmp_path / "out" / "model.safetensors"))
    assert torch.equal(fresh.eval()(x), expected)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`torch.jit.load` is deprecated", category=DeprecationWarning)
        script = torch.jit.load(str(tmp_path / "out" / "model.torchscript.pt"))
    torch.testing.assert_close(script(x), expected)
    model = onnx.load(tmp_path / "out" / "model.onnx")
    (output,) = ReferenceEvaluator(model).run(None, {"input": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(output), expected, rtol=1e-4, atol=1e-4)


def test_the_card_tells_what_it_is_and_where_it_comes_from(tmp_path: Path) -> None:
    module = models.build_module(models.mlp(7), (4,), 3, Key(0))
    models.export_module(module, torch.zeros(2, 4), tmp_path / "out", ("safetensors",), card={"name": "Ünited", "T": 3})
    card = json.loads((tmp_path / "out" / "card.json").read_text(encoding="utf-8"))
    assert card["provenance"] == {"name": "Ünited", "T": 3}
    assert card["model"]["trainable_parameters"] == 4 * 7 + 7 + 7 * 3 + 3
    assert card["input"] == {"dtype": "float32", "shape": ["batch", 4]}
    assert card["files"][0]["bytes"] == (tmp_path / "out" / "model.safetensors").stat().st_size
    page = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert page.startswith("# Ünited\n")
    assert "59 trainable parameters" in page


class Branching(nn.Module):
    """Takes a branch on values, which neither tracer can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layer(x)
        return output if x.sum() > 0 else -output


def test_a_module_that_cannot_be_traced_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.WARNING):
        files = models.export_module(Branching(), torch.ones(2, 3), tmp_path / "out")
    assert [file.name for file in files] == ["model.safetensors", "card.json", "README.md"]
    assert sorted((tmp_path / "out").iterdir()) == sorted(files)
    left_out = json.loads((tmp_path / "out" / "card.json").read_text())["left_out"]
    assert set(left_out) == {"torchscript", "onnx"}
    assert "cannot be traced" in left_out["torchscript"]
    assert "data-dependent" in left_out["onnx"]
    assert len([record for record in caplog.records if record.name == "parley.models.export"]) == 2
    assert "torchscript is left out: its forward" in (tmp_path / "out" / "README.md").read_text()
    assert "def forward" not in capfd.readouterr().err


def test_nothing_exportable_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"could not be exported \(torchscript: its forward pass cannot be traced"):
        models.export_module(Branching(), torch.ones(2, 3), tmp_path / "out", ("torchscript",))
    with pytest.raises(InputError, match=r"\(transformers: the model is none of the package transformers\)"):
        models.export_module(Branching(), torch.ones(2, 3), tmp_path / "out", ("transformers",))
    assert not list(tmp_path.iterdir())


def test_files_hold_neither_the_example_nor_this_machines_paths(tmp_path: Path) -> None:
    module = models.build_module(models.text_bag(200, 4), (3,), 2, Key(0))
    secret = torch.tensor([[101, 103, 107]])
    models.export_module(module, secret, tmp_path / "out")
    assert b"site-packages" not in (tmp_path / "out" / "model.onnx").read_bytes()
    assert b"parley/models/text.py" not in (tmp_path / "out" / "model.onnx").read_bytes()
    with ZipFile(tmp_path / "out" / "model.torchscript.pt") as archive:
        assert not any("traced_inputs" in name for name in archive.namelist())
    for file in (tmp_path / "out").iterdir():
        assert secret.numpy().tobytes() not in file.read_bytes()


def test_tied_weights_and_untraced_outputs(tmp_path: Path) -> None:
    layer = nn.Linear(2, 2)
    models.export_module(nn.Sequential(layer, layer), torch.ones(1, 2), tmp_path / "tied", ("safetensors",))
    assert set(load_file(tmp_path / "tied" / "model.safetensors")) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    with pytest.raises(InputError, match="return one tensor"):
        models.export_module(nn.LSTM(2, 2), torch.ones(1, 2, 2), tmp_path / "lstm")


@pytest.mark.parametrize(
    ("example", "arguments", "sentence"),
    [
        (torch.ones(2, 5), {}, r"does not run on the example of shape \(2, 5\)"),
        (torch.ones(0, 4), {}, "must be a batch"),
        (torch.tensor(1.0), {}, "must be a batch"),
        (torch.ones(2, 4), {"formats": ("onx",)}, "did you mean 'onnx'"),
        (torch.ones(2, 4), {"formats": ()}, "no format was asked for"),
        (torch.ones(2, 4), {"card": {"key": Key(0)}}, "plain numbers"),
        (torch.ones(2, 4), {"card": {"loss": float("nan")}}, "plain numbers"),
    ],
)
def test_bad_input(example: torch.Tensor, arguments: dict[str, object], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        models.export_module(nn.Linear(4, 2), example, tmp_path / "out", **arguments)
    assert not list(tmp_path.iterdir())


def test_an_earlier_export_is_replaced_and_other_folders_are_not(tmp_path: Path) -> None:
    module = nn.Linear(4, 2)
    for formats in (("safetensors", "torchscript"), ("safetensors",)):
        models.export_module(module, torch.ones(2, 4), tmp_path / "out", formats)
    assert not (tmp_path / "out" / "model.torchscript.pt").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("dear")
    with pytest.raises(InputError, match="holds other files"):
        models.export_module(module, torch.ones(2, 4), tmp_path / "mine")
    with pytest.raises(InputError, match="is a file"):
        models.export_module(module, torch.ones(2, 4), tmp_path / "mine" / "thesis.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "out"]


def test_a_failure_half_way_keeps_the_old_folder(tmp_path: Path) -> None:
    def write(text: str) -> None:
        with new_folder(tmp_path / "out", marker="card") as draft:
            (draft / "card").write_text(text)
            if text == "new":
                raise RuntimeError("power")

    write("old")
    with pytest.raises(RuntimeError, match="power"):
        write("new")
    assert (tmp_path / "out" / "card").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot be made: Not a directory"):
        models.export_module(nn.Linear(2, 1), torch.zeros(1, 2), tmp_path / "file" / "below" / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
