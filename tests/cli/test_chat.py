"""`coachwhip chat` as a user runs it: through a pipe and in a terminal, with Ctrl-C and Ctrl-D."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest

from coachwhip.chat_template import ChatTemplate
from coachwhip.locate import small_model_dir
from coachwhip.tokenizer import Tokenizer
from tests.reference.checkpoints import write_checkpoint
from tests.reference.nemotron_h import Reference
from tests.reference.tiny_configs import TINY_CONFIGS

TOKENS = 12
COMMAND = [sys.executable, "-m", "coachwhip", "chat"]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"}
SECONDS = 400
"""Longest wait for an answer: the first one compiles the model's graph."""


def converse(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a conversation whose lines come through a pipe."""
    return subprocess.run(
        [*COMMAND, *arguments],
        input=text,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def said(err: str) -> list[str]:
    """Returns the lines on standard error that are not about compiling."""
    assert "Traceback" not in err
    return [line for line in err.splitlines() if "compiling" not in line]


@pytest.fixture(scope="module")
def expected():
    """Returns a function: a user's lines, system text -> the reference's answers to them."""
    folder = small_model_dir()
    reference, tokenizer = Reference.from_folder(folder), Tokenizer.beside(folder)
    template = ChatTemplate.beside(folder)

    def answers(*lines: str, system: str | None = None) -> list[str]:
        messages = [] if system is None else [{"role": "system", "content": system}]
        found = []
        for line in lines:
            messages.append({"role": "user", "content": line})
            ids = tokenizer.encode(template.render(messages), add_special_tokens=False)
            answer = tokenizer.decode(reference.greedy(ids, TOKENS))
            messages.append({"role": "assistant", "content": answer})
            found.append(answer.strip())
        return found

    return answers


@pytest.mark.slow
def test_a_conversation_is_kept_and_reset(expected):
    first, second = "What about the Navy?", "And the army of the United States?"
    lines = [first, "", second, "/nonsense now", "/reset", first, "/exit", first]
    done = converse("\n".join(lines), "--max-tokens", str(TOKENS))
    answers = expected(first, second)
    assert answers[1] != expected(second)[0]  # else the next line would not see a lost history
    assert done.stdout.splitlines() == [*answers, answers[0]]
    (line,) = said(done.stderr)
    assert line.startswith("coachwhip: there is no command /nonsense; /reset ")
    assert done.returncode == 0


@pytest.mark.slow
def test_a_system_message_stays_through_a_reset(expected):
    system, line = "Gentlemen of the Senate:", "What about the Navy?"
    arguments = ("--system", system, "--max-tokens", str(TOKENS))
    done = converse(f"{line}\n/reset\n{line}", *arguments)
    (answer,) = expected(line, system=system)
    assert answer != expected(line)[0]
    assert (done.returncode, done.stdout.splitlines()) == (0, [answer, answer])


@pytest.mark.slow
def test_a_line_that_does_not_fit_is_refused_and_the_conversation_goes_on(expected):
    first, second = "What about the Navy?", "And the army of the United States?"
    done = converse(f"{first}\n{'the ' * 4500}\n{second}", "--max-tokens", str(TOKENS))
    assert (done.returncode, done.stdout.splitlines()) == (0, expected(first, second))
    (line,) = said(done.stderr)
    assert "max_model_len is 4096" in line and "/reset" in line


@pytest.mark.slow
def test_an_answer_that_meets_the_end_of_the_model_says_so():
    done = converse("the " * 4000, "--max-tokens", "500")
    assert done.returncode == 0 and done.stdout.strip()
    (line,) = said(done.stderr)
    assert "4096" in line and "/reset" in line


@pytest.mark.slow
def test_drafts_change_no_answer(expected):
    lines = ["What about the Navy?", "And the army of the United States?"]
    flags = ("--max-tokens", str(TOKENS), "--spec-method", "mtp", "--spec-tokens", "3")
    done = converse("\n".join(lines), *flags)
    assert (done.returncode, done.stdout.splitlines()) == (0, expected(*lines))


@pytest.mark.slow
def test_answers_are_sampled_where_asked_for(expected):
    line = "What about the Navy?"
    flags = ("--max-tokens", str(TOKENS), "--temperature", "1.0", "--seed")
    first, again, other = (
        converse(line, *flags, seed).stdout.splitlines() for seed in ("1", "1", "2")
    )
    assert first == again
    assert len({*first, *other, *expected(line)}) == 3


class Talk:
    """A running conversation whose input stays open."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def say(self, line: str) -> None:
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def read(self, until: bytes = b"\n") -> bytes:
        """Returns what is answered up to `until`."""
        return read_until(self.process.stdout.fileno(), until)

    def end(self) -> tuple[int, str]:
        """Closes the input; returns the exit code and the rest of standard error."""
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, err.decode()


def read_until(descriptor: int, until: bytes) -> bytes:
    got, end = b"", time.monotonic() + SECONDS
    while until not in got:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
        assert ready, f"nothing but {got!r}"
        piece = os.read(descriptor, 4096)
        assert piece, f"ended after {got!r}"
        got += piece
    return got


@pytest.mark.slow
def test_ctrl_c_stops_an_answer_only():
    talk = Talk("--max-tokens", "3000")
    talk.say("What about the Navy?")
    begun = talk.read(b" ")
    talk.process.send_signal(signal.SIGINT)
    answer = begun + talk.read(b"\n")
    assert len(answer.split()) < 1500
    talk.say("/reset")
    talk.say("What about the Navy?")
    again = talk.read(b" ")
    talk.process.send_signal(signal.SIGINT)
    talk.read(b"\n")
    assert again.startswith(answer[:3])
    code, err = talk.end()
    assert (code, said(err)) == (0, [])


@pytest.mark.slow
def test_ctrl_c_between_answers_leaves_with_130():
    talk = Talk("--max-tokens", "2")
    talk.say("What about the Navy?")
    talk.read(b"\n")
    talk.process.send_signal(signal.SIGINT)
    assert talk.process.wait(60) == 130
    assert said(talk.process.stderr.read().decode().strip()) == []


@pytest.mark.slow
def test_a_terminal_has_a_prompt_and_ctrl_d_ends_with_0(expected):
    ours, theirs = pty.openpty()
    arguments = ["--max-tokens", str(TOKENS)]
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        env=ENVIRONMENT | {"TERM": "dumb"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        assert b"/reset starts anew" in read_until(ours, b"> ")
        os.write(ours, b"What about the Navy?\n")
        shown = read_until(ours, b"\n> ").decode()
        assert expected("What about the Navy?")[0] in shown
        os.write(ours, b"\x04")
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.slow
def test_models_that_cannot_chat_and_bad_arguments_leave_with_2(tmp_path):
    write_checkpoint(tmp_path, TINY_CONFIGS["nemotron_dense"])
    for arguments, part in (
        ((str(tmp_path),), "no tokenizer.json"),
        (("/no/such/folder",), "no such folder"),
        (("--max-tokens", "0"), "max_tokens is 0"),
        (("a/b", "--model", "c/d"), "give the model once"),
    ):
        done = converse("hello\n", *arguments)
        assert done.returncode == 2 and done.stdout == ""
        assert part in said(done.stderr)[-1]


@pytest.mark.slow
def test_a_template_that_takes_no_system_message_says_so_first(tmp_path):
    for file in small_model_dir().iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "chat_template.jinja").unlink()
    text = "{{ raise_exception('no system') if messages[0].role == 'system' }}{{ bos_token }}hi"
    (tmp_path / "chat_template.jinja").write_text(text)
    done = converse("hello\n", str(tmp_path), "--system", "Be brief.")
    assert done.returncode == 2 and done.stdout == ""
    (line,) = said(done.stderr)
    assert line.startswith("coachwhip: error: messages is ") and "no system" in line


def test_help_imports_nothing_heavy():
    program = (
        "import json, sys\n"
        "from coachwhip import cli\n"
        "sys.argv = ['coachwhip', 'chat', '--help']\n"
        "try:\n cli.main()\nexcept SystemExit: pass\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--system" in done.stdout
    loaded = json.loads(done.stdout.splitlines()[-1])
    heavy = {"max", "jinja2", "huggingface_hub", "tokenizers", "numpy"}
    assert heavy.isdisjoint(loaded)
