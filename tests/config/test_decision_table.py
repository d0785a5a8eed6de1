"""Every combination of the options that depend on each other becomes what the table says."""

from itertools import product

import pytest

from coachwhip.config import EngineOptions, examine, step_loops
from coachwhip.config.caching_rules import CACHING_RULES, LAYERS, SWITCH, caching_rule
from coachwhip.config.options import CACHE_MODES, STEP_LOOPS
from coachwhip.config.step_loops import FEATURES, OVERLAPPED, SIMPLE, StepLoopKind
from coachwhip.errors import ConfigError
from tests.config.document import DOCUMENT, with_tables
from tests.config.models import CPU, KINDS

VALUES = {"auto": None, "on": True, "off": False}
SPECULATIONS = {
    "none": {},
    "mtp": {"speculative_config": {"method": "mtp", "num_speculative_tokens": 3}},
    "ngram": {"spec_method": "ngram", "spec_tokens": 5},
    "draft_model": {"spec_model": "org/small", "spec_method": "draft_model", "spec_tokens": 1},
}


def wanted_mode(layers: str, caching: str, mode: str, chunked: str) -> str:
    """Returns the mode that a combination stands for, or the code of its error."""
    if caching == "off":
        return "none" if mode in ("auto", "none") else "mode_without_caching"
    if layers == "attention":
        return "none" if (caching, mode) == ("auto", "none") else "all"
    if mode == "align" and chunked == "off":
        return "align_without_chunks"
    if mode == "none":
        return "none" if caching == "auto" else "caching_without_states"
    return "all" if mode == "auto" else mode


@pytest.mark.parametrize("layers", LAYERS)
def test_each_combination_is_in_one_row_which_says_what_it_becomes(layers):
    for combination in product([layers], SWITCH, CACHE_MODES, SWITCH):
        assert sum(rule.fits(*combination) for rule in CACHING_RULES) == 1, combination
        rule = caching_rule(*combination)
        assert (rule.result or rule.code) == wanted_mode(*combination), combination
        assert bool(rule.fix) == (rule.result is None)


@pytest.mark.parametrize("speculation", SPECULATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_combination_resolves_as_documented(kind, speculation):
    spec = KINDS[kind]
    layers = "mamba" if "M" in spec.pattern else "attention"
    for caching, mode, chunked, loop in product(SWITCH, CACHE_MODES, SWITCH, STEP_LOOPS):
        options = EngineOptions(
            enable_prefix_caching=VALUES[caching],
            mamba_cache_mode=mode,
            enable_chunked_prefill=VALUES[chunked],
            step_loop=loop,
            **SPECULATIONS[speculation],
        )
        found = examine(spec, "float32", options, CPU)
        rule = caching_rule(layers, caching, mode, chunked)
        errors = {rule.code} if rule.result is None else set()
        if speculation == "mtp" and not spec.mtp_layers:
            errors.add("speculation")
        assert {c.code for c in found.conflicts} == errors
        assert all(type(c) is ConfigError and c.hint for c in found.conflicts)
        if errors:
            assert found.config is None
            continue
        config = found.config
        assert config.mamba_cache_mode == rule.result
        assert config.enable_chunked_prefill == (chunked != "off")
        assert config.max_num_batched_tokens == (
            512 if chunked != "off" else config.max_model_len + 8
        )
        assert (
            config.most_drafts == {"none": 0, "mtp": 3, "ngram": 5, "draft_model": 1}[speculation]
        )
        assert config.step_loop == ("simple" if loop == "auto" else loop)
        warned = {d.code for d in config.decisions if d.warns}
        assert warned == {rule.code for _ in [0] if rule.warns}
        assert len(config.warnings) == len(warned)


def test_a_loop_runs_what_it_lacks_nothing_for_and_else_says_why_not(monkeypatch):
    lacks = {"audit_state": "it is slow"}
    monkeypatch.setattr(step_loops, "OVERLAPPED", StepLoopKind("overlapped", lacks))
    for audit, loop in ((False, "overlapped"), (True, "simple")):
        options = EngineOptions(step_loop="overlapped", audit_state=audit)
        config = examine(KINDS["hybrid"], "float32", options, CPU).config
        assert config.step_loop == loop
        assert any("audit_state (it is slow)" in line for line in config.warnings) == audit
    monkeypatch.setattr(step_loops, "AUTO", step_loops.OVERLAPPED)
    for audit, loop in ((False, "overlapped"), (True, "simple")):
        config = examine(KINDS["hybrid"], "float32", EngineOptions(audit_state=audit), CPU).config
        assert (config.step_loop, config.warnings) == (loop, ())


def test_loops_lack_only_features_that_there_are():
    assert OVERLAPPED.lacks.keys() <= set(FEATURES) and not SIMPLE.lacks


def test_the_document_shows_the_tables_of_this_version():
    text = DOCUMENT.read_text("utf-8")
    assert with_tables(text) == text, "run `python -m tests.config.document`"
