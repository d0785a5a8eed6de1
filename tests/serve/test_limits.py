"""Keys, the queue, deadlines, the log, and what monitors read."""

from __future__ import annotations

import asyncio
import json
import re
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from coachwhip.cache.stats import MISS_REASONS
from tests.serve.conftest import POOLS
from tests.serve.server import Server
from tests.serve.streams import open_request, stream

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
ENDLESS = {"prompt": "On", "max_tokens": 4000, "ignore_eos": True}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory) -> Server:
    """A server with keys, a short queue, a deadline, and a log in JSON."""
    running = Server(
        tmp_path_factory.mktemp("guarded") / "log",
        *POOLS,
        *("--host", "127.0.0.1", "--max-num-seqs", "2", "--max-queue-size", "2"),
        *("--request-timeout", "30", "--log-format", "json", "--api-key", "first-key"),
        *("--served-model-name", "mine", "--served-model-name", "other"),
        environment={"COACHWHIP_DRAIN_SECONDS": "1"},
    )
    yield running
    assert running.stop() == 0


def ask(server: Server, path: str, body: object = None, key: str | None = "first-key", **headers):
    """Returns status, headers and JSON body of a request with a key."""
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    status, found, data = server.request("POST" if body else "GET", path, body, headers)
    return status, found, json.loads(data) if data.startswith(b"{") else data


def test_a_key_is_needed_where_prompts_are(guarded: Server) -> None:
    body = {"prompt": "a", "max_tokens": 1}
    for path, data in (
        (COMPLETIONS, body),
        (CHAT, {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
        ("/v1/models", None),
        ("/tokenize", {"prompt": "a"}),
        ("/detokenize", {"tokens": [5]}),
        ("/reset_prefix_cache", {"a": 1}),
        ("/status", None),
        ("/openapi.json", None),
    ):
        for key in (None, "", "first-ke", "first-key2", "\u00fc"):
            headers = {} if key is None else {"Authorization": f"Bearer {key}".encode("latin-1")}
            status, found, raw = guarded.request("POST" if data else "GET", path, data, headers)
            assert status == 401 and found["www-authenticate"] == "Bearer"
            assert json.loads(raw)["error"]["code"] == "invalid_api_key"
        assert ask(guarded, path, data)[0] == 200
    basic = {"Authorization": "Basic first-key"}
    assert guarded.request("POST", COMPLETIONS, body, basic)[0] == 401


def test_the_page_and_monitors_need_no_key(guarded: Server) -> None:
    for path in ("/", "/page.css", "/page.js", "/health", "/version", "/metrics"):
        assert ask(guarded, path, key=None)[0] == 200


def test_the_model_has_all_its_names(guarded: Server) -> None:
    _, _, found = ask(guarded, "/v1/models")
    assert [model["id"] for model in found["data"]] == ["mine", "other"]
    for name, status in (("mine", 200), ("other", 200), ("small", 404)):
        body = {"prompt": "a", "max_tokens": 1, "model": name}
        assert ask(guarded, COMPLETIONS, body)[0] == status


def test_a_full_queue_answers_429_and_when_to_come_again(guarded: Server) -> None:
    async def fill() -> tuple:
        key = {"Authorization": "Bearer first-key"}
        writers = []
        for _ in range(4):
            _, writer = await open_request(
                guarded.port, COMPLETIONS, ENDLESS | {"stream": True}, headers=key
            )
            writers.append(writer)
        while True:
            requests = ask(guarded, "/status")[2]["requests"]
            if (requests["running"], requests["waiting"]) == (2, 2):
                break
            await asyncio.sleep(0.01)
        answer = ask(guarded, COMPLETIONS, {"prompt": "a", "max_tokens": 1})
        too_many = ask(guarded, COMPLETIONS, {"prompt": "a", "max_tokens": 1, "n": 5})
        for writer in writers:
            writer.close()
        return answer, too_many

    (status, headers, body), too_many = asyncio.run(fill())
    assert status == 429 and int(headers["retry-after"]) >= 1
    assert body["error"]["type"] == "rate_limit_error" and body["error"]["code"] == "queue_full"
    assert "4 texts run or wait already, of at most 4" in body["error"]["message"]
    assert too_many[0] == 400 and too_many[2]["error"]["param"] == "n"
    while sum(ask(guarded, "/status")[2]["requests"][k] for k in ("running", "waiting")):
        time.sleep(0.02)
    assert ask(guarded, COMPLETIONS, {"prompt": "a", "max_tokens": 1})[0] == 200


def test_a_deadline_ends_a_text(guarded: Server) -> None:
    status, headers, body = ask(guarded, COMPLETIONS, ENDLESS | {"timeout": 0.05})
    assert status == 408 and headers["x-should-retry"] == "false"
    assert body["error"]["code"] == "deadline_exceeded" and "0.05 s" in body["error"]["message"]
    key = {"Authorization": "Bearer first-key"}
    body = ENDLESS | {"timeout": 0.3}
    found = asyncio.run(stream(guarded.port, COMPLETIONS, body, headers=key))
    assert found.status == 200 and found.is_complete and found.text
    assert found.error["code"] == "deadline_exceeded"


def test_the_log_has_one_object_for_each_request(guarded: Server) -> None:
    body = {"prompt": "a", "max_tokens": 3}
    assert ask(guarded, COMPLETIONS, body, **{"X-Request-Id": "mine-1"})[1]["x-request-id"] == (
        "mine-1"
    )
    made_up = ask(guarded, COMPLETIONS, body, **{"X-Request-Id": "a b\tc"})[1]["x-request-id"]
    assert re.fullmatch("[0-9a-f]{32}", made_up)
    guarded.wait_for_line(re.compile(made_up), 5)
    lines = [json.loads(line) for line in guarded.log.read_text().splitlines()]
    (line,) = [found for found in lines if found.get("request_id") == "mine-1"]
    assert line["status"] == 200 and line["path"] == COMPLETIONS and line["method"] == "POST"
    assert line["completion_tokens"] == 3 and line["finish"] == "length" and line["model"] == "mine"
    assert 0 < line["first_token_s"] <= line["seconds"]
    assert "first-key" not in guarded.log.read_text()


def samples(server: Server) -> dict[str, float]:
    """Returns every sample of /metrics: name and labels but the model's -> value."""
    _, _, text = server.request("GET", "/metrics")
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            assert sample.labels["model_name"]
            labels = {k: v for k, v in sorted(sample.labels.items()) if k != "model_name"}
            inner = ",".join(f"{k}={v}" for k, v in labels.items())
            found[sample.name + (f"{{{inner}}}" if inner else "")] = sample.value
    return found


VLLM = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "num_preemptions_total",
    "time_to_first_token_seconds_count",
    "inter_token_latency_seconds_count",
    "e2e_request_latency_seconds_count",
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "spec_decode_num_accepted_tokens_per_pos_total{position=0}",
    "request_success_total{finished_reason=length}",
)


def test_metrics_count_what_was_served(server: Server) -> None:
    server.wait_until_idle()
    before = samples(server)
    body = {"prompt": "We hold these truths " * 40, "max_tokens": 10, "temperature": 0}
    for _ in range(2):
        usage = server.post(COMPLETIONS, body)["usage"]
    after = samples(server)

    def grown(name: str) -> float:
        return after[name] - before[name]

    assert [name for name in VLLM if f"vllm:{name}" not in after] == []
    assert [name for name in VLLM if after[f"coachwhip_{name}"] != after[f"vllm:{name}"]] == []
    assert grown("vllm:generation_tokens_total") == 20
    assert grown("vllm:prompt_tokens_total") == 2 * usage["prompt_tokens"]
    assert grown("vllm:prefix_cache_hits_total") == usage["prompt_tokens_details"]["cached_tokens"]
    assert grown("vllm:request_success_total{finished_reason=length}") == 2
    assert grown("vllm:time_to_first_token_seconds_count") == 2
    assert grown("vllm:inter_token_latency_seconds_count") == 18
    assert grown("vllm:spec_decode_num_drafts_total") > 0
    assert grown("coachwhip_restored_total") == 1
    assert after["coachwhip_engine_up"] == 1
    assert after["coachwhip_slots_total"] == 96 and after["coachwhip_slots_live"] == 0
    info = [name for name in after if name.startswith("vllm:cache_config_info{block_size=16")]
    assert len(info) == 1
    reasons = {name for name in after if name.startswith("coachwhip_prefix_miss_total{reason=")}
    assert len(reasons) == len(MISS_REASONS)


def test_the_status_shows_the_prefix_tree(server: Server) -> None:
    server.post("/reset_prefix_cache", {})
    common = "The Congress shall have power to lay and collect taxes, " * 18
    for end in ("duties", "imposts", "imposts", "imposts"):
        server.post(COMPLETIONS, {"prompt": common + end, "max_tokens": 1})
    tree = server.get("/status")["prefix_tree"]
    names = {node["name"]: node for node in tree}
    assert len(names) == len(tree) > 2
    roots = [node for node in tree if not node["parent"]]
    assert len(roots) == 1 and roots[0]["length"] == 64
    assert roots[0]["text"].startswith("The Congress shall")
    for node in tree:
        if node["parent"]:
            assert names[node["parent"]]["length"] == node["length"] - 64
    assert max(node["hits"] for node in tree) >= 2
    server.post("/reset_prefix_cache", {})
    assert server.get("/status")["prefix_tree"] == []
    salted = {"prompt": "My password is swordfish. " * 18, "cache_salt": "alice", "max_tokens": 1}
    server.post(COMPLETIONS, salted)
    tree = server.get("/status")["prefix_tree"]
    assert tree and not any(node["text"] for node in tree)


def test_the_status_comes_as_a_stream(server: Server) -> None:
    async def two() -> list[dict]:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /status/stream HTTP/1.1\r\nHost: a\r\n\r\n")
        found = []
        while len(found) < 2:
            line = await reader.readline()
            if line.startswith(b"data: "):
                found.append(json.loads(line[6:]))
        writer.close()
        return found

    first, second = asyncio.run(two())
    assert first["state"] == "ready" and first.keys() == second.keys()
