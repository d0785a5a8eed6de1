"""Measures an exported model on the held-out text and draws its loss curve.

    python -m models.train.report models/train/small.json models/small

Reads the run directory of the same configuration; prints one JSON object and writes `loss.png`
beside the weights. Everything is measured on the exported file, so after rounding to bfloat16.
"""

import argparse
import json
import math
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from models.train.acceptance import acceptance
from models.train.chart import draw_chart
from models.train.corpus import fetch_archive, read_documents, split_documents
from models.train.evaluate import bits_per_byte, greedy, held_out_loss
from models.train.model import NemotronH
from models.train.tokenizer import encode_corpus

PROMPTS = [
    "My fellow citizens,",
    "The state of the Union is",
    "The Secretary of the Treasury reports that",
    "I recommend to the Congress",
    "Tonight, I ask",
]
PREFIX, CONTINUED, PREFIXES_PER_DOCUMENT = 128, 64, 4


def load_exported(directory: Path, config: dict) -> tuple[NemotronH, Tokenizer]:
    """The exported model in float32, ready to evaluate, and its tokenizer."""
    model = NemotronH(config["model"])
    model.load_state_dict(load_file(directory / "model.safetensors"))
    return model.eval(), Tokenizer.from_file(str(directory / "tokenizer.json"))


def curves(journal: Path) -> dict[str, list[tuple[float, float]]]:
    """Training loss (mean of each 20 steps) and held-out loss against the step."""
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    trained = {r["step"]: r["next"] for r in records if "next" in r}
    steps = sorted(trained)
    smooth = []
    for i in range(0, len(steps), 2):
        part = steps[i : i + 2]
        smooth.append((part[-1], sum(trained[s] for s in part) / len(part)))
    held_out = {r["step"]: r["held_out"] for r in records if "held_out" in r}
    return {"training": smooth, "held-out": sorted(held_out.items())}


def draft_shares(model: NemotronH, held_out: list[torch.Tensor]) -> dict:
    """Greedy acceptance of the MTP head from prefixes spread over the held-out documents."""
    prefixes = []
    for document in held_out:
        room = len(document) - PREFIX
        for i in range(PREFIXES_PER_DOCUMENT):
            start = room * i // PREFIXES_PER_DOCUMENT
            prefixes.append(document[start : start + PREFIX])
    shares, positions = acceptance(model, torch.stack(prefixes), CONTINUED)
    first, second = (round(s, 4) for s in shares)
    return {"accepted_1": first, "accepted_2": second, "positions": positions}


def report(config: dict, run: Path, output: Path) -> dict:
    """Every measured number of the model card."""
    documents = read_documents(fetch_archive(run.parent))
    train, held_out = split_documents(documents, config["held_out_documents"], config["seed"])
    model, tokenizer = load_exported(output, config)
    encoded = encode_corpus(tokenizer, held_out, 0, config["seed"])
    nats, tokens = held_out_loss(model, encoded, config["length"])
    size = sum(len(d.encode()) for d in held_out)
    result = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "weights_bytes": (output / "model.safetensors").stat().st_size,
        "training_documents": len(train),
        "training_bytes": sum(len(d.encode()) for d in train),
        "held_out_documents": len(held_out),
        "held_out_bytes": size,
        "held_out_tokens": tokens,
        "held_out_nats_per_token": round(nats, 4),
        "held_out_perplexity_per_token": round(math.exp(nats), 2),
        "held_out_bits_per_byte": round(bits_per_byte(nats, tokens, size), 4),
        "samples": [greedy(model, tokenizer, prompt, 60) for prompt in PROMPTS],
    }
    if config["model"].get("num_nextn_predict_layers"):
        result["drafts"] = draft_shares(model, encoded)
    draw_chart(output / "loss.png", curves(run / "log.jsonl"), "step", "loss in nats per token")
    return result


def main() -> None:
    """Reads the command line and reports."""
    parser = argparse.ArgumentParser(prog="python -m models.train.report", description=__doc__)
    parser.add_argument("config", type=Path, help="training configuration, a JSON file")
    parser.add_argument("output", type=Path, help="directory of the exported model")
    parser.add_argument(
        "--runs", type=Path, default=Path("models/train/runs"), help="run directories"
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    config = json.loads(args.config.read_text())
    result = report(config, args.runs / args.config.stem, args.output)
    print(json.dumps(result, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
