"""What drafts cost, as told by times of steps; all are sums of powers of two."""

from coachwhip.speculate.step_times import FEW, REFRESH, SAMPLES, StepTimes


def measured(most: int, **drafted: float) -> StepTimes:
    """Returns times with three steps of 16 seconds without drafts, and `d<number>` seconds."""
    times = StepTimes(most)
    for _ in range(FEW):
        times.add(16.0, 0, drafted=False)
    for name, seconds in drafted.items():
        times.add(seconds, int(name[1:]), drafted=True)
    return times


def test_nothing_is_known_before_both_kinds_were_measured():
    times = StepTimes(3)
    assert times.costs() is None
    times.add(12.0, 2, drafted=True)
    assert times.costs() is None
    assert measured(3).costs() is None


def test_costs_lie_on_lines_between_what_was_measured_and_from_0():
    assert measured(4, d4=24.0).costs() == [0.0, 0.125, 0.25, 0.375, 0.5]
    assert measured(4, d2=20.0).costs() == [0.0, 0.125, 0.25, 0.375, 0.5]
    assert measured(4, d1=24.0, d3=28.0).costs() == [0.0, 0.5, 0.625, 0.75, 1.0]
    assert measured(2, d2=15.0).costs() == [0.0, 0.0, 0.0]


def test_a_mean_between_whole_numbers_counts_by_draft():
    for mean in (2.5, 0.5, 0.25):
        times = measured(3)
        times.add(16.0 + 2 * mean, mean, drafted=True)
        assert times.costs() == [0.0, 0.125, 0.25, 0.375]


def test_of_few_steps_the_fastest_counts_and_of_more_the_median():
    times = measured(1, d1=96.0)
    assert times.costs() == [0.0, 5.0]
    times.add(18.0, 1, drafted=True)
    assert times.costs() == [0.0, 0.125]
    times.add(24.0, 1, drafted=True)
    assert times.costs() == [0.0, 0.5]


def test_only_the_newest_steps_count():
    times = measured(1)
    for seconds in [96.0] * 20 + [24.0] * SAMPLES:
        times.add(seconds, 1, drafted=True)
    assert times.costs() == [0.0, 0.5]


def test_a_step_that_only_proposes_or_only_verifies_is_of_neither_kind():
    times = measured(2, d2=20.0)
    times.add(900.0, 0, drafted=True)
    times.add(16.0, 0, drafted=False)
    times.add(900.0, 2, drafted=False)
    assert times.costs() == [0.0, 0.125, 0.25]


def test_a_trial_is_proposed_in_one_step_and_verified_in_the_next():
    times = measured(3, d3=96.0)
    times.add(20.0, 0, drafted=True)
    times.add(18.0, 1, drafted=False)
    # 4 and 2 more than without; what was measured before the rest is forgotten.
    assert times.costs() == [0.0, 0.375, 0.75, 1.125]
    assert not times.wants_drafted


def test_steps_without_drafts_come_first_and_again_after_many_with_them():
    times = StepTimes(1)
    for _ in range(FEW):
        assert times.wants_plain
        times.add(10.0, 0, drafted=False)
    for _ in range(REFRESH):
        assert not times.wants_plain
        times.add(12.0, 1, drafted=True)
    for _ in range(FEW):
        assert times.wants_plain
        times.add(20.0, 0, drafted=False)
    assert not times.wants_plain and times.costs() is None
    for _ in range(FEW):
        assert times.wants_drafted
        times.add(25.0, 1, drafted=True)
    assert not times.wants_drafted
    assert times.costs() == [0.0, 0.25]


def test_numbers_beside_the_best_and_halves_of_the_most_get_a_step_once():
    times = measured(20)
    assert times.to_measure(20) == 20  # nothing is known, so the most comes first
    times.add(30.0, 20, drafted=True)
    asked = [times.to_measure(20) for _ in range(6)]
    assert asked == [19, 10, 5, 2, 1, 20]
    assert [times.to_measure(7) for _ in range(3)] == [6, 8, 7]
    times.add(11.0, 3, drafted=True)
    assert [times.to_measure(4) for _ in range(2)] == [4, 4]
