"""`parley export` and `parley predict`: what a trained model is for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from parley.cli.examples import one_of
from parley.cli.options import RunId, Store

Run = RunId
Client = Annotated[
    str | None,
    typer.Option("--client", help="The model this client has, not the server's.", metavar="ID"),
]
Recalibrate = Annotated[
    str | None,
    typer.Option(
        help="temperature or platt: fit probabilities of two classes to all clients' held-out samples, which "
        "pooled = true in \\[evaluate] counted.",
        metavar="METHOD",
        autocompletion=one_of("temperature", "platt"),
    ),
]
Best = Annotated[bool, typer.Option("--best", help="The model of the best round, not of the last.")]


def export(
    run: Run,
    folder: Annotated[
        Path,
        typer.Argument(
            help="A new folder for the model and its card; one of an earlier export is replaced.", metavar="FOLDER"
        ),
    ],
    best: Best = False,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            help="safetensors, torchscript or onnx (repeatable); default: all.",
            metavar="NAME",
            autocompletion=one_of("safetensors", "torchscript", "onnx"),
        ),
    ] = None,
    client: Client = None,
    recalibrate: Recalibrate = None,
    store: Store = None,
) -> None:
    """Export a run's model with a card of its inputs, outputs and provenance.

    TorchScript and ONNX files take raw samples: what was done to those trained on is inside.
    """
    from parley.models.export import FORMATS
    from parley.store.runs import RunStore
    from parley.study.stored import export_run

    with RunStore(store, create=False) as runs:
        chosen: Any = formats or FORMATS
        method: Any = recalibrate
        for file in export_run(runs, run, folder, best=best, client=client, formats=chosen, recalibrate=method):
            print(file)


def predict(
    run: Run,
    data: Annotated[
        Path, typer.Argument(help="Samples like those trained on: .csv with a header, or .npz or .safetensors with x.")
    ],
    out: Annotated[Path, typer.Option("--out", help="The .csv file to write.", metavar="FILE")],
    best: Best = False,
    client: Client = None,
    target: Annotated[
        str | None,
        typer.Option(help="A .csv column to leave out; default: the one the run was trained on.", metavar="COLUMN"),
    ] = None,
    recalibrate: Recalibrate = None,
    store: Store = None,
) -> None:
    """Predict new samples with a run's model.

    Examples:

    parley run examples/own-folder.toml

    parley predict last examples/clinics/clinic-a.csv --out predictions.csv
    """
    from parley.store.runs import RunStore
    from parley.study.predict import predict_file
    from parley.study.stored import load_run

    with RunStore(store, create=False) as runs:
        trained = load_run(runs, run)
    known = trained.config.get("data", {}).get("target")
    method: Any = recalibrate
    count = predict_file(trained, data, out, target=target or known, best=best, client=client, recalibrate=method)
    print(f"{count:,} prediction{'' if count == 1 else 's'} in {out}")
