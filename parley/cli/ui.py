"""`parley ui`: the store in a browser."""

from __future__ import annotations

from typing import Annotated

import typer

from parley.cli.options import Store


def ui(
    port: Annotated[int, typer.Option(help="The port on this machine; 0 takes a free one.", min=0, max=65535)] = 8722,
    names: Annotated[bool, typer.Option("--names", help="Show the clients' names in reports.")] = False,
    browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    store: Store = None,
) -> None:
    """Serve the store to this machine's browser: runs in progress, and their reports. Ctrl-C ends it.

    It only reads, and only this machine can reach it, with the token in the address printed.
    """
    import webbrowser

    from parley.report.ui import Server

    server = Server(store, port, names)
    if not server.has_store:
        print(f"There is no store at {server.store} yet; the page shows it once 'parley run' makes it.")
    print(f"{server.address}\nCtrl-C ends it.", flush=True)
    if browser:
        webbrowser.open(server.address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print()
    finally:
        server.server_close()
