"""How far `coachwhip verify` is: lines for files and pipes, a bar for a terminal."""

import io

from coachwhip.commands.run_progress import SECONDS_BETWEEN_LINES, LineProgress, run_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_come_every_few_seconds_and_count_what_differs():
    lines, now = [], 100.0
    progress = LineProgress("verify", 324, lines.append, lambda: now)
    for run in range(40):
        now += SECONDS_BETWEEN_LINES / 10
        progress(run not in (25, 26))
    assert lines == [
        "verify: 324 runs to compare",
        "verify: 10 of 324 runs, all equal so far",
        "verify: 20 of 324 runs, all equal so far",
        "verify: 30 of 324 runs, 2 not equal so far",
        "verify: 40 of 324 runs, 2 not equal so far",
    ]


def test_a_run_longer_than_that_is_followed_by_one_line():
    lines, now = [], 0.0
    progress = LineProgress("verify", 2, lines.append, lambda: now)
    for _ in range(2):
        now += 7 * SECONDS_BETWEEN_LINES
        progress(True)
    assert len(lines) == 3


def test_what_is_no_terminal_gets_lines_without_escapes():
    stream = io.StringIO()
    with run_progress("verify", 2, stream) as advance:
        advance(True)
        advance(True)
    assert stream.getvalue() == "verify: 2 runs to compare\n"


def test_a_terminal_gets_a_bar_that_is_gone_at_the_end(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with run_progress("verify", 2, stream) as advance:
        advance(True)
        advance(True)
    shown = stream.getvalue()
    assert "100%" in shown and "verify" in shown
    assert "runs to compare" not in shown
    assert shown.endswith("\x1b[2K")  # erases the line of the bar
