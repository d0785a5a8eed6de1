"""Records what transformers makes of the chat cases.

    python -m tests.reference.golden.make_chat_templates

Needs transformers 5.24 and no network.
"""

from __future__ import annotations

import json
from pathlib import Path

import transformers
from tokenizers import Tokenizer, models

from tests.reference.chat_cases import CASES, TOKENS

FILE = Path(__file__).with_name("chat_templates.json")


def rendered(case: dict) -> str:
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, "a")),
        chat_template=case["template"],
        **TOKENS,
    )
    return tokenizer.apply_chat_template(
        case["messages"],
        tools=case.get("tools"),
        add_generation_prompt=case.get("add_generation_prompt", True),
        tokenize=False,
        **case.get("variables", {}),
    )


if __name__ == "__main__":
    texts = {name: rendered(case) for name, case in CASES.items()}
    record = {"transformers": transformers.__version__, "texts": texts}
    FILE.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", "utf-8")
