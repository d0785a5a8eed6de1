"""Files that must not meet, and the lines that a run does."""

import os

import pytest

from coachwhip.batch.paths import BatchPaths
from coachwhip.batch.selection import parse_shard, selected
from coachwhip.errors import BatchError, RequestError
from tests.batch.requests import completion, write_lines


def refused(source, output, errors=None) -> str:
    with pytest.raises(BatchError) as caught:
        BatchPaths.of(str(output), errors and str(errors)).check(str(source))
    return str(caught.value)


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.partial", "out.jsonl.journal"])
@pytest.mark.parametrize("link", [None, os.symlink, os.link])
def test_no_output_is_the_input(tmp_path, name, link):
    source = write_lines(tmp_path / ("in.jsonl" if link else name), [completion("a")])
    if link:
        link(source, tmp_path / name)
    before = source.read_bytes()
    assert "as well as the input" in refused(source, tmp_path / "out.jsonl")
    assert source.read_bytes() == before


def test_an_output_that_is_a_link_to_the_input(tmp_path):
    source = write_lines(tmp_path / "in.jsonl", [completion("a")])
    (tmp_path / "out.jsonl").symlink_to("in.jsonl")
    assert "is the output as well as the input" in refused(source, tmp_path / "out.jsonl")
    assert "is the error file as well" in refused(source, tmp_path / "o.jsonl", source)


def test_paths_that_cannot_be(tmp_path, monkeypatch):
    source = write_lines(tmp_path / "in.jsonl", [completion("a")])
    assert "no such folder" in refused(source, tmp_path / "no" / "out.jsonl")
    assert "must be a file" in refused(source, tmp_path)
    assert "must be a file" in refused(source, "/dev/null")
    assert "not standard output" in refused(source, "-")
    assert "not compressed" in refused(source, tmp_path / "out.jsonl.gz")
    assert "two names" in refused(source, tmp_path / "out.jsonl", tmp_path / "out.jsonl")
    assert "No such file" in refused(tmp_path / "missing", tmp_path / "out.jsonl")
    assert "is a folder" in refused(tmp_path, tmp_path / "out.jsonl")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "cannot be written" in refused(source, tmp_path / "out.jsonl")


def test_names_of_the_files(tmp_path):
    paths = BatchPaths.of(str(tmp_path / "a.b.jsonl"))
    names = [p.name for p in (paths.output, paths.partial, paths.journal, paths.errors)]
    assert names == ["a.b.jsonl", "a.b.jsonl.partial", "a.b.jsonl.journal", "a.b.errors.jsonl"]


@pytest.mark.parametrize("n", [1, 3, 7, 20])
def test_shards_part_the_input(n):
    parts = [selected(17, (i, n), None) for i in range(1, n + 1)]
    assert sum(parts).tolist() == [1] * 17
    assert max(p.sum() for p in parts) - min(p.sum() for p in parts) <= 1


def test_a_limit_takes_the_first_lines_of_a_shard():
    assert selected(10, (2, 2), 2).nonzero()[0].tolist() == [5, 6]
    assert selected(3, (1, 1), 99).all()


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2", "1/2/3", ""])
def test_wrong_shards_are_refused(text):
    with pytest.raises(RequestError, match="from 1 to n"):
        parse_shard(text)
