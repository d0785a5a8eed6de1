"""A drafter that knows the text, and is wrong where a script says so."""

from __future__ import annotations

from collections.abc import Callable


class ScriptedDrafter:
    """Proposes the true continuation up to a wrong token.

    Args:
        texts: Request id -> prompt and text that the model gives without drafts.
        script: (request id, tokens so far, drafts asked for) -> (right drafts, drafts in all).
        vocab: Size of the vocabulary.
    """

    def __init__(
        self,
        texts: dict[str, list[int]],
        script: Callable[[str, int, int], tuple[int, int]],
        vocab: int = 512,
    ) -> None:
        self.texts, self.script, self.vocab = texts, script, vocab
        self.asked: list[tuple[str, int, int]] = []

    def propose(self, request_id: str, token_ids: list[int], k: int) -> list[int]:
        text = self.texts[request_id]
        assert token_ids == text[: len(token_ids)], (
            "the text is not what it would be without drafts"
        )
        self.asked.append((request_id, len(token_ids), k))
        right, count = self.script(request_id, len(token_ids), k)
        drafts = text[len(token_ids) :][:count]
        # Beyond the text any token may be wrong or right; it must not matter.
        drafts += [0] * (count - len(drafts))
        if right < len(drafts):
            drafts[right] = (drafts[right] + 1) % self.vocab
        return drafts[:k]
