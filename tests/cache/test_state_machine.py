"""Cache and scheduler under random requests, aborts, preemptions, failures and resets.

`COACHWHIP_FUZZ_STEPS=1000000` runs that many steps.
"""

import os
import random

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from coachwhip.schedule.request import Request
from coachwhip.schedule.scheduler import Scheduler
from tests.cache.simulated_model import VOCAB, SimulatedModel, continuation, kept, make_cache

STEPS_PER_RUN = 50
STEPS = int(os.environ.get("COACHWHIP_FUZZ_STEPS", 5000))
LONGEST = 56  # tokens of a request, prompt and text
TRUNKS = [[(i * k + i // 5) % 3 for i in range(LONGEST)] for k in (1, 2)]


class CacheAndScheduler(RuleBasedStateMachine):
    """Every request gets the tokens that a model without any cache would give it."""

    @initialize(
        kind=st.sampled_from(["hybrid", "hybrid", "mamba", "attention"]),
        mode=st.sampled_from(["none", "align", "all"]),
        block=st.integers(4, 13),
        page_size=st.sampled_from([1, 4, 5, 8]),
        spare_slots=st.integers(0, 6),
        spare_pages=st.sampled_from([0, 0, 1, 2, 5, 30]),
        seqs=st.integers(1, 4),
        budget=st.sampled_from([1, 2, 3, 7, 16, 40]),
        policy=st.sampled_from(["fcfs", "priority"]),
        most_drafts=st.sampled_from([0, 0, 1, 2, 3, 5, 9]),
        head=st.booleans(),
        chunked=st.sampled_from([True, True, False]),
        seed=st.integers(0, 99),
    )
    def start(
        self,
        kind,
        mode,
        block,
        page_size,
        spare_slots,
        spare_pages,
        seqs,
        budget,
        policy,
        most_drafts,
        head,
        chunked,
        seed,
    ):
        slots = None if kind == "attention" else 1 + spare_slots
        pages = None if kind == "mamba" else -(-(LONGEST - 1) // page_size) + spare_pages
        cache = make_cache(slots, pages, page_size, mode, block, head)
        chunked = chunked or mode == "align"
        budget = budget if chunked else LONGEST + budget
        self.scheduler = Scheduler(cache, seqs, budget, policy, chunked)
        self.model = SimulatedModel(self.scheduler)
        self.live: dict[str, Request] = {}
        self.scored: dict[Request, int] = {}
        self.count = 0
        self.budget, self.seqs = budget, seqs
        self.most_drafts, self.draws = most_drafts, random.Random(seed)
        self.pinned = None

    @rule(
        trunk=st.sampled_from(TRUNKS),
        shared=st.integers(0, 40),
        tail=st.lists(st.integers(0, 2), min_size=1, max_size=8),
        new=st.integers(1, 8),
        salt=st.sampled_from([None, None, None, "a"]),
        priority=st.integers(0, 2),
        scored=st.sampled_from([None, None, None, "prompt and text", "prompt"]),
    )
    def add(self, trunk, shared, tail, new, salt, priority, scored):
        prompt = trunk[:shared] + tail
        if scored == "prompt" and len(prompt) > 1:
            new = 0
        self._add(prompt, new, salt, priority, scored is not None)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), new=st.integers(1, 8))
    def add_the_same_again(self, data, new):
        other = data.draw(st.sampled_from(list(self.live.values())))
        known = other.prompt_token_ids + other.output_token_ids
        scored = data.draw(st.booleans())
        self._add(known[: LONGEST - new], new, other.cache_salt, other.priority, scored)

    @rule(count=st.integers(1, 5))
    def steps(self, count):
        for _ in range(count):
            self._step(set())

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def step_in_which_requests_are_aborted(self, data):
        self._step(set(data.draw(st.lists(st.sampled_from(list(self.live)), max_size=2))))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def step_in_which_an_id_is_used_again(self, data):
        """The step must not count for the new request of an aborted one's name."""
        plan = self.scheduler.plan()
        victim = data.draw(st.sampled_from(list(self.live)))
        self.scheduler.remove(victim)
        old = self.live.pop(victim)
        tokens = self.model.execute(plan, self.live)
        again = Request(victim, list(old.prompt_token_ids), old.max_tokens)
        self.scheduler.add(again)
        self.live[victim] = again
        tokens.pop(victim, None)
        self._accept(plan, tokens)
        assert again.num_computed == 0

    @rule()
    def step_that_fails(self):
        if self.scheduler.plan().sequences:
            self.scheduler.drop()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data):
        request_id = data.draw(st.sampled_from(list(self.live)))
        self.scheduler.remove(request_id)
        del self.live[request_id]

    @precondition(lambda self: self.scheduler.running)
    @rule(data=st.data())
    def preempt(self, data):
        self.scheduler.preempt(data.draw(st.sampled_from(list(self.scheduler.running))))

    @rule()
    def reset(self):
        self.scheduler.reset_cache()
        for pool in (self.scheduler.cache.slots, self.scheduler.cache.pages):
            assert pool is None or pool.cached == 0

    @invariant()
    def everything_is_owned_once(self):
        self.scheduler.check()
        self.model.check()

    def teardown(self):
        if not hasattr(self, "live"):
            return
        rows = sum(r.num_tokens + r.max_tokens for r in self.live.values())
        for _ in range(2 * rows + 10):
            self._step(set())
            self.everything_is_owned_once()
        assert not self.live and not self.scheduler.has_unfinished, "no progress"
        for pool in (self.scheduler.cache.slots, self.scheduler.cache.pages):
            assert pool is None or pool.owned == 0, f"{pool.name} leaked"
        self.scheduler.reset_cache()
        for pool in (self.scheduler.cache.slots, self.scheduler.cache.pages):
            assert pool is None or pool.free == pool.total

    def _add(self, prompt, new, salt, priority, scored):
        request = Request(str(self.count), prompt, new, priority=priority, cache_salt=salt)
        if scored:
            request.num_scored = self.scored[request] = 0
        self.count += 1
        self.scheduler.add(request)
        self.live[request.request_id] = request

    def _step(self, aborted):
        plan = self.scheduler.plan()
        assert bool(plan.sequences) == bool(self.live), "requests wait, but nothing runs"
        if not plan.sequences:
            return
        self.scheduler.check()
        assert plan.num_tokens <= self.budget
        assert len(plan.sequences) <= self.seqs
        ends = [s.num_outputs or not self.live[s.request_id].max_tokens for s in plan.sequences]
        assert self.scheduler.chunked or all(ends), "a cut prompt"
        tokens = self.model.execute(plan, self.live)
        for request_id in aborted:
            self.scheduler.remove(request_id)
            del self.live[request_id]
            self.scheduler.check()
        self._accept(plan, tokens)

    def _accept(self, plan, tokens):
        accepted, finished = {}, set()
        for rows in plan.sequences:
            request = self.live.get(rows.request_id)
            if request is None or not self.scheduler.is_in_flight(request):
                continue
            end = rows.num_computed + len(rows.tokens)
            if rows.num_scored:
                assert self.scored[request] == end - rows.num_logits, "a prompt row is left out"
                self.scored[request] += rows.num_scored
            if not request.max_tokens and end == request.num_rows:
                finished.add(rows.request_id)
        for request_id, sampled in tokens.items():
            request = self.live.get(request_id)
            if request is None:
                continue
            accepted[request_id] = kept(request, plan, sampled)
            # A stop inside the accepted run cuts it.
            if self.draws.random() < 0.1:
                accepted[request_id] = accepted[request_id][: self.draws.randint(1, 4)]
            if len(request.output_token_ids) + len(accepted[request_id]) == request.max_tokens:
                finished.add(request_id)
        self.scheduler.fold(plan, accepted)
        # The head's rows of a request may wait, but not of one that ends.
        self.model.run_head(lambda r: r.request_id not in finished and self.draws.random() < 0.3)
        self.scheduler.settle(finished)
        for request in self.scheduler.running.values():
            if request.request_id in accepted:
                self._draft(request)
        for request_id in finished:
            request = self.live.pop(request_id)
            assert self.scored.get(request) in (None, len(request.prompt_token_ids) - 1)
            want = continuation(request.prompt_token_ids, request.max_tokens)
            assert request.output_token_ids == want

    def _draft(self, request):
        """Proposes some right tokens, and then a wrong one."""
        text = request.prompt_token_ids + request.output_token_ids
        right = self.draws.randint(0, self.most_drafts)
        drafts = continuation(text, right + 1)
        drafts[right] = (drafts[right] + 1) % VOCAB
        request.drafts = drafts[: self.draws.randint(0, self.most_drafts)]


TestCacheAndScheduler = CacheAndScheduler.TestCase
TestCacheAndScheduler.settings = settings(
    max_examples=STEPS // STEPS_PER_RUN,
    stateful_step_count=STEPS_PER_RUN,
    deadline=None,
    derandomize=STEPS <= 5000,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
