"""How much of a prompt is found again, in every mode, and why not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coachwhip.cache.prefix_cache import PrefixCache
from coachwhip.errors import RequestError
from coachwhip.schedule.chunks import chunk_end
from coachwhip.schedule.request import Request
from coachwhip.schedule.scheduler import Scheduler
from tests.cache.simulated_model import SimulatedModel, continuation, make_cache


class Bench:
    """Runs requests over a large cache, one after another unless told otherwise."""

    def __init__(
        self, mode="all", block=4, page_size=8, slots=400, pages=400, head=False, **options
    ):
        self.cache: PrefixCache = make_cache(slots, pages, page_size, mode, block, head)
        options = {"max_num_seqs": 4, "max_num_batched_tokens": 512, **options}
        self.scheduler = Scheduler(self.cache, **options)
        self.model = SimulatedModel(self.scheduler)
        self.live: dict[str, Request] = {}
        self.count = 0
        self.head_waits: set[str] = set()

    def add(self, prompt, new=1, **options) -> Request:
        request = Request(str(self.count), list(prompt), new, **options)
        self.count += 1
        self.live[request.request_id] = request
        self.scheduler.add(request)
        return request

    def step(self):
        plan = self.scheduler.plan()
        tokens = self.model.execute(plan, self.live)
        done = {
            i for i in tokens if len(self.live[i].output_token_ids) + 1 == self.live[i].max_tokens
        }
        self.scheduler.fold(plan, tokens)
        self.model.run_head(lambda request: request.request_id in self.head_waits)
        self.scheduler.settle(done)
        for request_id in done:
            del self.live[request_id]
        self.scheduler.check()
        self.model.check()
        return plan

    def run(self, *prompts, new=1, **options) -> list[Request]:
        requests = [self.add(p, new, **options) for p in prompts]
        while self.live:
            self.step()
        for r in requests:
            assert r.output_token_ids == continuation(r.prompt_token_ids, r.max_tokens)
        return requests

    def hit(self, prompt, **options) -> int:
        return self.run(prompt, **options)[0].num_cached_tokens


def tokens(count, seed=0):
    return np.random.default_rng(seed).integers(0, 3, count).tolist()


KINDS = pytest.mark.parametrize(
    "kind",
    [{}, {"pages": None}, {"page_size": 5}, {"page_size": 16}, {"head": True, "page_size": 5}],
    ids=str,
)
MODES = pytest.mark.parametrize("mode", ["align", "all"])


@KINDS
@MODES
@pytest.mark.parametrize("budget", [1, 3, 7, 64])
def test_a_prompt_sent_again_hits_its_last_grid_point_below_the_end(kind, mode, budget):
    for length in range(1, 30):
        bench = Bench(mode, max_num_batched_tokens=budget, **kind)
        prompt = tokens(length, seed=length)
        assert bench.hit(prompt) == 0
        assert bench.hit(prompt) == (length - 1) // 4 * 4


@KINDS
def test_a_second_prompt_hits_what_it_shares_in_all(kind):
    for shared in range(1, 30):
        bench = Bench("all", **kind)
        trunk = tokens(shared, seed=1)
        bench.hit([*trunk, 0, *tokens(9, seed=2)])
        assert bench.hit([*trunk, 1, *tokens(9, seed=3)]) == shared // 4 * 4


@KINDS
@pytest.mark.parametrize("budget", [2, 9, 512])
def test_a_third_prompt_hits_what_it_shares_in_align(kind, budget):
    for shared in range(1, 30):
        bench = Bench("align", max_num_batched_tokens=budget, **kind)
        trunk = tokens(shared, seed=1)
        bench.hit([*trunk, 0, *tokens(9, seed=2)])
        bench.hit([*trunk, 1, *tokens(9, seed=3)])
        assert bench.hit([*trunk, 2, *tokens(9, seed=4)]) >= shared // 4 * 4


@KINDS
@MODES
def test_the_next_turn_of_a_conversation_hits_the_generated_text(kind, mode):
    bench = Bench(mode, **kind)
    text, hit = tokens(13), 0
    for turn in range(6):
        (request,) = bench.run(text, new=11)
        assert request.num_cached_tokens == hit
        # The last generated token is in no state yet.
        hit = (len(text) + 11 - 1) // 4 * 4
        assert hit > len(text)
        text = [*text, *request.output_token_ids, *tokens(5, seed=turn)]


def test_a_full_page_is_found_by_those_who_go_on_as_it_was_made_for():
    """The head's last row of a page depends on the token after it; `step` checks every row."""
    for end in range(5, 16):
        bench, trunk = Bench(head=True, page_size=5), tokens(end, seed=1)
        for first in (0, 1, 2, 1, 0):
            (request,) = bench.run([*trunk, first, *tokens(12, seed=first)], new=3)
        assert request.num_cached_tokens == (end + 12) // 4 * 4


def test_pages_wait_for_the_head():
    bench, prompt = Bench(head=True, page_size=5), tokens(9)
    request = bench.add(prompt, new=20)
    while len(request.output_token_ids) < 15:
        if request.output_token_ids:
            bench.head_waits.add(request.request_id)
        bench.step()
    text = [*prompt, *request.output_token_ids]
    later = bench.add(text)
    while not later.output_token_ids:
        bench.step()
    # Nine positions have the head's rows, so the state after eight tokens can be restored.
    assert later.num_cached_tokens == 8
    bench.head_waits.clear()
    bench.step()
    assert bench.hit(text) == (len(text) - 1) // 4 * 4


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40), st.integers(1, 7)), max_size=8),
    st.sampled_from([4, 5, 7]),
    st.sampled_from([1, 4, 6, 8]),
    st.sampled_from([1, 5, 64]),
)
def test_all_hits_exactly_the_deepest_shared_grid_point(asked, block, page_size, budget):
    bench = Bench("all", block, page_size, max_num_batched_tokens=budget)
    trunks = [tokens(40, seed=5), tokens(40, seed=6)]
    trunks += [trunks[0][:17] + trunks[1][:23], [*trunks[0][:9], 1, 1, *trunks[0][:29]]]
    computed = []
    for which, length, new in asked:
        prompt = trunks[which][:length]
        (request,) = bench.run(prompt, new=new)
        common = [
            next((i for i, (a, b) in enumerate(zip(old, prompt, strict=False)) if a != b), None)
            or min(len(old), length) * (old[:1] == prompt[:1])
            for old in computed
        ]
        longest = min(max(common, default=0), length - 1)
        assert request.num_cached_tokens == longest // block * block
        computed.append((prompt + request.output_token_ids)[:-1])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 5)), min_size=1, max_size=6))
def test_pages_alone_are_enough_without_mamba_layers(asked):
    bench = Bench("all", slots=None, page_size=4)
    deepest = 0
    trunk = tokens(40)
    for shared, new in asked:
        prompt = [*trunk[:shared], 7]
        (request,) = bench.run(prompt, new=new)
        assert request.num_cached_tokens == min(deepest, shared) // 4 * 4
        deepest = max(deepest, shared)


def test_nothing_is_found_within_the_step_that_computes_it():
    bench = Bench(page_size=4)
    first, second = bench.add(tokens(20)), bench.add(tokens(20))
    bench.step()
    assert first.num_cached_tokens == second.num_cached_tokens == 0
    assert bench.cache.stats.published == 5
    assert bench.hit(tokens(20)) == 16


def test_a_waiting_request_looks_when_it_starts_and_finds_what_ran_before_it():
    bench = Bench(max_num_batched_tokens=16)
    first, second = bench.add(tokens(40)), bench.add(tokens(40))
    while bench.live:
        bench.step()
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 32)


def test_salts_keep_requests_apart():
    bench = Bench()
    prompt = tokens(20)
    assert bench.hit(prompt, cache_salt="a") == 0
    assert bench.hit(prompt, cache_salt="b") == 0
    assert bench.hit(prompt) == 0
    assert bench.hit(prompt, cache_salt="a") == 16


def test_every_miss_has_its_reason():
    def reasons(bench):
        return {k: n for k, n in bench.cache.stats.misses.items() if n}

    off = Bench("none")
    off.hit(tokens(20))
    assert off.hit(tokens(20)) == 0 and reasons(off) == {"disabled": 2}
    bench = Bench(page_size=4)
    bench.hit(tokens(4, seed=8))
    assert reasons(bench) == {"too_short": 1}
    bench.hit(tokens(9))
    assert reasons(bench) == {"too_short": 1, "no_state": 1}
    evict(bench.cache.pages)
    bench.hit(tokens(9))
    assert reasons(bench) == {"too_short": 1, "no_state": 1, "no_page": 1}
    evict(bench.cache.slots)
    bench.hit(tokens(9))
    assert reasons(bench)["evicted"] == 1
    assert bench.hit(tokens(9)) == 8


def evict(pool):
    for home in [pool.take() for _ in range(pool.total)]:
        pool.release(home)


def test_neither_pool_evicts_the_others_entries():
    bench = Bench(page_size=8, block=4)
    bench.hit(tokens(23))
    pages = bench.cache.pages.cached
    evict(bench.cache.slots)
    assert bench.cache.pages.cached == pages - 1, "only a page that served a checkpoint alone goes"
    bench.hit(tokens(23))
    slots = bench.cache.slots.cached
    evict(bench.cache.pages)
    assert bench.cache.slots.cached == slots
    # Computing the pages again makes the kept states of use again.
    bench.hit(tokens(23))
    assert bench.hit(tokens(23)) == 20


def test_a_checkpoint_outlives_its_owners_decode_and_end():
    bench = Bench(slots=40)
    prompt = tokens(21)
    bench.run(prompt, new=60)
    assert bench.hit([*prompt, 1]) == 20


def test_a_preempted_request_goes_on_from_its_deepest_checkpoint():
    bench = Bench(slots=1, pages=None)  # no spare slot: nothing is published on the way
    request = bench.add(tokens(9), new=20)
    for _ in range(8):
        bench.step()
    assert request.num_computed == 16 and bench.cache.stats.published == 0
    bench.scheduler.preempt(request.request_id)
    assert bench.cache.stats.published == 1
    plan = bench.step()
    assert plan.sequences[0].num_computed == 16
    assert plan.sequences[0].read_slot == plan.sequences[0].write_slots[-1], (
        "the slot is taken over"
    )
    while bench.live:
        bench.step()
    assert request.output_token_ids == continuation(tokens(9), 20)


def test_more_urgent_requests_preempt_and_finish_first():
    bench = Bench(policy="priority", max_num_seqs=2)
    slow = [bench.add(tokens(9, seed=i), new=30, priority=5) for i in range(3)]
    for _ in range(4):
        bench.step()
    urgent = bench.add(tokens(9, seed=9), new=3, priority=-1)
    ended = []
    while bench.live:
        before = set(bench.live)
        bench.step()
        ended += sorted(before - set(bench.live))
    assert bench.scheduler.num_preemptions == 1
    assert ended == [urgent.request_id, *(r.request_id for r in slow)]
    for r in slow:
        assert r.output_token_ids == continuation(r.prompt_token_ids, 30)


def test_a_reset_hides_what_running_requests_computed_before():
    bench = Bench()
    bench.add(tokens(20), new=30)
    bench.step()
    bench.scheduler.reset_cache()
    while bench.live:
        bench.step()
    assert bench.cache.slots.cached == bench.cache.pages.cached == 0
    assert bench.hit(tokens(20)) == 0
    assert bench.hit(tokens(20)) == 16


def test_a_request_that_never_fits_is_refused_with_the_numbers():
    bench = Bench(pages=4, page_size=8)
    with pytest.raises(RequestError, match=r"need 5 pages of 8 .* 4; .* raise num_kv_pages to 5"):
        bench.add(tokens(30), new=4)
    assert not bench.scheduler.has_unfinished
    bench.live.clear()
    assert bench.run(tokens(30), new=3)


def test_pages_that_cannot_be_copied_are_taken_over():
    bench = Bench(pages=4, page_size=8, slots=20)
    prompt = tokens(31)
    bench.hit(prompt)
    fork = [*prompt[:21], *(1 - t % 2 for t in prompt[21:])]
    assert bench.run(fork, new=2)[0].num_cached_tokens == 20
    assert bench.cache.stats.page_copies == 0
    # What the page held of the first prompt beyond the hit is overwritten, and not found again.
    assert bench.hit(prompt) == 16


def test_a_page_that_another_request_writes_is_waited_for():
    bench = Bench(pages=8, page_size=8, slots=20)
    first = bench.add(tokens(20), new=12)
    bench.step()
    second = bench.add([*tokens(20), 1], new=11)  # its own 4 pages are free, a fifth is not
    while first.request_id in bench.live:
        assert [s.request_id for s in bench.step().sequences] == [first.request_id]
    while bench.live:
        bench.step()
    assert second.num_cached_tokens == 20 and bench.cache.stats.page_copies == 1
    for r in (first, second):
        assert r.output_token_ids == continuation(r.prompt_token_ids, r.max_tokens)


def test_decode_rows_come_first_and_prompts_share_the_rest():
    bench = Bench(max_num_batched_tokens=8)
    bench.add(tokens(4), new=9)
    bench.step()
    bench.add(tokens(30, seed=1))
    for _ in range(3):
        plan = bench.step()
        assert [len(s.tokens) for s in plan.sequences] == [1, 7]


def test_align_uses_a_budget_that_reaches_no_grid_point():
    assert chunk_end("align", 0, 100, 5, 16, 0) == 5
    assert chunk_end("align", 5, 100, 30, 16, 0) == 32
    assert chunk_end("align", 0, 100, 512, 16, 0) == 96
    assert chunk_end("align", 0, 100, 512, 16, 48) == 48
    assert chunk_end("align", 96, 100, 512, 16, 48) == 100
    assert chunk_end("align", 99, 100, 1, 16, 0) == 100
    assert chunk_end("all", 0, 100, 30, 16, 48) == 30


@KINDS
def test_prompts_that_must_not_be_cut_run_whole_beside_others(kind):
    """Each waits for a step with room for all its rows, in the order of arrival."""
    bench = Bench("all", max_num_batched_tokens=20, chunked=False, **kind)
    prompts = [tokens(length, seed=length) for length in (9, 20, 3, 1, 12, 20)]
    first = [bench.add(prompt, new=3) for prompt in prompts]
    begun = []
    while bench.live:
        plan = bench.step()
        assert all(s.num_outputs == 1 for s in plan.sequences)
        begun += [s.request_id for s in plan.sequences if len(s.tokens) > 1 or not s.num_computed]
    assert begun == [r.request_id for r in first]
    # What is restored needs no rows, so there is room beside another.
    bench.add(tokens(4), new=9)
    bench.step()
    again = bench.add(prompts[1])
    assert [s.request_id for s in bench.step().sequences][1:] == [again.request_id]
    assert again.num_cached_tokens == 19 // 4 * 4
