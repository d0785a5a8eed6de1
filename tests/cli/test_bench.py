"""`coachwhip bench`: hands its arguments to the checkout's benchmarks, or says where they are."""

import sys

import pytest
from click.testing import CliRunner

from coachwhip import ConfigError
from coachwhip.commands import bench as command
from coachwhip.commands.bench import bench


def test_both_benchmarks_are_listed():
    done = CliRunner().invoke(bench, ["--help"])
    assert done.exit_code == 0
    assert {"kernels", "engine"} <= set(done.output.partition("Commands:")[2].split())


@pytest.mark.parametrize("arguments", ["kernels conv1d", "engine"])
def test_usage_names_the_command_that_was_called(arguments):
    done = CliRunner().invoke(bench, [*arguments.split(), "--help"])
    assert done.exit_code == 0
    assert done.output.startswith(f"Usage: coachwhip bench {arguments} [OPTIONS]")


@pytest.mark.parametrize("benchmark", ["kernels", "engine"])
def test_a_benchmark_that_does_not_exist_is_a_usage_error(benchmark):
    done = CliRunner().invoke(bench, [benchmark, "fft"])
    assert done.exit_code == 2 and "fft" in done.output


def test_without_a_checkout_the_error_says_where_benchmarks_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_CHECKOUT", tmp_path)
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"bench is missing.*run this from a checkout"):
        CliRunner().invoke(bench, ["engine"], catch_exceptions=False)
    (tmp_path / "bench" / "kernels").mkdir(parents=True)
    (tmp_path / "bench" / "kernels" / "__main__.py").touch()
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert CliRunner().invoke(bench, ["engine", "--help"]).exit_code == 0
    assert sys.path[0] == str(tmp_path)
