"""The loop of the engine process over an engine made of nothing: failures and readers that stop."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from coachwhip.errors import EngineError, RequestError
from coachwhip.outputs import CompletionOutput, RequestOutput
from coachwhip.sampling.params import SamplingParams
from coachwhip.serve.engine_link import EngineLink, PeerGone
from coachwhip.serve.engine_process import EngineServer
from coachwhip.serve.framing import Unframer, frame
from coachwhip.serve.messages import Abort, Add, Event, Refused, Updates


class Engine:
    """Writes a token for each request in each step, and fails where told to."""

    def __init__(self) -> None:
        self.outputs: dict[str, RequestOutput] = {}
        self.fails_at: dict[int, bool] = {}
        """Step -> whether the requests of the step end with it."""
        self.steps = 0

    @property
    def has_unfinished(self) -> bool:
        return bool(self.outputs)

    def add_request(self, request_id, prompt_token_ids, params, *, priority, cache_salt):
        if not prompt_token_ids:
            raise RequestError("prompt", [], "it is empty")
        completion = CompletionOutput(0, "", [])
        output = RequestOutput(request_id, None, prompt_token_ids, [completion], False)
        self.outputs[request_id] = output
        output.most = params.max_tokens
        return output

    def abort(self, request_id) -> None:
        self.outputs.pop(request_id, None)

    def step(self) -> list[RequestOutput]:
        self.steps += 1
        grown = list(self.outputs.values())
        if self.steps in self.fails_at:
            for output in grown if self.fails_at[self.steps] else ():
                self._end(output, "error", "the step failed: no memory")
            raise EngineError("no memory")
        for output in grown:
            completion = output.outputs[0]
            completion.token_ids.append(self.steps)
            completion.text += "ab"
            if len(completion.token_ids) == output.most:
                self._end(output, "length")
        return grown

    def _end(self, output: RequestOutput, reason: str, error: str | None = None) -> None:
        output.outputs[0].finish_reason, output.error, output.finished = reason, error, True
        del self.outputs[output.request_id]


class Side:
    """The other end of a server that runs on a thread."""

    def __init__(self, engine: Engine) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(20)
        self._unframer = Unframer(Event)
        self.raised: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(engine, EngineLink(theirs)))
        self._theirs = theirs
        self._thread.start()

    def _run(self, engine: Engine, link: EngineLink) -> None:
        try:
            EngineServer(engine, link).run()
        except BaseException as error:
            self.raised.append(error)
        self._theirs.close()

    def send(self, *commands) -> None:
        self._socket.sendall(b"".join(map(frame, commands)))

    def events(self, until) -> list:
        """Returns events until one of them pleases."""
        found = []
        while not found or not until(found[-1]):
            found += self._unframer.feed(self._socket.recv(65536))
        return found

    def end(self) -> BaseException:
        self._socket.close()
        self._thread.join(20)
        (error,) = self.raised
        return error


@pytest.fixture
def engine() -> Engine:
    return Engine()


def ended(request_id: str):
    """Returns what says whether an event has the end of a request."""

    def says(event) -> bool:
        return isinstance(event, Updates) and any(
            u.request_id == request_id and u.finish_reason for u in event.updates
        )

    return says


def text(events: list, request_id: str) -> str:
    updates = [u for e in events if isinstance(e, Updates) for u in e.updates]
    return "".join(u.text for u in updates if u.request_id == request_id)


def test_texts_come_whole_and_end(engine) -> None:
    side = Side(engine)
    side.send(Add("a", [1], SamplingParams(max_tokens=5)))
    side.send(Add("b", [1], SamplingParams(max_tokens=9)))
    events = side.events(until=ended("b"))
    assert (text(events, "a"), text(events, "b")) == ("ab" * 5, "ab" * 9)
    assert isinstance(side.end(), PeerGone)


def test_a_request_that_is_refused_ends_no_other(engine) -> None:
    side = Side(engine)
    side.send(Add("a", [1], SamplingParams(max_tokens=3)), Add("b", [], SamplingParams()))
    events = side.events(until=ended("a"))
    assert Refused("b", "prompt", "[]", "it is empty") in events
    assert isinstance(side.end(), PeerGone)


def test_a_failed_step_ends_its_requests_and_the_engine_goes_on(engine, capsys) -> None:
    engine.fails_at = {3: True}
    side = Side(engine)
    side.send(Add("a", [1], SamplingParams(max_tokens=50)))
    last = side.events(until=ended("a"))[-1].updates[0]
    assert last.finish_reason == "error" and "no memory" in last.error
    side.send(Add("b", [1], SamplingParams(max_tokens=4)))
    assert text(side.events(until=ended("b")), "b") == "ab" * 4
    assert isinstance(side.end(), PeerGone)
    assert "a step failed: no memory" in capsys.readouterr().err


def test_steps_that_fail_and_end_nothing_end_the_process(engine) -> None:
    engine.fails_at = dict.fromkeys(range(2, 50), False)
    side = Side(engine)
    side.send(Add("a", [1], SamplingParams(max_tokens=50)))
    side._thread.join(20)
    assert isinstance(side.end(), EngineError)


def test_an_aborted_request_is_not_heard_of_again(engine) -> None:
    side = Side(engine)
    side.send(Add("a", [1], SamplingParams(max_tokens=10**9)))
    side.events(until=lambda event: event.updates)
    side.send(Abort(["a", "unknown"]), Add("b", [1], SamplingParams(max_tokens=2)))
    side.events(until=ended("b"))
    assert not engine.has_unfinished
    assert isinstance(side.end(), PeerGone)


def test_the_engine_goes_on_while_nobody_reads_and_nothing_is_lost(engine) -> None:
    side = Side(engine)
    side.send(Add("a", [1], SamplingParams(max_tokens=20_000)))
    while engine.has_unfinished or not engine.steps:
        time.sleep(0.01)  # more than the socket holds, if each step were an event of its own
    events = side.events(until=ended("a"))
    assert text(events, "a") == "ab" * 20_000
    assert len(events) < 20_000
    assert isinstance(side.end(), PeerGone)
