"""Runs one of Flower's programs so that it ends with the process that started it, however that one ends.

Of Flower's node one fault is mended besides. Where a run ends between the pull of a message and its confirmation, the
message stays, is answered, and from then on the node sends, after every message, the answer to the one before.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from parley.core.processes import end_with_parent
from parley.deploy.extra import program

MAIN = "from parley.deploy.guard import main; main()"


def guarded(name: str, options: Mapping[str, object], *flags: str) -> list[object]:
    """The command that runs a program of Flower's in this way."""
    return [sys.executable, "-c", MAIN, program(name), *(word for option in options.items() for word in option), *flags]


def main(arguments: Sequence[str] | None = None) -> None:
    end_with_parent()
    sys.argv = list(arguments or sys.argv[1:])
    if Path(sys.argv[0]).name == "flower-supernode":
        from flwr.supernode import start_client_internal as inside

        inside._push_messages = until_answered(inside._push_messages)
    runpy.run_path(sys.argv[0], run_name="__main__")


def until_answered(push: Callable[..., None]) -> Callable[..., None]:
    """Flower's function that sends what was answered, which now goes on until the last message was."""

    def pushed(state: Any, **more: Any) -> None:
        with state.lock_msg_store:
            asked = [id for id, entry in state.msg_store.items() if not entry.message.metadata.reply_to_message_id]
        push(state=state, **more)
        while asked and asked[-1] in state.msg_store:
            print("parley: sent the answer to an earlier message, of a run that has ended; the last one follows.")
            push(state=state, **more)

    return pushed
