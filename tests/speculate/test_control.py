"""The number of drafts on a clock that only counts: what pays, what does not, and what changes."""

import random
from itertools import pairwise

import pytest

from coachwhip.speculate.control import DraftControl
from tests.speculate.simulated_decode import Costs, decode

LINEAR = Costs(lambda k: 0.1 * k, lambda k: 0.1 / 3 * k)
"""A step with 3 drafts takes 1.4 times as long as one without."""
MODELS = {
    "linear": LINEAR,
    "drafting has a price of its own": Costs(
        lambda k: 0.06 * k, lambda k: (0.2 + 0.02 * k) * (k > 0)
    ),
    "verifying has one": Costs(lambda k: (0.2 + 0.05 * k) * (k > 0), lambda k: 0.05 * k),
    "each draft is dearer than the last": Costs(lambda k: 0.03 * k * k),
    "the third draft is dear": Costs(lambda k: 0.02 * k + 0.5 * (k > 2)),
    "all are dear": Costs(lambda k: 0.6 * k, lambda k: 0.3 * k),
}


def always(rate: float):
    return lambda step: rate


@pytest.mark.parametrize("most", [1, 3, 5])
@pytest.mark.parametrize("name", MODELS)
def test_it_finds_the_number_of_drafts_with_the_most_tokens_a_second(name, most):
    costs = MODELS[name]
    for rate in (0.0, 0.2, 0.5, 0.7, 0.9):
        control, speeds = DraftControl(most), []
        decode(control, costs, {"a": always(rate)}, 200)
        for seed in range(4):
            speeds.append(decode(control, costs, {"a": always(rate)}, 1000, seed).speed)
        reached, (best, count) = sum(speeds) / len(speeds), costs.best(most, rate)
        assert reached > 0.9 * best, (rate, reached, best, count)
        # Where drafts do not pay, next to nothing is lost.
        assert count or reached > 0.985, (rate, reached)


def test_a_step_that_did_not_only_decode_leaves_nothing_behind():
    """Drafts that were asked for in it are not held against the next step, which wants none."""
    control, other = DraftControl(3), DraftControl(3)
    for each in (control, other):
        each.length("a", 1)
        each.took(1, 0, 1.0)
    control.length("a", 1)
    control.skipped()
    for each in (control, other):
        each.took(1, 0, 1.0)
    assert vars(control._times_of(1)) == vars(other._times_of(1))


def test_times_that_vary_mislead_it_little():
    for rate in (0.0, 0.5, 0.9):
        control = DraftControl(3)
        decode(control, LINEAR, {"a": always(rate)}, 200, noise=0.2)
        run = decode(control, LINEAR, {"a": always(rate)}, 4000, 1, noise=0.2)
        assert run.speed * 1.2 > 0.9 * LINEAR.best(3, rate)[0], rate


def test_it_settles_on_one_number():
    """Of 256 steps three measure the time without drafts, and a few other numbers."""
    control = DraftControl(5)
    costs = MODELS["the third draft is dear"]
    decode(control, costs, {"a": always(0.6)}, 200)
    drafted = decode(control, costs, {"a": always(0.6)}, 1024).drafted["a"]
    assert costs.best(5, 0.6)[1] == 2
    assert drafted.count(2) > 0.95 * len(drafted)
    assert {0, 1, 3, 5} <= set(drafted)


@pytest.mark.parametrize(
    "verify, draft",
    [
        (lambda k: 0.1 * k, lambda k: 0.1 / 3 * k),
        (lambda k: 0.4 * (k > 0), lambda k: 0.0),
        (lambda k: 0.0, lambda k: 0.4 * (k > 0)),
        (lambda k: 0.1 * (k > 0), lambda k: 0.1 * k),
    ],
    ids=["by draft", "verifying", "drafting", "both"],
)
def test_drafts_that_are_never_right_cost_less_than_1_percent_of_1000_tokens(verify, draft):
    costs = Costs(verify, draft)
    assert costs.verify(3) + costs.draft(3) == pytest.approx(0.4)
    control = DraftControl(3)
    run = decode(control, costs, {"a": always(0.0)}, 1000)
    assert run.tokens == 1000
    assert run.seconds < 1000 * 1.01
    assert (control.times_off, control.num_resting) == (1, 1)


def test_trials_are_16_tokens_apart_and_then_twice_as_far_each_time():
    control = DraftControl(3)
    (drafted,) = decode(control, LINEAR, {"a": always(0.0)}, 3000).drafted.values()
    trials = [i for i, count in enumerate(drafted) if count]
    gaps = [b - a - 1 for a, b in pairwise(trials)]
    assert gaps[-9:] == [16, 32, 64, 128, 256, 512, 512, 512, 512]
    assert set(gaps[:-9]) == {0}
    assert [drafted[i] for i in trials[-9:]] == [1] * 9


def test_drafts_come_back_when_they_are_right_again():
    control = DraftControl(3)
    (drafted,) = decode(
        control, LINEAR, {"a": lambda step: 0.9 if step >= 1500 else 0.0}, 3000
    ).drafted.values()
    assert sum(drafted[200:1500]) < 10
    first = next(i for i in range(1500, 3000) if drafted[i])
    assert first < 1500 + 513
    assert drafted[first + 20 :].count(3) > 0.95 * len(drafted[first + 20 :])
    assert (control.times_off, control.num_resting) == (1, 0)


def test_drafts_that_go_wrong_late_are_given_up_within_few_steps():
    control = DraftControl(3)
    (drafted,) = decode(
        control, LINEAR, {"a": lambda step: 0.95 if step < 500 else 0.0}, 1000
    ).drafted.values()
    assert drafted[:500].count(3) > 450
    off = next(i for i in range(500, 1000) if not any(drafted[i : i + 16]))
    assert off < 600
    assert control.times_off == 1


def test_each_request_of_a_batch_gets_what_pays_for_it():
    control = DraftControl(3)
    rates = {"a": always(0.0), "b": always(0.85), "c": always(0.85), "d": always(0.0)}
    drafted = decode(control, LINEAR, rates, 1200).drafted
    for name in rates:
        mean = sum(drafted[name][200:]) / 1000
        assert mean < 0.05 if name in "ad" else mean > 2.8, (name, mean)
    assert control.num_resting == 2


def test_a_new_request_begins_with_what_those_before_it_had():
    control = DraftControl(3)
    for number in range(60):
        name = str(number)
        run = decode(control, LINEAR, {name: always(0.0)}, 40)
        control.forget(name)
    assert sum(run.drafted[name]) <= 2  # at most a trial
    for _ in range(60):
        run = decode(control, LINEAR, {name: always(0.9)}, 60)
        control.forget(name)
    assert run.drafted[name][:20].count(3) > 10


def test_nothing_is_kept_of_a_request_that_is_forgotten():
    control = DraftControl(3)
    decode(control, LINEAR, {"a": always(0.0)}, 100)
    assert control.num_resting == 1
    control.forget("a")
    control.forget("never seen")
    assert control.num_resting == 0
    # What is said of it later, as of any unknown id, changes nothing.
    control.verified("a", 3, 0)
    control.settle("a", 1)
    assert control.num_resting == 0 and control.times_off == 1


@pytest.mark.parametrize("slow", [2.0, 50.0])
def test_a_slow_first_step_does_not_keep_drafts_off(slow):
    """The first draft of a process compiles, or reads what is not in memory."""
    control, given = DraftControl(3), []
    drafts = slow_steps = 0
    for _ in range(40):
        control.verified("a", drafts, drafts)
        control.settle("a", 1)
        wanted = control.length("a", 1)
        first = drafts and not slow_steps
        slow_steps += bool(first)
        control.took(1, drafts, slow if first else 1.0 + 0.1 * drafts)
        given.append(drafts)
        drafts = wanted
    assert control.times_off == 0
    assert given[-20:] == [3] * 20


def test_when_it_does_not_adapt_it_always_wants_the_most():
    control = DraftControl(4, adaptive=False)
    (drafted,) = decode(control, MODELS["all are dear"], {"a": always(0.0)}, 300).drafted.values()
    assert drafted == [0] + [4] * 299
    assert (control.times_off, control.num_resting) == (0, 0)


def test_any_order_of_calls_gives_numbers_within_the_limits():
    draws = random.Random(0)
    control = DraftControl(5)
    for _ in range(20_000):
        name, size = str(draws.randint(0, 5)), draws.randint(1, 9)
        call = draws.randint(0, 4)
        if call == 0:
            drafts = draws.randint(0, 5)
            control.verified(name, drafts, draws.randint(0, drafts))
        elif call == 1:
            control.settle(name, size)
        elif call == 2:
            control.took(size, draws.randint(0, 5 * size), draws.uniform(1e-6, 2.0))
        elif call == 3 and draws.random() < 0.1:
            control.forget(name)
        else:
            assert 0 <= control.length(name, size) <= 5
        assert 0 <= control.num_resting <= 6
