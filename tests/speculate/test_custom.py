"""A user's drafter is asked with what it needs; whatever it does costs drafts at most."""

import numpy as np
import pytest

from coachwhip.speculate.custom import CustomDrafter
from tests.speculate.drafting import request, step


class Answering:
    """Answers each call with what it is given, or raises it."""

    def __init__(self, *answers: object) -> None:
        self.answers, self.calls = list(answers), []

    def propose(self, request_id, token_ids, k):
        self.calls.append((request_id, token_ids, k))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def ask(*answers: object, k: int = 3, vocab: int = 100) -> tuple[list, list[str]]:
    """Returns what is used of each answer, and the warnings."""
    lines: list[str] = []
    drafter = CustomDrafter(Answering(*answers), vocab, lines.append)
    found = [drafter.propose(step([request("a", [1, 2])], k)).get("a", []) for _ in answers]
    return found, lines


def test_it_is_asked_with_id_text_and_number_of_drafts():
    answering = Answering([5], [6, 7])
    drafter = CustomDrafter(answering, 100, None)
    requests = [request("a", [1, 2], [3]), request("b", [4]), request("c", [9])]
    assert drafter.propose(step(requests, {"a": 2, "b": 4})) == {"a": [5], "b": [6, 7]}
    assert answering.calls == [("a", [1, 2, 3], 2), ("b", [4], 4)]


@pytest.mark.parametrize(
    "answer, used",
    [
        ([], []),
        ((), []),
        ([5, 6, 7], [5, 6, 7]),
        (np.array([5, 6]), [5, 6]),
        (iter([5, 6]), [5, 6]),
        ([5.0, 0, 99], [5, 0, 99]),
    ],
)
def test_what_can_be_used_is_used_without_a_word(answer, used):
    found, lines = ask(answer)
    assert (found, lines) == ([used], [])
    assert all(type(token) is int for token in found[0])


@pytest.mark.parametrize(
    "answer, used, part",
    [
        ([5, 6, 7, 8], [5, 6, 7], "proposed 4 tokens for a, 3 were asked for"),
        ([5, 100, 6], [5], "proposed 100 for a, which is no token id"),
        ([5, -1], [5], "proposed -1"),
        (["x", 5], [], "proposed 'x'"),
        ([5, 1.5], [5], "proposed 1.5"),
        ([float("nan")], [], "proposed nan"),
        ([float("inf")], [], "proposed inf"),
        ([None], [], "proposed None"),
        (None, [], "raised TypeError"),
        (7, [], "raised TypeError"),
        (ValueError("no draft"), [], "raised ValueError: no draft"),
    ],
)
def test_what_cannot_is_left_out_and_warned_of(answer, used, part):
    found, lines = ask(answer)
    assert found == [used]
    (line,) = lines
    assert line.startswith("the drafter ") and part in line and "the text is right" in line


def test_one_warning_is_enough_and_good_drafts_go_on():
    found, lines = ask([100], ValueError("no"), [5], [5, 6, 7, 8])
    assert found == [[], [], [5], [5, 6, 7]]
    assert len(lines) == 1


def test_one_request_that_fails_leaves_the_others_theirs():
    drafter = CustomDrafter(Answering(ValueError("no"), [5]), 100, None)
    assert drafter.propose(step([request("a", [1]), request("b", [2])], 2)) == {"b": [5]}


def test_it_hears_of_the_end_of_a_request_if_it_wants_to():
    lines: list[str] = []
    CustomDrafter(Answering(), 100, lines.append).forget("a")
    assert lines == []

    class Forgetting(Answering):
        def forget(self, request_id):
            self.calls.append(request_id)
            raise KeyError(request_id)

    forgetting = Forgetting()
    drafter = CustomDrafter(forgetting, 100, lines.append)
    drafter.forget("a")
    drafter.forget("b")
    assert forgetting.calls == ["a", "b"]
    (line,) = lines
    assert "raised KeyError in forget" in line
