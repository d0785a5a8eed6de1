"""`Guide`: its masks against every token tried one by one, over texts, drafts and ends."""

import numpy as np
import pytest
from llguidance import LLParserLimits

from coachwhip import Grammar
from coachwhip.sampling.guidance import Guidance
from coachwhip.sampling.guide import NOTHING_LEFT, Guide
from coachwhip.tokenizer import Tokenizer
from tests.reference.byte_tokenizer import save_byte_tokenizer

END, TURN_END = 2, 3
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["the", "x"]}, "b": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
CASES = {
    "schema": (Grammar("json_schema", SCHEMA), '{"a": "the", "b": 12}', True),
    "regex that may go on": (Grammar("regex", "(th|x)+e?x*"), "ththexx", False),
    "choice": (Grammar("choice", ["true", "trap", "é"]), "é", True),
    "lark": (Grammar("lark", 'start: "(" (start | "12") ")"'), "((12))", True),
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_byte_tokenizer(folder)
    return Tokenizer.beside(folder)


@pytest.fixture(scope="module", params=[512, 300, 279, 270], ids=lambda v: f"vocab {v}")
def vocab(request) -> int:
    """Above the tokenizer's own size, and below it."""
    return request.param


@pytest.fixture(scope="module")
def guidance(tokenizer, vocab) -> Guidance:
    return Guidance(tokenizer, vocab, [END])


def bits(mask: np.ndarray, vocab: int) -> set[int]:
    """Returns the tokens that a mask allows; nothing lies past its end."""
    assert mask.dtype == np.int32 and mask.shape == (-(-vocab // 32),)
    found = set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())
    assert not found or max(found) < vocab
    return found


def one_by_one(guide: Guide, vocab: int, drafts: tuple[int, ...] = ()) -> set[int]:
    """Returns the tokens of which each is taken after the drafts."""
    return {t for t in range(vocab) if guide.allowed((*drafts, t)) == len(drafts) + 1}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_mask_allows_what_the_grammar_takes(guidance, tokenizer, vocab, case):
    grammar, text, ends = case
    guide = guidance.guide(grammar)
    tokens = tokenizer.encode(text)
    if max(tokens) >= vocab:
        tokens = [t for character in text for t in tokenizer.encode(character)]
    for token in tokens:
        allowed = bits(guide.mask(), vocab)
        taken = one_by_one(guide, vocab)
        # Where the next characters are the only ones, it is the usual token for them alone.
        assert allowed == taken or (len(allowed) == 1 and allowed < taken)
        assert token in allowed and guide.refusal(token) is None
        assert not guide.ended
        guide.append(token)
    assert guide.ended is ends
    assert ends or END in bits(guide.mask(), vocab)


def test_the_masks_of_a_json_object_are_known(tokenizer):
    """By hand, so that the library's own answers are not all there is to compare with."""
    guide = Guidance(tokenizer, 512, [END]).guide(Grammar("json_schema", SCHEMA))

    def spelled() -> set[str]:
        names = {i: name for name, i in tokenizer.vocabulary().items()}
        return {names[t] for t in bits(guide.mask(), 512)}

    assert spelled() == {"{", '{"'}
    guide.append(tokenizer.encode('{"')[0])
    assert spelled() == {"a"}
    guide.append(tokenizer.encode("a")[0])
    assert spelled() == {'"', '":'}
    guide.append(tokenizer.encode('":')[0])
    assert spelled() == {'"', "Ġ", "Ċ", "č"}  # a space, or a new line
    for token in tokenizer.encode('"x"'):
        guide.append(token)
    assert spelled() == {",", "}", "Ġ", "Ċ", "č"}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_drafts_move_the_mask_and_not_the_guide(tokenizer, case):
    """The mask after drafts is that of a guide whose text they are."""
    grammar, text, _ = case
    guidance, tokens = Guidance(tokenizer, 512, [END]), tokenizer.encode(text)
    for begin in range(len(tokens)):
        guide = guidance.guide(grammar)
        for token in tokens[:begin]:
            guide.append(token)
        for end in range(len(tokens), begin - 1, -1):
            other = guidance.guide(grammar)
            for token in tokens[:end]:
                other.append(token)
            mask, want = guide.mask(tokens[begin:end]), other.mask()
            assert (mask is None) == other.ended == (want is None)
            assert mask is None or mask.tolist() == want.tolist()
            assert guide.allowed(tokens[begin:end]) == end - begin


def test_drafts_after_a_wrong_one_need_no_mask(tokenizer):
    guide = Guidance(tokenizer, 512, [END]).guide(Grammar("choice", ["true", "trap"]))
    tr, a, u = tokenizer.encode("tr") + tokenizer.encode("a") + tokenizer.encode("u")
    assert guide.mask([tr, a]) is not None
    for drafts, right in (([a, u], 0), ([tr, tr], 1), ([tr, a, u], 2), ([END], 0), ([tr, 511], 1)):
        assert guide.mask(drafts) is None
        assert guide.allowed(drafts) == right
    assert guide.allowed([]) == 0
    assert guide.refusal(a) == NOTHING_LEFT and guide.refusal(tr) is None


def test_ends_are_allowed_where_the_text_may_end(tokenizer):
    """The model's, and stop tokens without a text; a stop token with one only as the grammar's."""
    guidance, x = Guidance(tokenizer, 512, [END]), tokenizer.encode("x")[0]
    grammar = Grammar("regex", "x{1,3}")
    for ignore_eos, stops, want in (
        (False, (), {END}),
        (True, (), set()),
        (False, (TURN_END, 40), {END, TURN_END}),
        (True, (TURN_END, x), {TURN_END}),
        (True, (END,), {END}),
    ):
        guide = guidance.guide(grammar, ignore_eos=ignore_eos, stop_token_ids=stops)
        assert bits(guide.mask(), 512) == {x}
        assert guide.refusal(END) and guide.refusal(TURN_END)
        guide.append(x)
        assert bits(guide.mask(), 512) == {x, *want}
        assert bits(guide.mask([x]), 512) == {x, *want}
        for end in want:
            assert guide.refusal(end) is None
            assert guide.allowed([x, end, x]) == 2
            assert guide.mask([end]) is None
        assert not guide.ended
        guide.append(x)
        guide.append(x)
        assert guide.ended and guide.mask() is None and guide.refusal(x)


def test_several_end_tokens(tokenizer):
    guide = Guidance(tokenizer, 512, [END, TURN_END, 600]).guide(Grammar("regex", "x*"))
    assert {END, TURN_END} < bits(guide.mask(), 512)
    guide.append(TURN_END)
    assert not guide.ended  # it is the end token that ends the text


def test_guides_of_one_grammar_are_apart(tokenizer):
    guidance, grammar = Guidance(tokenizer, 512, [END]), Grammar("choice", ["true", "x"])
    first, second = guidance.guide(grammar), guidance.guide(grammar)
    first.append(tokenizer.encode("x")[0])
    assert first.ended and not second.ended
    assert bits(second.mask(), 512) == bits(guidance.guide(grammar).mask(), 512)


def test_a_grammar_that_grows_too_complex_ends_with_a_reason(tokenizer):
    """More ways to read a text with every token: past the library's limits, and nothing crashes."""
    grammar = Grammar("lark", 'start: s\ns: s s | s s s | "x"\n')
    limits = LLParserLimits(max_items_in_row=100)
    guide = Guidance(tokenizer, 512, [END], limits).guide(grammar)
    x, reason = tokenizer.encode("x")[0], None
    for _ in range(100):
        guide.mask()
        reason = guide.refusal(x)
        if reason is not None:
            break
        guide.append(x)
    assert reason is not None and "too complex" in reason and len(reason.splitlines()) == 1
    assert not guide.ended and guide.mask([x]) is None and guide.allowed([x]) == 0


def test_states_that_other_texts_needed_end_no_text(tokenizer):
    """Texts of one grammar share the states of its lexer; when these are full, all go on anew."""
    grammar = Grammar("regex", "(.*a.{12}|.*b.{11}|.*c.{10})")
    full = Guidance(tokenizer, 512, [END], LLParserLimits(max_lexer_states=4000))
    draw, letters = np.random.default_rng(0), [tokenizer.encode(c)[0] for c in "abcd"]
    compiled = set()
    early, free = full.guide(grammar), Guidance(tokenizer, 512, [END]).guide(grammar)
    for _ in range(30):
        guide = full.guide(grammar)
        for token in draw.choice(letters, 40).tolist():
            guide.mask()
            assert guide.refusal(token) is None
            guide.append(token)
        compiled.update(map(id, full._compiled.values()))
        token = int(draw.choice(letters))
        assert early.refusal(token) is None
        for one in (early, free):
            one.append(token)
        assert early.mask().tolist() == free.mask().tolist()
        assert early.mask(letters[:2]).tolist() == free.mask(letters[:2]).tolist()
    assert len(compiled) > 1
