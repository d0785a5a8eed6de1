"""`coachwhip batch` in one go: what it writes, and what it refuses with which exit code."""

import gzip
import io
import json
import shutil

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion

from coachwhip.batch.prepare import PreparedBatch
from coachwhip.locate import small_model_dir
from tests.batch.requests import chat, completion, read_lines, timeless, write_lines
from tests.cli.one_line import one_line

DOCUMENTED = b"""\
{"custom_id": "request-1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": \
"gpt-3.5-turbo-0125", "messages": [{"role": "system", "content": "You are a helpful assistant."},\
{"role": "user", "content": "Hello world!"}],"max_tokens": 1000}}
{"custom_id": "request-2", "method": "POST", "url": "/v1/chat/completions", "body": {"model": \
"gpt-3.5-turbo-0125", "messages": [{"role": "system", "content": "You are an unhelpful assistant."}\
,{"role": "user", "content": "Hello world!"}],"max_tokens": 1000}}
"""
"""The example in OpenAI's guide to its Batch API."""


def parsed(line: dict):
    """Returns a line's body as the type of OpenAI's client."""
    assert line.keys() == {"id", "custom_id", "response", "error"}
    assert line["response"].keys() == {"status_code", "request_id", "body"}
    body = line["response"]["body"]
    kind = ChatCompletion if body["object"] == "chat.completion" else Completion
    return kind.model_validate(body, strict=True)


@pytest.mark.slow
def test_the_documented_file_works_unchanged(tmp_path, run):
    (tmp_path / "in.jsonl").write_bytes(DOCUMENTED)
    code, out, err = run("batch", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"))
    assert (code, out) == (0, ""), err
    assert 'lines name "gpt-3.5-turbo-0125" in 2' in err and "2 of 2 requests done" in err
    lines = read_lines(tmp_path / "out.jsonl")
    assert {line["custom_id"] for line in lines} == {"request-1", "request-2"}
    for line in lines:
        assert line["response"]["status_code"] == 200 and line["error"] is None
        assert parsed(line).choices[0].message.content
    assert {p.name for p in tmp_path.iterdir()} == {"in.jsonl", "out.jsonl", "out.jsonl.journal"}


@pytest.mark.slow
def test_lines_are_what_the_model_gives_alone(tmp_path, run):
    from coachwhip import LLM, SamplingParams

    shared = "The state of the Union is strong, and so is our economy. " * 20
    lines = [completion(f"g{i}", shared + str(i), max_tokens=9, logprobs=2) for i in range(8)]
    lines += [
        completion(f"s{i}", [1, 5 + i], temperature=1, seed=i, max_tokens=9) for i in range(4)
    ]
    lines += [chat(f"c{i}", f"{shared} {i}?", max_completion_tokens=9) for i in range(4)]
    source = write_lines(tmp_path / "in.jsonl", lines)
    code, _, err = run("batch", str(source), str(tmp_path / "out.jsonl"))
    assert code == 0, err
    found = {line["custom_id"]: parsed(line) for line in read_lines(tmp_path / "out.jsonl")}
    assert found.keys() == {line["custom_id"] for line in lines}
    assert sum(one.usage.prompt_tokens_details.cached_tokens for one in found.values()) > 2000

    llm = LLM(enable_prefix_caching=False, max_num_seqs=1)
    for line in lines:
        body, got = line["body"], found[line["custom_id"]].choices[0]
        if "messages" in body:
            (alone,) = llm.chat(body["messages"], SamplingParams(max_tokens=9))
            assert got.message.content == alone.outputs[0].text
            continue
        params = SamplingParams(
            max_tokens=9,
            temperature=body.get("temperature", 0),
            seed=body.get("seed"),
            logprobs=body.get("logprobs"),
        )
        prompt = body["prompt"]
        if not isinstance(prompt, str):
            prompt = {"prompt_token_ids": prompt}
        (alone,) = llm.generate(prompt, params)
        assert got.text == alone.outputs[0].text
        if params.logprobs:
            own = [
                lp[t]
                for t, lp in zip(alone.outputs[0].token_ids, alone.outputs[0].logprobs, strict=True)
            ]
            assert got.logprobs.token_logprobs == own


@pytest.mark.slow
def test_neither_order_nor_cache_nor_drafts_change_a_text(tmp_path, run):
    lines = [completion(f"u{i}", f"We have {i % 3}", temperature=1, n=2) for i in range(12)]
    lines += [chat(f"c{i}", "How is the state of the Union? " * 12 + str(i)) for i in range(6)]
    for line in lines:
        line["body"].setdefault("max_tokens", 12)
    ways = {
        "default": [],
        "one": ["--max-inflight", "1", "--no-enable-prefix-caching"],
        "drafts": ["--spec-method", "ngram", "--spec-tokens", "2"],
    }
    found = {}
    for way, flags in ways.items():
        turned = lines if way == "default" else lines[::-1]
        source = write_lines(tmp_path / f"{way}.jsonl", turned)
        output = tmp_path / f"{way}-out.jsonl"
        code, _, err = run("batch", str(source), str(output), *flags)
        assert code == 0, err
        found[way] = timeless(read_lines(output))
    assert found["default"] == found["one"] == found["drafts"]


@pytest.mark.slow
def test_compressed_and_standard_input_and_parts(tmp_path, run):
    lines = [completion(f"r{i}", f"We have {i}", max_tokens=4) for i in range(10)]
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    whole = tmp_path / "in.jsonl"
    whole.write_bytes(text)
    assert run("batch", str(whole), str(tmp_path / "whole.jsonl"))[0] == 0
    expected = timeless(read_lines(tmp_path / "whole.jsonl"))

    packed = tmp_path / "in.jsonl.gz"
    packed.write_bytes(gzip.compress(text))
    assert run("batch", str(packed), str(tmp_path / "gz.jsonl"))[0] == 0
    assert timeless(read_lines(tmp_path / "gz.jsonl")) == expected

    assert run("batch", "-", str(tmp_path / "stdin.jsonl"), stdin=text)[0] == 0
    assert timeless(read_lines(tmp_path / "stdin.jsonl")) == expected

    parts = []
    for i in (1, 2, 3):
        output = tmp_path / f"part{i}.jsonl"
        assert run("batch", str(whole), str(output), "--shard", f"{i}/3")[0] == 0
        parts += read_lines(output)
    assert timeless(parts) == expected

    output = tmp_path / "limit.jsonl"
    assert run("batch", str(whole), str(output), "--limit", "3")[0] == 0
    assert [line["custom_id"] for line in timeless(read_lines(output))] == ["r0", "r1", "r2"]
    code, _, err = run("batch", str(whole), str(output))  # the rest
    assert code == 0 and "10 of 10 requests done, 3 of them by earlier runs" in err
    assert timeless(read_lines(output)) == expected


@pytest.mark.slow
def test_requests_that_fail_are_in_both_files(tmp_path, run):
    lines = [completion("long", "x " * 5000), chat("role", "hi"), completion("good")]
    lines[1]["body"]["messages"][0]["role"] = "tool"
    source, output = write_lines(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    code, _, err = run("batch", str(source), str(output))
    assert code == 3 and "2 failed" in err and "out.errors.jsonl" in err
    found = {line["custom_id"]: line for line in read_lines(output)}
    assert found.keys() == {"long", "role", "good"}
    failed = {line["custom_id"]: line for line in read_lines(tmp_path / "out.errors.jsonl")}
    assert failed == {name: found[name] for name in ("long", "role")}
    assert failed["long"]["response"]["status_code"] == 400
    assert failed["long"]["error"]["code"] == "context_length_exceeded"
    assert failed["long"]["response"]["body"]["error"]["param"] == "prompt"
    # Nothing is left to do, and the answer is the same.
    code, _, err = run("batch", str(source), str(output))
    assert code == 3 and "out.jsonl is complete" in err


@pytest.mark.slow
def test_what_is_refused_leaves_everything_as_it_was(tmp_path, run):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_lines(source, [completion("a"), completion("b")])
    assert run("batch", str(source), str(output))[0] == 0
    model = tmp_path / "model"
    shutil.copytree(small_model_dir(), model)
    with (model / "generation_config.json").open("a") as file:
        file.write("\n")

    def files() -> dict:
        return {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}

    def refused(part: str, *arguments: str) -> None:
        before = files()
        code, _, err = run("batch", *arguments)
        assert (code, part in one_line(err)) == (2, True), err
        assert files() == before

    refused("begun with another model", str(source), str(output), "--model", str(model))
    refused("begun with max_model_len", str(source), str(output), "--max-model-len", "99")
    refused("the input", str(source), str(source))
    other = write_lines(tmp_path / "other.jsonl", [completion("c")])
    refused("no journal beside it", str(other), str(source))
    refused("no such folder", str(source), str(tmp_path / "no" / "out"))
    write_lines(other, [completion("a", model="x")])
    new = str(tmp_path / "new.jsonl")
    refused('model is "x", which is not served', str(other), new, "--served-model-name", "y")
    refused("has no requests", "-", new)
    refused('--shard is "0/3": give i/n', str(other), new, "--shard", "0/3")
    write_lines(source, [completion("a"), completion("b", "changed")])
    refused('line 2, "b", had another body', str(source), str(output))
    write_lines(source, [completion("a"), b"{", completion("a")])
    refused("line 2: no JSON", str(source), new)
    write_lines(source, [completion("a"), completion("a")])
    refused("lines 1 and 2 have the same custom_id", str(source), new)


@pytest.mark.slow
def test_an_input_that_changes_in_a_run_is_no_refusal(tmp_path, run, monkeypatch):
    source, output = write_lines(tmp_path / "in.jsonl", [completion("a")]), tmp_path / "out.jsonl"
    begin = PreparedBatch.begin

    def late(self):
        with source.open("a") as file:
            file.write("\n")
        return begin(self)

    monkeypatch.setattr(PreparedBatch, "begin", late)
    code, _, err = run("batch", str(source), str(output))
    assert code == 1 and "in.jsonl: changed while it was read" in one_line(err)


@pytest.mark.slow
def test_fewer_run_at_a_time_where_memory_is_short(tmp_path, run):
    source = write_lines(tmp_path / "in.jsonl", [completion("a")])
    few = ["--cache-memory", "8MiB"]  # room for the engine's default of 8, not for a batch's 32
    code, _, err = run("batch", str(source), str(tmp_path / "out.jsonl"), *few)
    assert code == 0, err
    code, _, err = run(
        "batch", str(source), str(tmp_path / "o.jsonl"), *few, "--max-num-seqs", "32"
    )
    assert code == 2 and "for 32 slots" in one_line(err)


def test_the_help_names_the_exit_codes(run):
    code, out, _ = run("batch", "--help")
    assert code == 0 and "130 after Ctrl-C" in " ".join(out.split())


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_the_bar_is_for_terminals():
    from coachwhip.batch.counts import BatchCounts
    from coachwhip.batch.progress import batch_progress

    counts = BatchCounts(4, before=1)
    for stream in (io.StringIO(), Terminal()):
        with batch_progress(counts, stream) as redraw:
            counts.done, counts.failed = 2, 1
            counts.drafted_tokens, counts.accepted_tokens = 4, 3
            redraw()
        shown = stream.getvalue()
        if stream.isatty():
            assert "3/4" in shown and "accepted 75%" in shown and "1 failed" in shown
        else:
            assert shown == ""
