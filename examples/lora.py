"""Adapters (LoRA) of a small real language model, trained by FedAvg and by FedALS on MultiNLI sorted by genre.

    pip install -c constraints.txt '.[lora]'
    parley data fetch multinli
    python examples/lora.py

The model is the story teller of 260,000 weights of llama2.c (stories260K.bin and tok512.bin of
huggingface.co/karpathy/tinyllamas), read from $PARLEY_DATA/llama or --llama. Its weights stay as they are; only
adapters train and travel. With another model write its folder of transformers in place of `folder`. A few minutes.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import parley as pl
from parley.data import Sorted, multinli
from parley.data.fetch import cache_dir
from parley.models.hugging_face import HfCausal
from parley.models.llama2c import convert_llama2c
from parley.training.schedules import Inverse

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument(
    "--llama", type=Path, default=cache_dir() / "llama", help="folder of stories260K.bin and tok512.bin"
)
parser.add_argument("--rounds", type=int, default=40, help="rounds of five local steps")
chosen = parser.parse_args()
if not (chosen.llama / "stories260K.bin").is_file():
    raise SystemExit(f"there is no stories260K.bin in {chosen.llama}; --llama names another folder.")

with TemporaryDirectory() as folder:
    convert_llama2c(chosen.llama / "stories260K.bin", chosen.llama / "tok512.bin", folder)
    data = multinli(length=48, targets="next-token", tokenizer=folder)
    federation = data.split(Sorted(by="group"), clients=5, seed=0)
    model = HfCausal(folder, lora={"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]})
    common = {"lr": 0.05, "steps": 5, "batch": 16, "optimizer": "adamw", "schedule": Inverse()}
    for name, alpha in (("FedAvg", 1), ("FedALS", 10)):
        run = pl.train(
            pl.FedALS(alpha=alpha, layers=4, **common),
            federation,
            model=model,
            rounds=chosen.rounds,
            name=name,
            evaluation=pl.Evaluation(every=10, metric="loss", batch=250),
            progress=True,
        )
        sent = run.total("up/bytes") / len(federation) / 1e6
        first, last = run.series("central/loss")[1][[0, -1]]
        print(f"{name}: test loss {first:.3f}, after {chosen.rounds} rounds {last:.3f}; {sent:.2f} MB up per client")
