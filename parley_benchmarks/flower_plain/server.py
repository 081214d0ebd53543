"""The server: sends the weights to every node, averages what comes back, and writes down how long each round took."""

# Flower's decorators have no types that can be seen from here.
# mypy: disable-error-code="untyped-decorator"
import json
import time
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import load_file, save_file

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    folder, nodes, poll = Path(str(config["folder"])), int(config["nodes"]), float(config["poll"])
    weights = load_file(folder / "weights.safetensors")
    while len(connected := list(grid.get_node_ids())) < nodes:
        time.sleep(poll)
    ended = [time.perf_counter()]
    for number in range(int(config["rounds"])):
        record = RecordDict({"weights": ArrayRecord(weights)})
        left = set(grid.push_messages([Message(record, node, "train", group_id=str(number)) for node in connected]))
        replies: list[dict[str, torch.Tensor]] = []
        while left:
            for reply in grid.pull_messages(list(left)):
                left.remove(reply.metadata.reply_to_message_id)
                replies.append(reply.content["weights"].to_torch_state_dict())
            if left:
                time.sleep(poll)
        weights = {name: torch.stack([reply[name] for reply in replies]).mean(0) for name in weights}
        ended.append(time.perf_counter())
    save_file(weights, folder / "final.safetensors")
    (folder / "ended.json").write_text(json.dumps(ended))
