"""The page in a real browser without a window: text streams in, the panels move."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.serve.server import Server

PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome")
SOME_TEXT, SOME_WIDTH = re.compile(r"\S"), re.compile(r"width: (?!0%)[0-9.]+%")
SCREENSHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"


def browser_program() -> str:
    """Returns the path of a Chromium on this machine."""
    named = os.environ.get("COACHWHIP_CHROMIUM")
    found = [named] if named else [path for name in PROGRAMS if (path := shutil.which(name))]
    assert found, f"no {' or '.join(PROGRAMS)}: install one, or set COACHWHIP_CHROMIUM to its path"
    return found[0]


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """A page of a browser that reaches no other server, and has no error on its console."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=browser_program(), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 960})
        errors: list[str] = []
        page.on("console", lambda message: message.type == "error" and errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        foreign: list[str] = []
        page.on(
            "request",
            lambda request: "127.0.0.1" not in request.url and foreign.append(request.url),
        )
        yield page
        browser.close()
        assert (errors, [url for url in foreign if not url.startswith("data:")]) == ([], [])


def number(page: Page, selector: str) -> float:
    """Returns the number that an element shows."""
    return float(page.locator(selector).inner_text())


def test_a_prompt_is_answered_and_the_panels_move(server: Server, page: Page) -> None:
    server.post("/reset_prefix_cache", {})
    server.wait_until_idle()
    page.goto(server.url)
    expect(page.locator("#state")).to_have_text("ready")
    expect(page.locator("#model")).to_have_text("small")
    generated = number(page, "#generated")
    page.fill("#max-tokens", "300")
    page.fill("#prompt", "What about the Navy and the Army of the United States? " * 6)
    page.press("#prompt", "Enter")
    answer = page.locator(".message.assistant").first
    expect(page.locator(".message.user")).to_contain_text("What about the Navy")
    expect(answer).to_have_text(SOME_TEXT)
    first = answer.inner_text()
    expect(answer).not_to_have_text(first)  # it streams: there is more of it now
    expect(page.locator("#rate")).not_to_have_text(re.compile(r"^0(\.0)?$"))
    expect(page.locator("#slots-bar i.live")).to_have_attribute("style", SOME_WIDTH)
    expect(page.locator("#pages-bar i.live")).to_have_attribute("style", SOME_WIDTH)
    page.screenshot(path=_screenshot("streaming.png"))
    expect(answer.locator("small")).to_contain_text("300 tokens", timeout=60_000)
    expect(page.locator("#generated")).to_have_text(f"{generated + 300:.0f}")
    expect(page.locator("#running")).to_have_text("0")
    expect(page.locator("#depths .depth")).to_have_count(3)
    expect(page.locator("#drafts-text")).to_contain_text("mtp")
    expect(page.locator("#slots-bar i.kept")).to_have_attribute("style", SOME_WIDTH)
    nodes = page.locator("#tree li")
    expect(nodes.first).to_contain_text("64 tokens")


def test_a_second_turn_hits_the_first(server: Server, page: Page) -> None:
    page.fill("#max-tokens", "20")
    page.fill("#prompt", "And the state of the Union?")
    page.click("#send")
    answer = page.locator(".message.assistant").nth(1)
    expect(answer.locator("small")).to_contain_text("cached", timeout=60_000)
    assert " 0 cached" not in answer.locator("small").inner_text()
    expect(page.locator("#tree .hits").filter(has_text="hit")).not_to_have_count(0)
    page.screenshot(path=_screenshot("two-turns.png"))
    assert _screenshot("two-turns.png").stat().st_size > 10_000


def test_stop_ends_an_answer_and_a_new_chat_is_empty(server: Server, page: Page) -> None:
    page.click("#clear")
    expect(page.locator(".message")).to_have_count(0)
    page.fill("#max-tokens", "3000")
    page.fill("#prompt", "On")
    page.click("#send")
    expect(page.locator(".message.assistant")).to_have_text(SOME_TEXT)
    page.click("#stop")
    expect(page.locator(".message.assistant small")).to_contain_text("stopped")
    assert server.wait_until_idle(5)["slots"]["live"] == 0
    expect(page.locator("#send")).to_be_enabled()


def test_a_new_chat_in_the_middle_of_an_answer_keeps_nothing_of_it(
    server: Server, page: Page
) -> None:
    page.click("#clear")
    page.fill("#prompt", "On")
    page.click("#send")
    expect(page.locator(".message.assistant")).to_have_text(SOME_TEXT)
    page.click("#clear")
    expect(page.locator("#send")).to_be_enabled()
    page.fill("#max-tokens", "3")
    page.fill("#prompt", "Anew")
    with page.expect_request("**/v1/chat/completions") as sent:
        page.click("#send")
    assert sent.value.post_data_json["messages"] == [{"role": "user", "content": "Anew"}]
    expect(page.locator(".message.assistant small")).to_contain_text("3 tokens")


def _screenshot(name: str) -> Path:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    return SCREENSHOTS / name
