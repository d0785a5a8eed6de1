"""Every public symbol of the kernels is documented, and their source is formatted."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coachwhip.locate import kernels_dir


def mojo(*arguments: str | Path) -> str:
    """Runs the `mojo` of this interpreter's environment and returns what it prints.

    Raises:
        AssertionError: It failed.
    """
    program = Path(sys.executable).with_name("mojo")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_every_symbol_is_documented(tmp_path: Path) -> None:
    """Parameters, arguments, results and errors included: a missing one is an error here."""
    docs = tmp_path / "docs.json"
    mojo("doc", "--diagnose-missing-doc-strings", "--Werror", kernels_dir(), "-o", docs)
    assert '"scan_head"' in docs.read_text(encoding="utf-8")


def test_a_missing_doc_string_is_found(tmp_path: Path) -> None:
    """The check above can fail."""
    source = tmp_path / "bare.mojo"
    source.write_text('"""A module."""\n\n\ndef bare():\n    pass\n', encoding="utf-8")
    docs = tmp_path / "docs.json"
    with pytest.raises(AssertionError, match="public symbol 'bare' is missing a doc string"):
        mojo("doc", "--diagnose-missing-doc-strings", "--Werror", source, "-o", docs)


def test_source_is_formatted(tmp_path: Path) -> None:
    """`mojo format` leaves every file as it is."""
    sources = sorted(kernels_dir().glob("*.mojo"))
    copies = [Path(shutil.copy(source, tmp_path)) for source in sources]
    assert copies
    mojo("format", "--quiet", *copies)
    changed = [
        source.name
        for source, copy in zip(sources, copies, strict=True)
        if source.read_bytes() != copy.read_bytes()
    ]
    assert not changed, "run `mojo format` on these"
