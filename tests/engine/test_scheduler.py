"""The scheduler without a model: every plan is legal, every request ends, nothing leaks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coachwhip.cache.free_pool import FreePool
from coachwhip.schedule.request import Request
from coachwhip.schedule.scheduler import Scheduler

PAGE = 8
PAGES = 12

requests = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 20), st.integers(0, 6)), min_size=1, max_size=12
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    requests,
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 11)), max_size=6),
    st.integers(1, 40),
    st.integers(1, 5),
    st.booleans(),
    st.booleans(),
)
def test_every_request_is_computed_once_in_order(asked, aborts, budget, seqs, slots, pages):
    """`asked` are (prompt tokens, new tokens, steps since the one before); `aborts` (step, who)."""
    scheduler = Scheduler(
        FreePool("slots", seqs) if slots else None,
        FreePool("pages", PAGES) if pages else None,
        PAGE,
        seqs,
        budget,
    )
    live, computed = {}, {}
    pending = list(enumerate(asked))
    wait = asked[0][2]
    for step in range(5000):
        wait -= 1
        while pending and wait < 0:
            i, (prompt, new, _) = pending.pop(0)
            wait += pending[0][1][2] if pending else 0
            live[str(i)] = Request(str(i), list(range(prompt)), new)
            computed[str(i)] = []
            scheduler.add(live[str(i)])
        for victim in {str(who) for when, who in aborts if when == step} & live.keys():
            scheduler.remove(victim)
            del live[victim]
        plan = scheduler.plan()
        assert plan.num_tokens <= budget
        assert len(plan.sequences) <= seqs
        assert plan.sequences or not live, "requests wait, but nothing runs"
        homes = [w for s in plan.sequences for w in s.write_slots if w >= 0]
        assert len(homes) == len(set(homes))
        used = [p for s in plan.sequences for p in s.pages]
        assert len(used) == len(set(used))
        accepted, finished = {}, set()
        for s in plan.sequences:
            request = live[s.request_id]
            assert s.num_computed == len(computed[s.request_id])
            assert s.tokens and s.read_slot == (s.write_slots[-1] if s.num_computed else -1)
            assert (s.write_slots[-1] >= 0) == slots
            if pages:
                assert len(s.pages) == -(-(s.num_computed + len(s.tokens)) // PAGE)
            computed[s.request_id] += s.tokens
            if s.num_outputs:
                assert len(computed[s.request_id]) == request.num_tokens
                accepted[s.request_id] = [1000 + len(request.output_token_ids)]
                if len(request.output_token_ids) + 1 == request.max_tokens:
                    finished.add(s.request_id)
        scheduler.commit(plan, accepted, finished)
        scheduler.check()
        for request_id in finished:
            request = live.pop(request_id)
            text = request.prompt_token_ids + request.output_token_ids
            assert computed[request_id] == text[:-1]
            assert len(request.output_token_ids) == request.max_tokens
        if not pending and not live:
            break
    assert not live and not pending and not scheduler.has_unfinished


def test_a_pool_refuses_what_it_does_not_own():
    pool = FreePool("slots", 3)
    taken = pool.take(2)
    with pytest.raises(ValueError, match="2 wanted, 1 free"):
        pool.take(2)
    with pytest.raises(ValueError, match="not all owned"):
        pool.give_back([taken[0], taken[0]])
    pool.give_back(taken)
    with pytest.raises(ValueError, match="not all owned"):
        pool.give_back([taken[0]])
    pool.check()
    assert pool.free == 3
