"""Where the kernels and the small model are looked for, and what is said when they are missing."""

from pathlib import Path

import pytest

from coachwhip import locate
from coachwhip.errors import ConfigError


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Points the locator at an empty package and an empty checkout."""
    monkeypatch.delenv(locate.KERNELS_ENV, raising=False)
    package, checkout = tmp_path / "site" / "coachwhip", tmp_path / "checkout"
    monkeypatch.setattr(locate, "_PACKAGE", package)
    monkeypatch.setattr(locate, "_CHECKOUT", checkout)
    return package, checkout


def put(file: Path) -> Path:
    file.parent.mkdir(parents=True)
    file.touch()
    return file.parent


def test_packaged_files_come_before_the_checkout(places: tuple[Path, Path]) -> None:
    package, checkout = places
    kernels, model = (
        put(checkout / "mojo_kernels/ops.mojo"),
        put(checkout / "models/small/config.json"),
    )
    assert (locate.kernels_dir(), locate.small_model_dir()) == (kernels, model)
    kernels, model = (
        put(package / "_mojo_kernels/ops.mojo"),
        put(package / "_models/small/config.json"),
    )
    assert (locate.kernels_dir(), locate.small_model_dir()) == (kernels, model)


def test_environment_names_other_kernels(
    places: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(places[0] / "_mojo_kernels/ops.mojo")
    mine = put(tmp_path / "mine/ops.mojo")
    monkeypatch.setenv(locate.KERNELS_ENV, str(mine))
    assert locate.kernels_dir() == mine.resolve()


def test_environment_without_kernels_is_an_error(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(places[0] / "_mojo_kernels/ops.mojo")
    monkeypatch.setenv(locate.KERNELS_ENV, "nowhere")
    with pytest.raises(ConfigError, match=r'COACHWHIP_KERNELS is "nowhere".*unset it'):
        locate.kernels_dir()


def test_missing_files_are_an_error_with_both_places(places: tuple[Path, Path]) -> None:
    package, checkout = places
    with pytest.raises(ConfigError, match="reinstall coachwhip") as kernels:
        locate.kernels_dir()
    with pytest.raises(ConfigError, match="or name a model") as model:
        locate.small_model_dir()
    for place in (package, checkout):
        assert str(place) in str(kernels.value)
        assert str(place) in str(model.value)
