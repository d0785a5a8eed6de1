"""`speculative_config` and its short forms: what is taken, and what is refused in one line."""

import math

import pytest

from coachwhip.config import EngineOptions
from coachwhip.config.speculation import MOST_DRAFTS, Speculation, resolve_speculation
from coachwhip.errors import ConfigError
from tests.checkpoint.parsed_configs import spec_of
from tests.reference.tiny_configs import TINY_CONFIGS

PLAIN = spec_of(TINY_CONFIGS["nemotron_dense"])
HEAD = spec_of(TINY_CONFIGS["nemotron_latent_mtp"])
NUMBER = "num_speculative_tokens"


class Silent:
    def propose(self, request_id, token_ids, k):
        return []


def resolved(spec=PLAIN, length=512, **options):
    """Returns what options ask for, and the warnings."""
    return resolve_speculation(spec, EngineOptions(**options), length)


def refused(spec=PLAIN, length=512, **options) -> str:
    with pytest.raises(ConfigError) as caught:
        resolved(spec, length, **options)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def config(method: str | None = "ngram", number: object = 3, **more: object) -> dict:
    given = {} if method is None else {"method": method}
    return {**given, NUMBER: number, **more}


@pytest.mark.parametrize(
    "spec, options, want",
    [
        (PLAIN, {}, None),
        (HEAD, {}, None),  # a head alone asks for nothing
        (PLAIN, {"speculative_config": config()}, Speculation("ngram", 3)),
        (PLAIN, {"speculative_config": config(number=1)}, Speculation("ngram", 1)),
        (PLAIN, {"speculative_config": config(number=MOST_DRAFTS)}, Speculation("ngram", 32)),
        (
            PLAIN,
            {"speculative_config": config(adaptive=False)},
            Speculation("ngram", 3, adaptive=False),
        ),
        (
            PLAIN,
            {"speculative_config": config(prompt_lookup_min=2, prompt_lookup_max=3)},
            Speculation("ngram", 3, prompt_lookup_min=2, prompt_lookup_max=3),
        ),
        (
            PLAIN,
            {"speculative_config": config(prompt_lookup_min=6)},
            Speculation("ngram", 3, prompt_lookup_min=6, prompt_lookup_max=6),
        ),
        (HEAD, {"speculative_config": config("mtp")}, Speculation("mtp", 3)),
        (HEAD, {"speculative_config": config(None)}, Speculation("mtp", 3)),
        (
            PLAIN,
            {"speculative_config": config("draft_model", model="org/small")},
            Speculation("draft_model", 3, model="org/small"),
        ),
        (
            PLAIN,
            {"speculative_config": config("custom"), "drafter": Silent()},
            Speculation("custom", 3),
        ),
        (PLAIN, {"spec_method": "ngram", "spec_tokens": 2}, Speculation("ngram", 2)),
        (HEAD, {"spec_tokens": 2}, Speculation("mtp", 2)),
        (
            PLAIN,
            {"spec_method": "draft_model", "spec_tokens": 2, "spec_model": "org/small"},
            Speculation("draft_model", 2, model="org/small"),
        ),
        (
            PLAIN,
            {"speculative_config": {"method": "ngram"}, "spec_tokens": 4},
            Speculation("ngram", 4),
        ),
        # Said twice, and the same.
        (PLAIN, {"speculative_config": config(), "spec_tokens": 3}, Speculation("ngram", 3)),
    ],
)
def test_what_options_ask_for(spec, options, want):
    assert resolved(spec, **options) == (want, ())


@pytest.mark.parametrize(
    "spec, options, start, hint",
    [
        (
            PLAIN,
            {"speculative_config": config(num_spec_tokens=3)},
            "speculative_config.num_spec_tokens is 3, but must be one of the keys method, ",
            "did you mean num_speculative_tokens?",
        ),
        (
            PLAIN,
            {"speculative_config": config(zebra=1)},
            "speculative_config.zebra is 1, ",
            "leave it out",
        ),
        (
            PLAIN,
            {"speculative_config": config("n-gram")},
            'speculative_config.method is "n-gram", but must be mtp or ngram or draft_model or ',
            "did you mean ngram?",
        ),
        (
            PLAIN,
            {"speculative_config": config("eagle")},
            'speculative_config.method is "eagle", ',
            "ngram needs neither a head nor a second model",
        ),
        (
            PLAIN,
            {"speculative_config": config(["mtp"])},
            'speculative_config.method is ["mtp"], ',
            "did you mean mtp?",
        ),
        (
            PLAIN,
            {"speculative_config": config(None)},
            "speculative_config.method is missing, ",
            "ngram needs",
        ),
        (
            PLAIN,
            {"speculative_config": {}},
            "speculative_config.method is missing, ",
            "ngram needs",
        ),
        (
            PLAIN,
            {"speculative_config": "ngram"},
            'speculative_config is "ngram", but must be a JSON object',
            '{"method": "mtp", "num_speculative_tokens": 3}',
        ),
        (
            PLAIN,
            {"spec_method": "ngram"},
            "speculative_config.num_speculative_tokens is missing, but must be 1 to 32",
            "3 is a good start",
        ),
        (
            PLAIN,
            {"speculative_config": config("mtp")},
            'speculative_config.method is "mtp", but must be ngram, draft_model or custom, since',
            "ngram needs nothing beside the model",
        ),
        (
            PLAIN,
            {"speculative_config": config("draft_model")},
            "speculative_config.model is missing, but must be a folder or hub id",
            "name the draft model",
        ),
        (
            PLAIN,
            {"speculative_config": config("draft_model", model=3)},
            "speculative_config.model is 3, ",
            "name the draft model",
        ),
        (
            PLAIN,
            {"speculative_config": config("ngram", model="org/small")},
            'speculative_config.model is "org/small", but must be unset with method ngram',
            "did you mean draft_model?",
        ),
        (
            HEAD,
            {"spec_method": "mtp", "spec_tokens": 1, "spec_model": "org/small"},
            'speculative_config.model is "org/small", but must be unset with method mtp',
            "did you mean draft_model?",
        ),
        (
            HEAD,
            {"speculative_config": config("mtp", prompt_lookup_max=3)},
            "speculative_config.prompt_lookup_max is 3, but must be unset with method mtp",
            "leave it out",
        ),
        (
            PLAIN,
            {"speculative_config": config(prompt_lookup_min=5, prompt_lookup_max=4)},
            "speculative_config.prompt_lookup_min is 5, but must be at most prompt_lookup_max, 4",
            "give 4",
        ),
        (
            PLAIN,
            {"speculative_config": config(adaptive="yes")},
            'speculative_config.adaptive is "yes", but must be true or false',
            "leave it out for true",
        ),
        (
            PLAIN,
            {"speculative_config": config("custom")},
            "drafter is missing, but must be an object with propose(",
            "give both, or neither",
        ),
        (
            PLAIN,
            {"speculative_config": config("ngram"), "drafter": Silent()},
            'drafter is "Silent", but must be an object with propose(',
            "give both, or neither",
        ),
        (
            PLAIN,
            {"drafter": Silent()},
            'speculative_config is missing, but must be method "custom" beside drafter',
            '{"method": "custom", "num_speculative_tokens": K}',
        ),
        (
            PLAIN,
            {"speculative_config": config("custom"), "drafter": object()},
            'drafter is "object", but must be an object with propose(request_id, token_ids, k)',
            "add that method",
        ),
        (
            PLAIN,
            {"speculative_config": config("ngram"), "spec_method": "mtp"},
            'spec_method is "mtp", but must be the same as speculative_config.method, ngram',
            "drop one of the two",
        ),
        (
            PLAIN,
            {"speculative_config": config(number=3), "spec_tokens": 4},
            "spec_tokens is 4, but must be the same as speculative_config.num_speculative_tokens, ",
            "drop one of the two",
        ),
        (
            PLAIN,
            {"speculative_config": config("draft_model", model="a/b"), "spec_model": "a/c"},
            'spec_model is "a/c", but must be the same as speculative_config.model, a/b',
            "drop one of the two",
        ),
    ],
)
def test_what_cannot_run_is_refused_with_key_value_and_fix(spec, options, start, hint):
    message = refused(spec, **options)
    assert message.startswith(start)
    assert hint in message.partition("; ")[2]


@pytest.mark.parametrize(
    "value", [0, -1, MOST_DRAFTS + 1, 3.0, "3", True, False, None, [3], math.nan, math.inf]
)
def test_the_number_of_drafts_is_a_whole_number_from_1_to_32(value):
    message = refused(speculative_config=config(number=value))
    assert message.startswith(f"speculative_config.{NUMBER} is ")
    assert "a whole number from 1 to 32" in message


@pytest.mark.parametrize("name", ["prompt_lookup_min", "prompt_lookup_max"])
@pytest.mark.parametrize("value", [0, 65, 2.0, "2", True])
def test_n_grams_have_1_to_64_tokens(name, value):
    message = refused(speculative_config=config(**{name: value}))
    assert message.startswith(f"speculative_config.{name} is ")
    assert "a whole number from 1 to 64" in message


@pytest.mark.parametrize("length, fits", [(4, False), (5, True)])
def test_a_request_must_be_able_to_hold_the_drafts(length, fits):
    if fits:
        assert resolved(length=length, speculative_config=config())[0] == Speculation("ngram", 3)
    else:
        message = refused(length=length, speculative_config=config())
        assert "below max_model_len - 1, which is 3" in message


@pytest.mark.parametrize("name", ["max_num_batched_tokens", "num_state_slots"])
def test_budgets_and_pools_with_no_room_for_all_drafts_are_warned_of(name):
    assert resolved(speculative_config=config(), **{name: 4})[1] == ()
    found, (line,) = resolved(speculative_config=config(), **{name: 3})
    assert found == Speculation("ngram", 3)
    assert line == (
        f"speculative_config.num_speculative_tokens is 3, but {name} = 3 leaves room for at most "
        f"2 drafts in a step; give {name} = 4 or more"
    )


def test_both_are_warned_of_in_a_line_each():
    _, lines = resolved(speculative_config=config(), max_num_batched_tokens=2, num_state_slots=1)
    assert len(lines) == 2


def test_the_given_config_is_left_as_it_was():
    given = config(prompt_lookup_min=2)
    before = dict(given)
    resolved(speculative_config=given, spec_method="ngram")
    assert given == before
