"""An example for every command's --help, and what a shell can complete."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import typer

EXAMPLES = {
    "demo": "parley demo --rounds 20",
    "run": "parley run examples/digits.toml --set algorithm.lr=0.05 --seeds 0-4",
    "compare": "parley compare digits last --target 0.9",
    "report": "parley report last -o report.html",
    "tune": "parley tune examples/tuning.toml",
    "watch": "parley watch last",
    "advise": "parley advise examples/digits.toml --rounds 50",
    "ui": "parley ui --open",
    "runs show": "parley runs show last",
    "runs delete": "parley runs delete last",
    "runs export": "parley runs export last numbers.csv",
    "export": "parley export last model/",
    "predict": "parley predict last examples/clinics/clinic-a.csv --out predictions.csv",
    "data list": "parley data list",
    "data fetch": "parley data fetch fashion-mnist",
    "data show": "parley data show examples/digits.toml --figure partition.png",
    "list": "parley list algorithms fedprox",
    "stats": "parley stats examples/digits.toml --csv digits.csv",
    "analyse": "parley analyse examples/own-folder.toml --model logistic --covariates radius,texture",
    "pareto": "parley pareto --kappa0 100 --rounds 50 --server heavy-ball",
    "gain": "parley gain examples/digits.toml",
    "attack": "parley attack examples/digits.toml --victims 2 --batch 1",
    "reproduce": "parley reproduce charles2021/fig2 --scale smoke",
    "conformance": "parley conformance scaffold",
    "bench": "parley bench MLP-FMNIST --scale smoke",
    "deploy init": "parley deploy init parley-server --host fl.example.org --port 9443",
    "deploy renew": "parley deploy renew -f parley-server",
    "deploy register": "parley deploy register north/node.csr -f parley-server",
    "deploy revoke": "parley deploy revoke north -f parley-server",
    "deploy nodes": "parley deploy nodes -f parley-server",
    "deploy server": "parley deploy server -f parley-server",
    "deploy client": "parley deploy client --node north --server fl.example.org:9443 --ca ca.crt",
    "deploy run": "parley deploy run study.toml -f parley-server",
    "deploy status": "parley deploy status -f parley-server",
    "deploy logs": "parley deploy logs last -f parley-server",
    "deploy stop": "parley deploy stop last -f parley-server",
    "deploy check": "parley deploy check --node north",
    "deploy health": "parley deploy health --node north",
    "deploy backup": "parley deploy backup north.tar.gz --node north",
    "deploy restore": "parley deploy restore north.tar.gz north",
    "deploy demo": "parley deploy demo",
    "node init": "parley node init north --node north --data north.csv --target diagnosis",
    "node pending": "parley node pending --node north",
    "node show": "parley node show 3f9c --node north",
    "node approve": 'parley node approve 3f9c --node north --note "data board, 12 May"',
    "node reject": "parley node reject 3f9c --node north",
    "node purge": "parley node purge --node north --dry-run",
    "node log": "parley node log --node north --last 20",
    "new algorithm": "parley new algorithm my-method",
    "doctor": "parley doctor",
}


def show_examples(app: typer.Typer, path: str = "") -> None:
    """Put each command's example below its help, in which brackets are no markup and paragraphs fill the screen."""
    for command in app.registered_commands:
        text = re.sub(r"(?<!\n)\n(?!\n)", " ", command.help or inspect.getdoc(command.callback) or "")
        command.help = re.sub(r"(?<!\\)(\[[a-z#/@])", r"\\\1", text)
        example = EXAMPLES.get(f"{path}{command.name}")
        command.epilog = f"Example: {example}" if example else command.epilog
    for group in app.registered_groups:
        if group.typer_instance is not None:
            show_examples(group.typer_instance, f"{path}{group.name} ")


def names_of(kind: str) -> Callable[[str], list[str]]:
    """For the shell: what is registered of a kind and begins so, from the index alone."""

    def beginning(incomplete: str) -> list[str]:
        from parley.cli.index import index

        return [name for name in index()[kind] if name.startswith(incomplete)]

    return beginning


algorithm_names, study_names, runtime_names = names_of("algorithms"), names_of("studies"), names_of("runtimes")


def one_of(*names: str) -> Callable[[str], list[str]]:
    """For the shell: those of fixed names that begin so."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def kinds(incomplete: str) -> list[str]:
    """For the shell: what `parley list` lists."""
    from parley.cli.index import index

    return [kind for kind in index() if kind.startswith(incomplete)]


def listed_names(context: typer.Context, incomplete: str) -> list[str]:
    """For the shell: those of the kind that `parley list KIND` has been told which begin so."""
    from parley.cli.index import index

    return [name for name in index().get(context.params.get("kind") or "", ()) if name.startswith(incomplete)]


def run_names(incomplete: str) -> list[str]:
    """For the shell: runs of the store here that begin so."""
    return _stored(incomplete, studies=False)


def study_and_run_names(incomplete: str) -> list[str]:
    """For the shell: runs of the store here, and the names of their studies, that begin so."""
    return _stored(incomplete, studies=True)


def _stored(incomplete: str, studies: bool) -> list[str]:
    from parley.core.errors import ParleyError
    from parley.store.runs import RunStore

    try:
        with RunStore(create=False) as store:
            infos = store.runs()
    except ParleyError:
        return []
    named = ["last", *(info.name for info in infos if studies), *(info.id for info in infos)]
    return [name for name in dict.fromkeys(named) if name.startswith(incomplete)]
