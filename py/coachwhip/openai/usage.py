"""What a response says about its tokens."""

from __future__ import annotations

from collections.abc import Sequence

from ..outputs import RequestOutput


def usage(outputs: Sequence[RequestOutput], choices: int) -> dict[str, object]:
    """Returns OpenAI's usage object.

    A prompt counts once, however many texts were asked for, and so do its cached tokens: those of
    its first text. Drafted tokens count for all texts.

    Args:
        outputs: Of all texts of all prompts, those of one prompt together.
        choices: Texts of each prompt.
    """
    first = outputs[::choices]
    prompt = sum(len(output.prompt_token_ids) for output in first)
    completion = sum(len(output.outputs[0].token_ids) for output in outputs)
    accepted = sum(output.num_accepted_tokens for output in outputs)
    drafted = sum(output.num_drafted_tokens for output in outputs)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": sum(output.num_cached_tokens for output in first)
        },
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
    }
