"""What the repository's files may not say, and what its documentation must."""

import re
import subprocess
from pathlib import Path

import pytest

# Paths that exist on one machine only, and folders beside the checkout.
_FOREIGN = re.compile(rb"(?<![\w.-])/(work|tmp|root|opt|home)/\w|\.\./shared")


@pytest.fixture(scope="module")
def names(checkout: Path) -> list[str]:
    """Every file that is in git, or would be with `git add --all`."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=True,
    )
    return [name for name in listed.stdout.split("\0") if name and (checkout / name).is_file()]


def test_no_file_names_a_path_of_one_machine(checkout: Path, names: list[str]) -> None:
    contents = {name: (checkout / name).read_bytes() for name in names}
    text = {name: content for name, content in contents.items() if b"\0" not in content}
    assert {"README.md", "Makefile"} <= text.keys()
    assert [name for name, content in text.items() if _FOREIGN.search(content)] == []


def test_structure_describes_every_source_file(checkout: Path, names: list[str]) -> None:
    structure = (checkout / "docs" / "structure.md").read_text("utf-8")
    described = set(re.findall(r"^\| `([^`]+)` \|", structure, re.MULTILINE))
    folders = ("py/", "graphs/", "mojo_kernels/", "bench/", "models/train/")
    wanted = {
        name
        for name in names
        if name.startswith(folders) and name.endswith((".py", ".mojo"))
        if not name.endswith(("__init__.py", "__init__.mojo"))
    }
    assert wanted - described == set()
    # Rows of folders end in a slash. What is not in git may still lie there, as caches do.
    parents = {f"{parent.as_posix()}/" for name in names for parent in Path(name).parents}
    assert described - set(names) - parents == set()


def test_structure_describes_every_folder_of_tests(checkout: Path, names: list[str]) -> None:
    structure = (checkout / "docs" / "structure.md").read_text("utf-8")
    described = set(re.findall(r"^\| `(tests/\w+/)` \|", structure, re.MULTILINE))
    assert described == {f"tests/{Path(n).parts[1]}/" for n in names if n.startswith("tests/")}
