"""The command line in this process."""

import io
import sys

import pytest

from coachwhip import cli


@pytest.fixture
def run(monkeypatch, capsys):
    """Returns a function: arguments -> (exit code, standard output, standard error)."""

    def command(*arguments: str, stdin: bytes = b""):
        monkeypatch.setattr(sys, "argv", ["coachwhip", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            cli.main()
            code = 0
        except SystemExit as exit:
            code = exit.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return command
