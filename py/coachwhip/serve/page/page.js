"use strict";

const $ = (id) => document.getElementById(id);
let conversation = [];
const rates = [];
const RATES = 120;
let running = null;

function headers() {
  const key = $("key").value.trim();
  return key ? { Authorization: `Bearer ${key}` } : {};
}

/** Yields the data of each server-sent event of a response. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part.startsWith("data: ")) yield part.slice(6);
    }
  }
}

/** Returns what a failed response says about itself. */
async function complaint(response) {
  if (response.status === 401) $("key-label").hidden = false;
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

/* Chat */

function show(kind, text) {
  const box = document.createElement("div");
  box.className = `message ${kind}`;
  box.append(document.createTextNode(text));
  $("messages").append(box);
  box.scrollIntoView({ block: "end" });
  return box;
}

async function answer() {
  const text = $("prompt").value.trim();
  if (!text || running) return;
  $("prompt").value = "";
  show("user", text);
  const turns = conversation;
  turns.push({ role: "user", content: text });
  const box = show("assistant", "");
  const begin = performance.now();
  let content = "", first = null, usage = null, reason = null;
  running = new AbortController();
  $("send").disabled = true;
  $("stop").disabled = false;
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json", ...headers() },
      signal: running.signal,
      body: JSON.stringify({
        messages: turns,
        max_tokens: Number($("max-tokens").value) || 128,
        temperature: Number($("temperature").value) || 0,
        stream: true,
        stream_options: { include_usage: true },
      }),
    });
    if (!response.ok) throw new Error(await complaint(response));
    for await (const data of events(response)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.usage) usage = chunk.usage;
      for (const choice of chunk.choices) {
        const delta = choice.delta.content || choice.delta.reasoning_content || "";
        if (delta && first === null) first = performance.now();
        content += delta;
        reason = choice.finish_reason || reason;
      }
      box.firstChild.data = content;
      box.scrollIntoView({ block: "end" });
    }
  } catch (error) {
    if (error.name !== "AbortError") show("error", error.message);
    else reason = "stopped";
  } finally {
    running = null;
    $("send").disabled = false;
    $("stop").disabled = true;
  }
  if (content) turns.push({ role: "assistant", content });
  else {
    turns.pop();
    box.remove();
  }
  const note = document.createElement("small");
  const parts = [];
  if (usage) {
    const prompt = usage.prompt_tokens, cached = usage.prompt_tokens_details.cached_tokens;
    parts.push(`${prompt} prompt tokens, ${cached} cached`, `${usage.completion_tokens} tokens`);
  }
  if (first !== null) parts.push(`first after ${Math.round(first - begin)} ms`);
  if (reason) parts.push(reason);
  note.textContent = parts.join(" · ");
  box.append(note);
  note.scrollIntoView({ block: "end" });
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  answer();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    answer();
  }
});
$("stop").addEventListener("click", () => running && running.abort());
$("clear").addEventListener("click", () => {
  if (running) running.abort();
  conversation = [];
  $("messages").replaceChildren();
});

/* Panels */

function bar(id, total, parts) {
  $(id).replaceChildren(
    ...parts.map(([kind, count]) => {
      const piece = document.createElement("i");
      piece.className = kind;
      piece.style.width = `${total ? (100 * count) / total : 0}%`;
      return piece;
    }),
  );
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (count >= 1024 && at < units.length - 1) {
    count /= 1024;
    at += 1;
  }
  return `${count >= 100 || at === 0 ? count.toFixed(0) : count.toFixed(1)} ${units[at]}`;
}

function drawRate(rate) {
  rates.push(rate);
  if (rates.length > RATES) rates.shift();
  const most = Math.max(...rates, 1);
  const points = rates.map((r, i) => `${(240 * i) / (RATES - 1)},${46 - (44 * r) / most}`);
  $("rate-chart").firstElementChild.setAttribute("points", points.join(" "));
}

function drawDepths(speculation) {
  const drafts = speculation.drafts;
  $("depths").replaceChildren(
    ...speculation.accepted_per_position.map((count, at) => {
      const row = document.createElement("div");
      row.className = "depth";
      const name = document.createElement("span"), line = document.createElement("span");
      const share = document.createElement("span"), piece = document.createElement("i");
      name.textContent = `${at + 1}`;
      line.className = "bar";
      piece.className = "kept";
      piece.style.width = `${drafts ? (100 * count) / drafts : 0}%`;
      line.append(piece);
      share.textContent = drafts ? `${Math.round((100 * count) / drafts)} %` : "–";
      row.append(name, line, share);
      return row;
    }),
  );
  $("drafts-text").textContent = speculation.method
    ? `${speculation.method}: ${speculation.accepted_tokens} of ${speculation.draft_tokens} drafts ` +
      `right, ${speculation.acceptance_length.toFixed(2)} tokens per step`
    : "off; start with --spec-method";
}

function drawTree(nodes) {
  const children = new Map();
  for (const node of nodes) {
    if (!children.has(node.parent)) children.set(node.parent, []);
    children.get(node.parent).push(node);
  }
  const items = [];
  const add = (node, depth) => {
    const item = document.createElement("li");
    item.style.paddingLeft = `${depth * 14}px`;
    const text = document.createElement("span"), length = document.createElement("span");
    const hits = document.createElement("span");
    text.className = "text";
    text.textContent = JSON.stringify(node.text);
    length.className = "length";
    length.textContent = `${node.length} tokens`;
    hits.className = "hits";
    hits.textContent = node.hits ? `${node.hits} hit${node.hits > 1 ? "s" : ""}` : "";
    item.append(length, hits, text);
    items.push(item);
    for (const child of children.get(node.name) || []) add(child, depth + 1);
  };
  for (const root of children.get("") || []) add(root, 0);
  $("tree").replaceChildren(...items);
}

function draw(status) {
  $("model").textContent = status.model;
  $("state").textContent = status.state;
  $("state").className = `pill ${status.healthy ? "ready" : "bad"}`;
  $("rate").textContent = status.tokens_per_second.toFixed(1);
  drawRate(status.tokens_per_second);
  if (!status.requests) return;
  $("generated").textContent = status.tokens.generated;
  $("prompt-tokens").textContent = status.tokens.prompt;
  const requests = status.requests;
  $("running").textContent = requests.running;
  $("waiting").textContent = requests.waiting;
  $("most-running").textContent = requests.most_running;
  $("most-waiting").textContent = requests.most_waiting;
  bar("queue-bar", requests.most_running, [["live", requests.running]]);
  const slots = status.slots, pages = status.pages;
  bar("slots-bar", slots.total, [["live", slots.live], ["kept", slots.checkpoints]]);
  $("slots-text").textContent =
    `${slots.live} live, ${slots.checkpoints} checkpoints, ${slots.free} free of ${slots.total} ` +
    `(${bytes(slots.bytes)} each)`;
  bar("pages-bar", pages.total, [["live", pages.live], ["kept", pages.cached]]);
  $("pages-text").textContent =
    `${pages.live} live, ${pages.cached} cached, ${pages.free} free of ${pages.total} ` +
    `(${bytes(pages.bytes)} each)`;
  drawDepths(status.speculation);
  const cache = status.prefix_cache;
  $("cache-text").textContent =
    `mode ${status.cache_mode}: ${cache.hits} of ${cache.queries} tokens restored, ` +
    `${cache.published} checkpoints made, ${cache.evicted} evicted`;
  drawTree(status.prefix_tree);
}

async function watch() {
  for (;;) {
    try {
      const response = await fetch("status/stream", { headers: headers() });
      if (!response.ok) throw new Error(await complaint(response));
      for await (const data of events(response)) draw(JSON.parse(data));
    } catch (error) {
      $("state").title = error.message;
    }
    $("state").textContent = "not connected";
    $("state").className = "pill bad";
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

watch();
