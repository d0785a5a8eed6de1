"""Every line is checked before anything runs, and memory does not grow with them."""

import json
import os
import tracemalloc

import pytest

from coachwhip.batch.input_file import BatchInput
from coachwhip.batch.validate import CheckedInput, validate
from coachwhip.errors import BatchError
from tests.batch.requests import chat, completion, write_lines

LINES = int(os.environ.get("COACHWHIP_BATCH_LINES", "20000"))
"""Lines of the largest input; a million takes minutes."""


def check(frontend, path) -> CheckedInput:
    return validate(BatchInput(str(path), path.parent), frontend)


def test_a_right_input_is_counted_and_remarked_upon(tmp_path, frontend):
    lines = [completion("a", model="x", routed=1), chat("b", model="small"), chat("c", model="x")]
    found = check(frontend, write_lines(tmp_path / "in", lines))
    assert len(found.ids) == 3
    assert found.other_models == {"x": 2} and found.ignored_fields == {"routed": 1}
    assert check(frontend, write_lines(tmp_path / "again", lines)).digest == found.digest
    assert check(frontend, write_lines(tmp_path / "less", lines[:2])).digest != found.digest


@pytest.mark.parametrize(
    "line, part",
    [
        (b"{", "no JSON: EOF"),
        (b'{"custom_id": "\xff"}', "no JSON"),
        (b'{"custom_id": NaN}', "no JSON"),
        (b"[" * 5000, "no JSON: recursion"),
        (b"[]", "it is []: give a JSON object"),
        ({"custom_id": "b"}, "method is missing"),
        ({**completion("b"), "custom_id": ""}, 'custom_id is ""'),
        ({**completion("b"), "custom_id": 5}, "custom_id is 5"),
        ({**completion("b"), "method": "GET"}, 'method is "GET": give POST'),
        ({**completion("b"), "url": "/v1/embeddings"}, 'url is "/v1/embeddings": give /v1/'),
        ({**completion("b"), "url": ["x"]}, "url is"),
        ({**completion("b"), "body": "x"}, 'body is "x"'),
        (completion("b", temperature="5"), 'body: temperature is "5": give a number'),
        (completion("b", temperature=-1), "body: temperature is -1"),
        (completion("b", priority=1), "body: priority is 1"),
        (completion("b", stream=True), "body: stream is true"),
        (chat("b", top_logprobs=3), "body: top_logprobs is 3"),
    ],
)
def test_a_wrong_line_is_numbered_and_described(tmp_path, frontend, line, part):
    path = write_lines(tmp_path / "in", [completion("a"), b"", line, completion("c")])
    with pytest.raises(BatchError) as caught:
        check(frontend, path)
    assert f"line 3: {part}" in str(caught.value) and "\n" not in str(caught.value)


def test_all_wrong_lines_are_told_at_once_up_to_a_number(tmp_path, frontend):
    path = write_lines(tmp_path / "in", [b"x"] * 70 + [completion("a")])
    with pytest.raises(BatchError) as caught:
        check(frontend, path)
    head, *listed = str(caught.value).splitlines()
    assert "70 lines are wrong" in head and "nothing was run" in head
    assert len(listed) == 51 and "line 50:" in listed[49] and "and 20 more" in listed[50]


def test_a_repeated_id_names_both_lines(tmp_path, frontend):
    lines = [completion(name) for name in ("a", "b", "c")]
    path = write_lines(tmp_path / "in", [*lines, b"", chat("b"), chat("a")])
    with pytest.raises(BatchError, match='lines 2 and 5 have the same custom_id "b"'):
        check(frontend, path)


def test_names_that_are_not_served_are_wrong_where_names_count(tmp_path, frontend):
    from dataclasses import replace

    strict = replace(frontend, any_model=False)
    check(strict, write_lines(tmp_path / "in", [completion("a", model="small")]))
    path = write_lines(tmp_path / "other", [completion("a", model="gpt")])
    with pytest.raises(BatchError, match='line 1: body: model is "gpt"'):
        check(strict, path)


def test_an_empty_input_has_nothing_to_run(tmp_path, frontend):
    with pytest.raises(BatchError, match="has no requests"):
        check(frontend, write_lines(tmp_path / "in", [b"", b"  "]))


def test_memory_grows_by_a_few_bytes_for_each_line(tmp_path, frontend):
    def peak(count: int) -> int:
        path = tmp_path / f"{count}"
        with path.open("w") as file:
            for i in range(count):
                # No two bodies are alike, so nothing is gained by remembering them.
                line = completion(f"request-{i}", f"Hello {i}", seed=i)
                file.write(json.dumps(line) + "\n")
        tracemalloc.start()
        found = check(frontend, path)
        assert len(found.ids) == count
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    few = LINES // 4
    peak(few)  # what is made once
    growth = (peak(LINES) - peak(few)) / (LINES - few)
    # 16 bytes are kept; finding repeated ids takes a few times that, once.
    assert growth < 100
