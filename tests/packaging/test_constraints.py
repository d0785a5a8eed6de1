"""constraints.txt pins everything that an install brings, at versions pyproject.toml allows."""

from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version


@pytest.fixture(scope="module")
def pinned(checkout: Path) -> dict[str, Version]:
    lines = (checkout / "constraints.txt").read_text("utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def brought(roots: list[Requirement]) -> dict[str, bool]:
    """Returns each package that the roots bring; True when its parent fixes its version itself.

    The latter are pieces of one release: MAX's libraries, or the CUDA libraries of one torch.
    """
    found: dict[str, bool] = {}
    open_requirements = list(roots)
    while open_requirements:
        requirement = open_requirements.pop()
        name = canonicalize_name(requirement.name)
        fixed = any(s.operator == "==" for s in requirement.specifier)
        if name in found:
            found[name] = found[name] or fixed
            continue
        found[name] = fixed
        for line in distribution(name).requires or []:
            child = Requirement(line)
            extras = requirement.extras or {""}
            if child.marker is None or any(child.marker.evaluate({"extra": e}) for e in extras):
                open_requirements.append(child)
    return found


def test_pins_what_an_install_with_tests_brings(
    pyproject: dict[str, Any], pinned: dict[str, Version]
) -> None:
    project = pyproject["project"]
    lines = project["dependencies"] + project["optional-dependencies"]["test"]
    found = brought([Requirement(line) for line in lines])
    assert {"max-core", "torch"} <= found.keys()
    assert [name for name, fixed in sorted(found.items()) if not fixed and name not in pinned] == []


def test_pins_lie_within_what_pyproject_allows(
    pyproject: dict[str, Any], pinned: dict[str, Version]
) -> None:
    project = pyproject["project"]
    for line in sum(project["optional-dependencies"].values(), project["dependencies"]):
        requirement = Requirement(line)
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), line


def test_runtime_is_free_of_torch(pyproject: dict[str, Any]) -> None:
    lines = pyproject["project"]["dependencies"]
    assert "torch" not in brought([Requirement(line) for line in lines])
