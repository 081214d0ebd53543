"""Take a trained module out of Parley: safetensors, TorchScript and ONNX files with a model card, in one folder."""

import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from copy import deepcopy
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from shutil import rmtree
from typing import Any, Literal, Protocol, Self, cast, get_args, runtime_checkable

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.jit._trace import TracerWarning

from parley.core.errors import InputError, nearest
from parley.core.extras import how_to_install
from parley.data.client import DataInfo
from parley.models.card import Exported, describe, jsonable, page
from parley.models.folder import new_folder
from parley.models.prepared import network_of

Format = Literal["safetensors", "torchscript", "onnx", "transformers"]
FORMATS: tuple[Format, ...] = get_args(Format)
TOLERANCE = 1e-4
"""Largest difference allowed between the module's outputs and an exported file's, relative above magnitude 1."""

_NOISY = (
    "torch.onnx._internal.exporter._registration",
    "torch.fx.experimental.symbolic_shapes",
    "transformers.modeling_utils",
)

log = logging.getLogger(__name__)


@runtime_checkable
class Pretrained(Protocol):
    """A module that writes, and reads, the folders of Hugging Face's transformers."""

    def save_pretrained(self, folder: Path) -> None: ...

    def reloaded(self, folder: Path) -> Self: ...


@runtime_checkable
class OwnOnnx(Protocol):
    """A module for which ONNX has an operator of its own; None where that does not fit inputs of this dtype."""

    def onnx_model(self, dtype: torch.dtype) -> Any: ...


class _CannotExport(Exception):
    """Why one format is left out."""


def export_module(
    module: nn.Module,
    example: Tensor,
    folder: str | Path,
    formats: Sequence[Format] = FORMATS,
    card: Mapping[str, object] | None = None,
    info: DataInfo | None = None,
) -> list[Path]:
    """Write `module` in evaluation mode to `folder` in each format, with `card.json` and `README.md`; return the files.

    `example` is a batch of inputs, [B, ...]; the exported models take any batch size. `card` is where the model comes
    from (data, algorithm, rounds, scores), kept as given; `info` lets it say what the columns, classes and outputs are.
    Each file is loaded again and compared with the module. A format that the module does not allow is left out; the
    card and the log say which and why (all formats means `transformers` only for models of that package). The folder
    appears complete or not at all, and replaces only an earlier export. `Run.export` does all this for a trained run.
    """
    for name in formats:
        if name not in FORMATS:
            raise InputError(f"unknown export format '{name}': {nearest(name, FORMATS)}")
    if tuple(formats) == FORMATS and not isinstance(module, Pretrained):
        formats = FORMATS[:-1]
    provenance = jsonable(card or {})
    module = deepcopy(module).cpu().eval()
    batches = _batches(example.detach().cpu())
    expected = _expected(module, batches)
    written: list[Exported] = []
    left_out: dict[str, str] = {}
    with new_folder(Path(folder), marker="card.json") as draft:
        for name in dict.fromkeys(formats):
            before = set(draft.iterdir())
            try:
                written.append(_WRITERS[name](module, batches, expected, draft))
            except _CannotExport as reason:
                for rest in set(draft.iterdir()) - before:
                    rmtree(rest) if rest.is_dir() else rest.unlink()
                left_out[name] = str(reason)
                log.warning("export of %s leaves out %s: %s", _called(module), name, reason)
        if not written:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items()) or "no format was asked for"
            raise InputError(f"the {_called(module)} could not be exported ({reasons}).")
        summary = describe(module, batches[0], expected[0], draft, written, left_out, provenance, info)
        (draft / "card.json").write_text(summary.text, encoding="utf-8")
        (draft / "README.md").write_text(page(summary), encoding="utf-8")
    return [Path(folder) / name for name in (*(exported.file for exported in written), "card.json", "README.md")]


def _batches(example: Tensor) -> tuple[Tensor, Tensor]:
    """Two batches of different size: one to export with (at least 2: 1 would be taken for a constant), one to check."""
    if example.ndim == 0 or len(example) == 0:
        raise InputError(f"the example must be a batch of inputs, but its shape is {tuple(example.shape)}.")
    pair = torch.cat([example, example])[: max(2, len(example))]
    return pair, torch.cat([pair, pair[:1]])


def _expected(module: nn.Module, batches: Sequence[Tensor]) -> list[Tensor]:
    outputs = []
    for batch in batches:
        try:
            with torch.no_grad():
                output = module(batch)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise InputError(
                f"the {_called(module)} does not run on the example of shape {tuple(batch.shape)}: {_line(error)}"
            ) from error
        if not isinstance(output, Tensor):
            raise InputError(f"only modules that return one tensor can be exported, not a {type(output).__name__}.")
        outputs.append(output)
    return outputs


def _write_safetensors(
    module: nn.Module, batches: Sequence[Tensor], expected: Sequence[Tensor], draft: Path
) -> Exported:
    path = draft / "model.safetensors"
    with _explained(), torch.no_grad():
        # Clones: the format refuses tensors that share memory, such as tied weights.
        network = network_of(module)
        state = {name: tensor.clone().contiguous() for name, tensor in network.state_dict().items()}
        path.write_bytes(save(state, metadata={"format": "pt"}))
        network.load_state_dict(load_file(path))
        return Exported("safetensors", path.name, _compare(module, batches, expected))


def _write_torchscript(
    module: nn.Module, batches: Sequence[Tensor], expected: Sequence[Tensor], draft: Path
) -> Exported:
    path = draft / "model.torchscript.pt"
    with _explained(), warnings.catch_warnings(record=True) as caught, _quiet_exporter(), torch.no_grad():
        # Deprecated in favour of torch.export, but still what C++ and mobile runtimes read. The module's own warnings
        # have been seen when it ran on the example; of interest here is what the tracer could not follow.
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", category=TracerWarning)
        # RNN layers branch on the number of dimensions, which does not change.
        warnings.filterwarnings("ignore", category=TracerWarning, module=r"torch\.nn\.modules\.rnn")
        # The example may be private: its values must not travel with the file. Written by way of memory: where a disk
        # is full, TorchScript's own writer ends the process.
        path.write_bytes(torch.jit.trace(module, batches[0], _store_inputs=False).save_to_buffer())
        loaded = torch.jit.load(str(path))
        if caught:
            raise _CannotExport(f"its forward pass cannot be traced: {str(caught[0].message).partition('. ')[0]}")
        return Exported("torchscript", path.name, _compare(loaded, batches, expected))


def _write_onnx(module: nn.Module, batches: Sequence[Tensor], expected: Sequence[Tensor], draft: Path) -> Exported:
    if find_spec("onnx") is None or find_spec("onnxscript") is None:
        raise _CannotExport(f"it needs the packages onnx and onnxscript: {how_to_install('onnx')}")
    import onnx

    path = draft / "model.onnx"
    with _explained(), warnings.catch_warnings(), _quiet_exporter():
        # torch's exporter trips over its own deprecations and over how its RNN layers keep their weights.
        warnings.filterwarnings("ignore", message=r"`isinstance\(treespec, LeafSpec\)`", category=FutureWarning)
        warnings.filterwarnings("ignore", message=r"The tensor attributes self\..*_flat_weights", category=UserWarning)
        made_by_module = module.onnx_model(batches[0].dtype) if isinstance(module, OwnOnnx) else None
        model = _traced(module, batches[0]) if made_by_module is None else made_by_module
        onnx.checker.check_model(model, full_check=True)
        path.write_bytes(model.SerializeToString())
        evaluator, checked_with = _onnx_evaluator(path)

        def loaded(batch: Tensor) -> Tensor:
            return torch.from_numpy(cast("list[np.ndarray]", evaluator.run(None, {"input": batch.numpy()}))[0])

        return Exported("onnx", path.name, _compare(loaded, batches, expected), checked_with)


def _onnx_evaluator(path: Path) -> tuple[Any, str]:
    """What runs the file, and its name: ONNX Runtime where it is installed, because that is what others run it with."""
    if find_spec("onnxruntime") is None:
        from onnx.reference import ReferenceEvaluator

        return ReferenceEvaluator(str(path)), "onnx's reference evaluator (ONNX Runtime was not installed)"
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1  # what goes wrong comes as an exception, too
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise _CannotExport(f"ONNX Runtime {onnxruntime.__version__} does not load the file: {_line(error)}") from error
    return session, f"ONNX Runtime {onnxruntime.__version__}"


def _traced(module: nn.Module, example: Tensor) -> Any:
    """The module as torch's exporter follows it."""
    batch = torch.export.Dim("batch")
    graph = torch.export.export(module, (example,), dynamic_shapes=({0: batch},), strict=False)
    program = torch.onnx.export(graph, (), dynamo=True, verbose=False, input_names=["input"], output_names=["output"])
    assert program is not None
    model = program.model_proto
    for node in model.graph.node:
        # Stack traces with the file paths of this machine, and module names of torch's internals.
        del node.metadata_props[:]
    return model


def _write_transformers(
    module: nn.Module, batches: Sequence[Tensor], expected: Sequence[Tensor], draft: Path
) -> Exported:
    if not isinstance(module, Pretrained):
        raise _CannotExport("the model is none of the package transformers")
    with _explained(), torch.no_grad():
        try:
            module.save_pretrained(draft / "transformers")
        except SafetensorError as error:  # how safetensors says that a file cannot be written
            if refused := re.search(r"\(os error (\d+)\)", str(error)):
                raise OSError(int(refused[1]), os.strerror(int(refused[1]))) from error
            raise
        loaded = cast(nn.Module, module.reloaded(draft / "transformers"))
        return Exported("transformers", "transformers/model.safetensors", _compare(loaded.eval(), batches, expected))


_WRITERS: dict[Format, Callable[[nn.Module, Sequence[Tensor], Sequence[Tensor], Path], Exported]] = {
    "safetensors": _write_safetensors,
    "torchscript": _write_torchscript,
    "onnx": _write_onnx,
    "transformers": _write_transformers,
}


def _compare(loaded: Callable[[Tensor], Tensor], batches: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest difference between the outputs of the file and of the module, which must be small."""
    largest = 0.0
    for batch, wanted in zip(batches, expected, strict=True):
        given = loaded(batch)
        if given.shape != wanted.shape:
            raise _CannotExport(f"the file returns shape {tuple(given.shape)} in place of {tuple(wanted.shape)}")
        difference = ((given - wanted).abs() / wanted.abs().clamp(min=1)).max().item()
        if not difference <= TOLERANCE:
            raise _CannotExport(f"the file's outputs differ from the module's by {difference:.2g}")
        largest = max(largest, difference)
    return largest


@contextmanager
def _explained() -> Iterator[None]:
    """A user's module can make an exporter fail in any way; each becomes the reason why the format is left out.

    What the operating system refuses (a full disk) says nothing about the format and goes on.
    """
    try:
        yield
    except _CannotExport:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise _CannotExport(_line(error)) from error


def _called(module: nn.Module) -> str:
    return type(network_of(module)).__name__


def _line(error: Exception) -> str:
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
    return f"{type(error).__name__}: {line[:300]}"


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Keep torch from printing graphs, and packages from logging about what Parley does not use."""
    loggers = [logging.getLogger(name) for name in _NOISY]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with redirect_stderr(StringIO()):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
