"""What the engine's drafter proposes after a prompt."""

from __future__ import annotations

from coachwhip import LLM, SamplingParams


def drafts_after(llm: LLM, prompt: list[int], count: int) -> tuple[int, list[int]]:
    """Returns a prompt's next token and the drafts after it; nothing is left in the engine.

    Args:
        llm: With speculation, of at least `count` drafts, that does not adapt.
        prompt: Token ids.
        count: Number of drafts.
    """
    params = SamplingParams(
        max_tokens=count + 2,
        ignore_eos=True,
        speculative_config={"num_speculative_tokens": count},
    )
    output = llm.engine.add_request("drafts", prompt, params)
    while not output.outputs[0].token_ids:
        llm.engine.step()
    drafts = list(llm.engine.scheduler.running["drafts"].drafts)
    llm.engine.abort("drafts")
    return output.outputs[0].token_ids[0], drafts
