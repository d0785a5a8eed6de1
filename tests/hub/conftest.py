"""A fake hub, and commands that run against it in processes of their own, with an empty cache.

Processes of their own, since huggingface_hub reads its environment variables once, on import.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hub.fake_hub import FakeHub
from tests.reference.checkpoints import write_checkpoint
from tests.reference.tiny_configs import TINY_CONFIGS

RESOLVE = """
import sys
from coachwhip.errors import CheckpointError, ConfigError
from coachwhip.hub import resolve_model
try:
    print(resolve_model(*sys.argv[1:]))
except (ConfigError, CheckpointError) as error:
    print(error, file=sys.stderr)
    sys.exit(2)
"""


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    hub = FakeHub()
    yield hub
    hub.close()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint beside files that no one needs."""
    folder = tmp_path_factory.mktemp("tiny")
    write_checkpoint(folder, TINY_CONFIGS["nemotron_dense"])
    (folder / "README.md").write_text("not needed")
    (folder / "pytorch_model.bin").write_bytes(b"not needed")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    return folder


Result = subprocess.CompletedProcess[str]


@pytest.fixture
def program(hub: FakeHub, tmp_path: Path) -> Callable[..., Result]:
    """Returns a function that runs Python with arguments against the hub; extra = environment."""

    def run(*arguments: str, **extra: str) -> Result:
        known = ("HF_", "HUGGING", "TRANSFORMERS_")
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(known) and not name.lower().endswith("_proxy")
        }
        # pytest's own telemetry plugin has set it; coachwhip must do so in a fresh process.
        environment = clean | {
            "HF_HOME": str(tmp_path / "hf"),
            "HF_ENDPOINT": hub.url,
            "HF_HUB_ETAG_TIMEOUT": "2",
            "HF_HUB_DOWNLOAD_TIMEOUT": "2",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        return subprocess.run(
            [sys.executable, *arguments],
            env=environment | extra,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


@pytest.fixture
def resolve(program: Callable[..., Result]) -> Callable[..., Result]:
    """Returns a function that resolves a model in a new process: prints its folder, or fails."""
    return lambda *arguments, **extra: program("-c", RESOLVE, *arguments, **extra)
