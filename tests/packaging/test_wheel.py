"""The wheel carries kernels, graphs and model, built from the checkout or from the sdist."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def built(*command: str | Path, into: Path, pattern: str) -> Path:
    """Runs a build without the network, by the installed hatchling, and returns what it made."""
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = into.glob(pattern)
    return made


def wheel_from(source: Path, into: Path) -> Path:
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", into]
    return built("pip", "wheel", *options, source, into=into, pattern="*.whl")


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel_from(checkout, tmp_path_factory.mktemp("wheel"))


def names_in(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def files_below(folder: Path, suffix: str) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob(f"*{suffix}")}


def test_carries_all_code(wheel: Path, checkout: Path) -> None:
    names = names_in(wheel)
    assert files_below(checkout / "py", ".py") <= names
    assert files_below(checkout / "graphs", ".py") <= names
    kernels = files_below(checkout / "mojo_kernels", ".mojo")
    assert "ops.mojo" in kernels
    assert {f"coachwhip/_mojo_kernels/{name}" for name in kernels} <= names


def test_carries_the_page_of_the_endpoint(wheel: Path) -> None:
    wanted = {f"coachwhip/serve/page/{name}" for name in ("index.html", "page.css", "page.js")}
    assert wanted <= names_in(wheel)


def test_carries_the_small_model(wheel: Path) -> None:
    wanted = ("config.json", "model.safetensors", "tokenizer.json")
    assert {f"coachwhip/_models/small/{name}" for name in wanted} <= names_in(wheel)


def test_carries_nothing_else(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in names_in(wheel)}
    assert tops == {"coachwhip", "coachwhip_graphs", "coachwhip-0.1.0.dist-info"}
    unwanted = (".mojoc", ".pyc", ".png", ".svg", ".log")
    assert [name for name in names_in(wheel) if name.endswith(unwanted)] == []


def test_sdist_builds_the_same_wheel(wheel: Path, checkout: Path, tmp_path: Path) -> None:
    sdist = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", tmp_path],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    assert sdist.returncode == 0, sdist.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    assert names_in(wheel_from(archive, tmp_path)) == names_in(wheel)


def test_unpacked_wheel_finds_its_own_files(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        "from coachwhip.locate import kernels_dir, small_model_dir\n"
        "print(kernels_dir(), small_model_dir(), sep='\\n')"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    package = tmp_path.resolve() / "coachwhip"
    assert found.stdout.split() == [
        str(package / "_mojo_kernels"),
        str(package / "_models" / "small"),
    ]
