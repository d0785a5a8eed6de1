"""`coachwhip chat`: a conversation in the terminal."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from ..errors import EngineError, RequestError
from .engine_flags import engine_flags
from .sampling_flags import sampling_flags, take_sampling

_HELP = "/reset starts anew, /exit or Ctrl-D ends, Ctrl-C stops an answer"


@click.command()
@click.argument("model", required=False)
@click.option("--model", "model_flag", help="A checkpoint's folder or a hub id, as the argument.")
@click.option("--system", metavar="TEXT", help="A system message ahead of the conversation.")
@click.option(
    "--max-tokens", type=int, default=256, show_default=True, help="Most tokens of an answer."
)
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@sampling_flags
@engine_flags
def chat(
    model: str | None,
    model_flag: str | None,
    system: str | None,
    max_tokens: int,
    debug: bool,
    **options,
) -> None:
    """Hold a conversation: each line is a turn, and the model sees all turns before it.

    MODEL is the folder of a checkpoint or a hub id (org/name); without it the small model that
    ships with coachwhip is used. /reset starts a new conversation, /exit or Ctrl-D ends, Ctrl-C
    stops an answer and keeps what there is of it.
    """
    if model and model_flag:
        raise click.UsageError("give the model once: as the argument or with --model")
    from ..sampling.params import SamplingParams

    params = SamplingParams(max_tokens=max_tokens, **take_sampling(options))
    # MAX takes a second to import: bad arguments above are answered without it.
    from ..llm import LLM

    start = [] if system is None else [{"role": "system", "content": system}]

    def check(llm: LLM) -> None:
        """Says before weights load that a model cannot chat, or not with this system message."""
        _, ids = llm.tokenize_chat([*start, {"role": "user", "content": "hello"}])
        llm.engine.check_request(ids, params)

    llm = LLM(model=model_flag or model, on_warning=_warn, before_load=check, **options)
    messages = list(start)
    for line in _lines():
        if line == "/exit":
            break
        if line == "/reset":
            messages = list(start)
        elif line.startswith("/"):
            _say(f"there is no command {line.split()[0]}; {_HELP}")
        elif line:
            _turn(llm, messages, line, params)


def _lines() -> Iterator[str]:
    """Yields what the user types, line by line, from a terminal or a pipe."""
    sys.stdin.reconfigure(errors="replace")
    if not sys.stdin.isatty():
        for line in iter(sys.stdin.readline, ""):
            yield line.strip()
        return
    import readline  # noqa: F401 - gives input() a history and editing

    _say(_HELP)
    while True:
        try:
            line = input("> ")
        except EOFError:
            print()
            return
        yield line.strip()


def _turn(llm, messages: list[dict], line: str, params) -> None:
    """Answers a line; the conversation grows by both, or stays as it was when there is no answer.

    Args:
        llm: The model.
        messages: The conversation so far, extended in place.
        line: What the user says.
        params: How to answer.
    """
    asked = [*messages, {"role": "user", "content": line}]
    limit = llm.engine.config.max_model_len
    try:
        text, ids = llm.tokenize_chat(asked)
        if len(ids) >= limit:
            _say(
                f"the conversation would have {len(ids)} tokens, but max_model_len is {limit}; "
                "say something shorter, or /reset"
            )
            return
        answer, count = _answer(llm.engine, text, ids, params)
    except RequestError as error:
        _say(str(error))
        return
    if answer.strip():
        messages[:] = [*asked, {"role": "assistant", "content": answer}]
    if len(ids) + count >= limit:
        _say(f"the answer ends where max_model_len, {limit}, is reached; /reset starts anew")


def _answer(engine, text: str, ids: list[int], params) -> tuple[str, int]:
    """Prints an answer as it comes; returns its text and its tokens."""
    answer, count, shown = "", 0, 0
    with _interruptible() as stopped:
        engine.add_request("chat", ids, params, text)
        try:
            while engine.has_unfinished and not stopped():
                for output in engine.step():
                    answer, count = output.outputs[0].text, len(output.outputs[0].token_ids)
                    if output.error:
                        raise EngineError(output.error)
                # Space before the first word belongs to the tokens, not to what is read.
                begin = max(shown, len(answer) - len(answer.lstrip()))
                print(answer[begin:], end="", flush=True)
                shown = len(answer)
        finally:
            engine.abort("chat")
    print(flush=True)
    return answer, count


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Makes the first Ctrl-C a wish, which the yielded function tells; the second interrupts.

    A wish, since an exception in the midst of a step would leave slots and pages half changed.
    """
    wishes = 0

    def on_interrupt(signum: int, frame: object) -> None:
        nonlocal wishes
        wishes += 1
        if wishes > 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield lambda: wishes > 0
    finally:
        signal.signal(signal.SIGINT, before)


def _say(line: str) -> None:
    print(f"coachwhip: {line}", file=sys.stderr, flush=True)


def _warn(line: str) -> None:
    _say(f"warning: {line}")
