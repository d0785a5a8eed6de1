"""`coachwhip generate`: text from a prompt."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import RequestError
from ..hub import is_hub_id
from .engine_flags import engine_flags
from .sampling_flags import sampling_flags, take_sampling

if TYPE_CHECKING:
    from ..metrics import Metrics
    from ..outputs import RequestOutput

DEFAULT_PROMPT = "The state of the Union is"
"""Shows the small model at work when no prompt is given."""


@click.command()
@click.argument("words", nargs=-1, metavar="[MODEL] [PROMPT]")
@click.option(
    "--model", "model_flag", help="A checkpoint's folder or a hub id (instead of the argument)."
)
@click.option(
    "--prompt-ids",
    multiple=True,
    metavar="1,2,3",
    help="A prompt as token ids; repeat it for several prompts.",
)
@click.option("--max-tokens", type=int, default=64, show_default=True, help="Most tokens.")
@click.option("--stop", multiple=True, help="A string that ends the text; up to four.")
@click.option("--ignore-eos", is_flag=True, help="Go on past the model's end tokens.")
@click.option("--logprobs", type=int, help="With --json: log probabilities of the N likeliest.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per prompt and line.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@sampling_flags
@engine_flags
def generate(
    words: tuple[str, ...],
    model_flag: str | None,
    prompt_ids: tuple[str, ...],
    max_tokens: int,
    stop: tuple[str, ...],
    ignore_eos: bool,
    logprobs: int | None,
    as_json: bool,
    debug: bool,
    **options,
) -> None:
    """Write text that continues PROMPT.

    MODEL is the folder of a checkpoint or a hub id (org/name); without it the small model that
    ships with coachwhip is used. A single argument is the model if it is a folder, begins like a
    path (/, ./, ../, ~) or is spelled like a hub id, else the prompt. A PROMPT of - is read from
    standard input. With speculation, a last line on standard error says what drafts brought.
    """
    model, prompt = _model_and_prompt(words, model_flag, bool(prompt_ids))
    prompts: list = [] if prompt is None else [prompt]
    prompts += [{"prompt_token_ids": _ids(text)} for text in prompt_ids]
    from ..sampling.params import SamplingParams

    params = SamplingParams(
        max_tokens=max_tokens,
        stop=stop,
        ignore_eos=ignore_eos,
        logprobs=logprobs,
        **take_sampling(options),
    )
    # MAX takes a second to import: bad arguments above are answered without it.
    from ..llm import LLM

    def check(llm: LLM) -> None:
        for one in prompts:
            llm.check(one, params)

    llm = LLM(model=model, on_warning=_warn, before_load=check, **options)
    if as_json:
        for output in llm.generate(prompts, params):
            print(json.dumps(_record(output)), flush=True)
        return
    outputs = [_print_streaming(llm, one, params) for one in prompts]
    if llm.engine.speculator is not None:
        print(f"coachwhip: {_drafts_in_short(outputs, llm.metrics())}", file=sys.stderr)


def _model_and_prompt(
    words: tuple[str, ...], model_flag: str | None, has_ids: bool
) -> tuple[str | None, str | None]:
    """Tells model and prompt apart; the default prompt only where there is no other."""
    if len(words) > (1 if model_flag else 2):
        raise click.UsageError(
            "give at most a model and a prompt; put quotes around a prompt of several words"
        )
    model, prompt = model_flag, None
    if len(words) == 2:
        model, prompt = words
    elif len(words) == 1:
        if model_flag is None and (has_ids or _looks_like_a_model(words[0])):
            model = words[0]
        else:
            prompt = words[0]
    if prompt == "-":
        prompt = sys.stdin.buffer.read().decode("utf-8", errors="replace")
    if prompt is None and not has_ids:
        prompt = DEFAULT_PROMPT
    return model, prompt


def _looks_like_a_model(word: str) -> bool:
    return (
        word.startswith(("/", "./", "../", "~"))
        or is_hub_id(word)
        or (word not in ("", "-") and Path(word).is_dir())
    )


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise RequestError(
            "--prompt-ids", text, "give whole numbers with commas between them"
        ) from None


def _print_streaming(llm, prompt, params) -> RequestOutput:
    """Prints a prompt and its text as it comes, or token ids where the model has no tokenizer."""
    started, shown = False, 0
    for output in llm.stream(prompt, params):
        completion = output.outputs[0]
        if not started and output.prompt is not None:
            print(output.prompt, end="", flush=True)
        started = True
        # With drafts a step may bring several tokens.
        if llm.engine.tokenizer is None:
            new = completion.token_ids[shown:]
            print(*new, end=" ", flush=True)
        else:
            # A stop string may have begun in what is held back: show it when it is settled.
            hold = 0 if output.finished else max(map(len, params.stop), default=1) - 1
            new = completion.text[shown : max(shown, len(completion.text) - hold)]
            print(new, end="", flush=True)
        shown += len(new)
    print(flush=True)
    return output


def _drafts_in_short(outputs: list[RequestOutput], metrics: Metrics) -> str:
    """Returns a line on what drafts brought, and how fast the texts came with them."""
    tokens = sum(len(o.outputs[0].token_ids) for o in outputs)
    seconds = sum(o.metrics["total"] for o in outputs)
    line = (
        f"{sum(o.num_drafted_tokens for o in outputs)} tokens drafted, "
        f"{sum(o.num_accepted_tokens for o in outputs)} accepted, "
        f"acceptance length {metrics.acceptance_length:.2f}, {tokens / seconds:.1f} tokens/s"
    )
    if times := metrics.spec_decode_times_off:
        line += f"; drafts did not pay and were left off {times} time{'s' * (times > 1)}"
    return line


def _record(output) -> dict:
    completion = output.outputs[0]
    record = {
        "prompt_token_ids": output.prompt_token_ids,
        "token_ids": completion.token_ids,
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "num_cached_tokens": output.num_cached_tokens,
        "num_drafted_tokens": output.num_drafted_tokens,
        "num_accepted_tokens": output.num_accepted_tokens,
        "metrics": output.metrics,
    }
    if completion.logprobs is not None:
        record["logprobs"] = completion.logprobs
    return record


def _warn(line: str) -> None:
    print(f"coachwhip: warning: {line}", file=sys.stderr)
