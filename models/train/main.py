"""Trains a model from one configuration file and exports it.

    python -m models.train models/train/small.json models/small

The run directory, `models/train/runs/<configuration name>`, keeps the tokenizer, the log and a
checkpoint; started again, the program goes on from the checkpoint.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer

from models.train.batches import Batches
from models.train.corpus import fetch_archive, read_documents, split_documents
from models.train.evaluate import greedy, held_out_loss
from models.train.export import export
from models.train.loss import joint_loss
from models.train.model import NemotronH
from models.train.optimizer import Optimizers
from models.train.tokenizer import encode_corpus, train_tokenizer

PROMPT = "My fellow citizens,"


class Trainer:
    """The state of one run: model, optimizers, batches and the number of finished steps."""

    def __init__(self, config: dict, train_documents: list[torch.Tensor]):
        torch.manual_seed(config["seed"])
        self.config = config
        self.model = NemotronH(config["model"])
        self.optimizers = Optimizers(self.model, config)
        self.batches = Batches(
            train_documents, config["length"], config["batch_size"], config["seed"]
        )
        self.finished = 0

    def step(self) -> dict[str, float]:
        """One optimizer step; returns the losses in nats per token."""
        config = self.config
        batch = self.batches.batch(self.finished)
        with torch.autocast("cpu", torch.bfloat16, enabled=config.get("bfloat16", True)):
            losses = joint_loss(
                self.model, batch, config.get("mtp_weight", 0.0), config.get("mtp_depths", 0)
            )
        losses["total"].backward()
        self.optimizers.step(self.finished)
        for router in self.model.routers():
            router.rebalance(config["balance_speed"])
        self.finished += 1
        return {name: float(value.detach()) for name, value in losses.items()}

    def save(self, path: Path) -> None:
        """Writes the checkpoint; an older one stays whole until the new one is complete."""
        partial = path.with_suffix(".partial")
        state = {
            "model": self.model.state_dict(),
            "optimizers": self.optimizers.state_dict(),
            "finished": self.finished,
        }
        torch.save(state, partial)
        partial.replace(path)

    def load(self, path: Path) -> None:
        """Goes back to a checkpoint of the same configuration."""
        state = torch.load(path)
        self.model.load_state_dict(state["model"])
        self.optimizers.load_state_dict(state["optimizers"])
        self.finished = state["finished"]


def prepare(config: dict, run: Path) -> tuple[Tokenizer, list[torch.Tensor], list[torch.Tensor]]:
    """The tokenizer (trained once per run directory) and the encoded documents of both parts."""
    documents = read_documents(fetch_archive(run.parent))
    train, held_out = split_documents(documents, config["held_out_documents"], config["seed"])
    path = run / "tokenizer.json"
    if path.exists():
        tokenizer = Tokenizer.from_file(str(path))
    else:
        tokenizer = train_tokenizer(train, config["model"]["vocab_size"])
        tokenizer.save(str(path))
    encoded = encode_corpus(tokenizer, train, config["prompt_breaks_every"], config["seed"])
    return tokenizer, encoded, encode_corpus(tokenizer, held_out, 0, config["seed"])


def log(path: Path, record: dict) -> None:
    """Appends one line of JSON and prints it."""
    line = json.dumps(record)
    with path.open("a") as file:
        file.write(line + "\n")
    print(line, flush=True)


def train(config: dict, run: Path, output: Path, stop_after: int | None = None) -> None:
    """Runs the remaining steps, exporting every `export_every` steps and at the end."""
    run.mkdir(parents=True, exist_ok=True)
    tokenizer, documents, held_out = prepare(config, run)
    trainer = Trainer(config, documents)
    checkpoint, journal = run / "checkpoint.pt", run / "log.jsonl"
    if checkpoint.exists():
        trainer.load(checkpoint)
    tokens = config["batch_size"] * config["length"]
    last = min(config["steps"], stop_after or config["steps"])
    since, start = trainer.finished, time.monotonic()
    while trainer.finished < last:
        losses = trainer.step()
        step = trainer.finished
        if step % 10 == 0 or step == last:
            rate = (step - since) * tokens / (time.monotonic() - start)
            record = {"step": step, **{k: round(v, 4) for k, v in losses.items()}}
            log(journal, {**record, "tokens_per_second": round(rate)})
        if step % config["export_every"] == 0 or step == last:
            trainer.save(checkpoint)
            trainer.model.eval()
            export(trainer.model, tokenizer, output)
            loss, _ = held_out_loss(trainer.model, held_out, config["length"], limit=24)
            sample = greedy(trainer.model, tokenizer, PROMPT, 40)
            log(journal, {"step": step, "held_out": round(loss, 4), "sample": sample})
            trainer.model.train()


def main() -> None:
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser(prog="python -m models.train", description=__doc__)
    parser.add_argument("config", type=Path, help="training configuration, a JSON file")
    parser.add_argument("output", type=Path, help="directory for the exported model")
    parser.add_argument(
        "--runs", type=Path, default=Path("models/train/runs"), help="run directories"
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--stop-after", type=int, help="stop early, after this many steps")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    config = json.loads(args.config.read_text())
    train(config, args.runs / args.config.stem, args.output, args.stop_after)


if __name__ == "__main__":
    main()
