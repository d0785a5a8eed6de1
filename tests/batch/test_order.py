"""The order in which requests start: each once, and shared prefixes computed once."""

from hypothesis import given
from hypothesis import strategies as st

from coachwhip.batch.order import PrefixOrder

GRAIN = 4

prompts = st.lists(
    st.tuples(st.sampled_from(["", "salt"]), st.lists(st.integers(0, 2), min_size=1, max_size=12)),
    max_size=25,
)


def run(prompts, grain: int, seats: int, steps: int = 2) -> tuple[list[int], int]:
    """Runs an order on an engine whose prompts take some steps; returns the places in the order
    they started, and how many tokens were computed."""
    order = PrefixOrder(prompts, grain)
    started, running, published, computed = [], [], set(), 0
    while order or running:
        while len(running) < seats and (place := order.next()) is not None:
            salt, tokens = prompts[place]
            hits = [
                n for n in range(0, len(tokens), GRAIN) if (salt, tuple(tokens[:n])) in published
            ]
            computed += len(tokens) - max(hits, default=0)
            started.append(place)
            running.append([place, steps])
        assert running, "all wait for nothing"
        for one in running:
            one[1] -= 1
            if not one[1]:
                salt, tokens = prompts[one[0]]
                published |= {(salt, tuple(tokens[:n])) for n in range(GRAIN, len(tokens) + 1)}
                order.computed(one[0])
        running = [one for one in running if one[1]]
    return started, computed


def least_computed(prompts) -> int:
    """Returns what is computed when the sorted prompts run one by one."""
    return run(prompts, GRAIN, 1)[1]


@given(prompts, st.integers(1, 5), st.sampled_from([0, GRAIN]))
def test_every_request_starts_once(prompts, seats, grain):
    started, _ = run(prompts, grain, seats)
    assert sorted(started) == list(range(len(prompts)))


@given(prompts, st.integers(1, 5))
def test_nothing_that_is_shared_is_computed_twice(prompts, seats):
    assert run(prompts, GRAIN, seats)[1] == least_computed(prompts)


@given(prompts, st.integers(1, 5))
def test_without_a_cache_the_order_is_that_of_the_input(prompts, seats):
    assert run(prompts, 0, seats)[0] == list(range(len(prompts)))


def test_other_prefixes_go_on_while_one_is_computed():
    shared = [[i] * 8 + [9, j] for i in range(3) for j in range(5)]
    order = PrefixOrder([("", tokens) for tokens in shared], GRAIN)
    first = [order.next() for _ in range(4)]
    assert first[3] is None and {shared[place][0] for place in first[:3]} == {0, 1, 2}
    order.computed(first[1])
    more = [order.next() for _ in range(5)]
    assert more[4] is None and {shared[place][0] for place in more[:4]} == {shared[first[1]][0]}


def test_salts_share_nothing():
    order = PrefixOrder([(salt, [1] * 8) for salt in ("a", "b", "a")], GRAIN)
    assert sorted([order.next(), order.next()]) != [0, 2]
    assert order.next() is None
