"""pixi.toml without pixi: its form, its dependency specs, and its agreement with pyproject.toml.

The solve itself cannot be run here. What can be, is: the schema that pixi publishes, rattler's
parser for conda specs, packaging's for PyPI specs.
"""

import json
from graphlib import TopologicalSorter
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
from packaging.requirements import Requirement
from rattler import MatchSpec


def tasks_of(pixi: dict[str, Any]) -> dict[str, Any]:
    """Returns every task, of the default feature and of the named ones."""
    tasks = dict(pixi["tasks"])
    for feature in pixi["feature"].values():
        assert not tasks.keys() & feature.get("tasks", {}).keys()
        tasks |= feature.get("tasks", {})
    return tasks


def requirements(lines: list[str]) -> dict[str, str]:
    parsed = [Requirement(line) for line in lines]
    return {r.name: str(r.specifier) for r in parsed}


def normal(specs: dict[str, str]) -> dict[str, str]:
    return requirements([f"{name}{spec}" for name, spec in specs.items()])


def test_follows_the_schema_that_pixi_publishes(pixi: dict[str, Any]) -> None:
    schema_file = files("validate_pyproject_schema_store") / "resources" / "pixi.schema.json"
    schema = json.loads(schema_file.read_text(encoding="utf-8"))
    validator = jsonschema.Draft7Validator(schema)
    assert [error.message for error in validator.iter_errors(pixi)] == []
    # The published schema lets unknown keys at the top pass.
    assert pixi.keys() <= schema["properties"].keys()


def test_conda_specs_parse(pixi: dict[str, Any]) -> None:
    for name, spec in pixi["dependencies"].items():
        assert MatchSpec(f"{name} {spec}", strict=True).version is not None


def test_environments_name_features_that_exist(pixi: dict[str, Any]) -> None:
    for environment in pixi["environments"].values():
        features = environment if isinstance(environment, list) else environment["features"]
        assert set(features) <= pixi["feature"].keys()


def test_tasks_depend_on_tasks_without_cycles(pixi: dict[str, Any]) -> None:
    graph = {name: task.get("depends-on", []) for name, task in tasks_of(pixi).items()}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    assert set(order) == graph.keys()


def test_runtime_dependencies_are_those_of_pyproject(
    pixi: dict[str, Any], pyproject: dict[str, Any]
) -> None:
    ours = normal(pixi["dependencies"] | pixi["pypi-dependencies"])
    python = ours.pop("python")
    assert ours == requirements(pyproject["project"]["dependencies"])
    assert pyproject["project"]["requires-python"] in python.split(",")


@pytest.mark.parametrize("extra", ["test", "bench"])
def test_features_are_the_extras_of_pyproject(
    pixi: dict[str, Any], pyproject: dict[str, Any], extra: str
) -> None:
    wanted = requirements(pyproject["project"]["optional-dependencies"][extra])
    assert normal(pixi["feature"][extra]["pypi-dependencies"]) == wanted


def test_project_is_the_one_of_pyproject(pixi: dict[str, Any], pyproject: dict[str, Any]) -> None:
    for key in ("name", "version", "description", "license"):
        assert pixi["workspace"][key] == pyproject["project"][key]
