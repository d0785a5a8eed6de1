"""An output survives any end of a run, and never becomes another batch's."""

import errno
import os
import stat
from dataclasses import replace

import pytest

from coachwhip.batch.input_file import BatchInput
from coachwhip.batch.journal import Journal, Origin
from coachwhip.batch.ledger import Finished, Ledger
from coachwhip.batch.line import parse_line
from coachwhip.batch.paths import BatchPaths
from coachwhip.batch.records import failed_record, good_record
from coachwhip.errors import BatchError, StorageError
from coachwhip.openai import ApiError
from tests.batch.requests import completion, read_lines, write_lines

ORIGIN = Origin("digest of the input", "fingerprint", {"dtype": "float32"})
NAMES = ["a", "b", "c"]


@pytest.fixture
def paths(tmp_path):
    write_lines(tmp_path / "in.jsonl", [completion(name) for name in NAMES])
    return BatchPaths.of(str(tmp_path / "out.jsonl"))


def ledger(paths, origin=ORIGIN) -> Ledger:
    source = BatchInput(str(paths.output.with_name("in.jsonl")), paths.output.parent)
    return Ledger(paths, origin, source)


def finished(name: str, failed: bool = False) -> Finished:
    raw = (b'{"custom_id": "%s", "method": "POST", "url": "/v1/completions", ' % name.encode()) + (
        b'"body": {"prompt": "We have"}}'
    )
    record = failed_record(name, ApiError(400, "no")) if failed else good_record(name, {"x": name})
    return Finished(name, parse_line(raw).body_digest, record)


def ids(path) -> list[str]:
    return [line["custom_id"] for line in read_lines(path)]


def write(paths, names, complete=False):
    book = ledger(paths)
    for name in names:
        book.append([finished(name, failed=name == "c")])
    if complete:
        book.complete()
    book.close()


def test_an_output_gets_its_name_when_it_is_complete(paths):
    book = ledger(paths)
    book.append([finished("a")])
    assert ids(paths.partial) == ["a"] and not paths.output.exists()
    book.append([finished("b"), finished("c", failed=True)])
    book.complete()
    book.close()
    assert ids(paths.output) == NAMES and not paths.partial.exists()
    assert ids(paths.errors) == ["c"]
    assert read_lines(paths.errors)[0]["error"] == {
        "code": "invalid_request_error",
        "message": "no",
    }


def test_no_error_file_without_errors(paths):
    write(paths, ["a", "b"], complete=True)
    assert not paths.errors.exists()


def test_goes_on_after_any_torn_write(paths):
    write(paths, ["a", "b"])
    whole, journal = paths.partial.read_bytes(), paths.journal.read_bytes()
    end_of_a = whole.index(b"\n") + 1
    for size in range(len(whole) + 1):
        paths.partial.write_bytes(whole[:size])
        paths.journal.write_bytes(journal[: len(journal) - size % 7])
        book = ledger(paths)
        left = [] if size < end_of_a else ["a"] if size < len(whole) else ["a", "b"]
        assert len(book.done) == len(left)
        book.append([finished("c", failed=True)])
        assert book.num_failed == 1
        book.close()
        assert ids(paths.partial) == [*left, "c"]


def test_a_line_that_is_no_result_is_not_touched(paths):
    write(paths, ["a"])
    damaged = b"damage\n" + paths.partial.read_bytes()
    paths.partial.write_bytes(damaged)
    with pytest.raises(BatchError, match="line 1 is no result"):
        ledger(paths)
    assert paths.partial.read_bytes() == damaged


def test_more_of_an_input_may_follow_a_complete_part(paths):
    write(paths, ["a"], complete=True)
    write(paths, ["b"], complete=True)
    assert ids(paths.output) == ["a", "b"] and not paths.partial.exists()


def test_an_end_between_the_two_names_is_mended(paths):
    write(paths, ["a"])
    os.link(paths.partial, paths.output)
    book = ledger(paths)
    assert len(book.done) == 1 and not paths.partial.exists()
    book.complete()
    book.close()
    assert ids(paths.output) == ["a"]


@pytest.mark.parametrize(
    "origin, part",
    [
        (replace(ORIGIN, input="other"), "another input"),
        (replace(ORIGIN, model="other"), "another model"),
        (replace(ORIGIN, settings={"dtype": "bfloat16"}), 'dtype "float32", not "bfloat16"'),
    ],
)
@pytest.mark.parametrize("complete", [False, True])
def test_another_batch_is_refused_and_nothing_changes(paths, origin, part, complete):
    write(paths, ["a", "c"], complete)
    before = {p: p.read_bytes() for p in sorted(paths.output.parent.iterdir())}
    with pytest.raises(BatchError) as caught:
        ledger(paths, origin)
    assert part in str(caught.value) and "give another output" in str(caught.value)
    assert {p: p.read_bytes() for p in sorted(paths.output.parent.iterdir())} == before


def test_the_line_that_changed_is_named(paths):
    write(paths, ["a", "b"])
    lines = [completion("a"), completion("b", "changed"), completion("c")]
    write_lines(paths.output.with_name("in.jsonl"), lines)
    with pytest.raises(BatchError, match='another input: line 2, "b", had another body'):
        ledger(paths, replace(ORIGIN, input="other"))


@pytest.mark.parametrize("name", ["output", "partial", "errors"])
def test_files_without_a_journal_are_somebodys(paths, name):
    path = getattr(paths, name)
    path.write_text("precious")
    with pytest.raises(BatchError, match="no journal beside it"):
        ledger(paths)
    assert path.read_text() == "precious" and not paths.journal.exists()


def test_an_old_journal_alone_protects_nothing(paths):
    write(paths, ["a"])
    paths.partial.unlink()
    book = ledger(paths, replace(ORIGIN, input="other"))
    assert len(book.done) == 0
    book.close()


def test_a_file_with_the_journals_name_that_is_none(paths):
    paths.journal.write_text("precious\n")
    with pytest.raises(BatchError, match="is no journal of coachwhip batch"):
        ledger(paths)
    assert paths.journal.read_text() == "precious\n"


def test_one_run_at_a_time(paths):
    book = ledger(paths)
    with pytest.raises(BatchError, match="another run is writing this output"):
        ledger(paths)
    book.close()
    ledger(paths).close()


def test_a_file_system_without_locks_is_no_obstacle(paths, monkeypatch):
    def flock(fd, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    write(paths, ["a"], complete=True)
    assert ids(paths.output) == ["a"]


def test_a_name_that_was_taken_meanwhile_is_not_overwritten(paths):
    book = ledger(paths)
    book.append([finished("a")])
    paths.output.write_text("precious")
    with pytest.raises(StorageError, match="came into being meanwhile"):
        book.complete()
    book.close()
    assert paths.output.read_text() == "precious" and ids(paths.partial) == ["a"]


@pytest.mark.parametrize("begun", [[], ["a"], NAMES])
@pytest.mark.parametrize("content", [b"precious\n", None])
def test_an_error_file_of_others_is_not_overwritten(paths, begun, content):
    if content is None:  # another batch's, with the same ids
        content = finished("c", failed=True).record
    write(paths, begun, complete=bool(begun))
    paths.errors.unlink(missing_ok=True)
    if not begun:
        paths.partial.unlink(missing_ok=True)
    paths.errors.write_bytes(content)
    with pytest.raises(BatchError, match="is not this output's error file; move it away"):
        ledger(paths)
    assert paths.errors.read_bytes() == content


def test_failed_lines_can_be_tried_again(paths):
    write(paths, NAMES, complete=True)
    records = paths.output.read_bytes().splitlines(keepends=True)
    paths.output.write_bytes(b"".join(records[:2]))
    paths.errors.unlink()
    book = ledger(paths)
    assert len(book.done) == 2 and book.num_failed == 0
    book.append([finished("c")])
    book.complete()
    book.close()
    assert ids(paths.output) == NAMES and not paths.errors.exists()


def test_an_error_file_that_is_missing_is_written_again(paths):
    write(paths, NAMES, complete=True)
    paths.errors.unlink()
    write(paths, [], complete=True)
    assert ids(paths.errors) == ["c"] and ids(paths.output) == NAMES


def test_an_output_without_lines_is_an_empty_file(paths):
    for _ in range(2):
        write(paths, [], complete=True)
        assert paths.output.read_bytes() == b"" and not paths.partial.exists()
    write(paths, ["a"], complete=True)
    assert ids(paths.output) == ["a"]


def test_what_another_run_did_before_it_let_go_of_the_lock_counts(paths, monkeypatch):
    other = ledger(paths)

    class LateJournal(Journal):
        def __init__(self, path):
            other.append([finished("a")])
            other.close()
            super().__init__(path)

    monkeypatch.setattr("coachwhip.batch.ledger.Journal", LateJournal)
    book = ledger(paths)
    assert len(book.done) == 1
    book.append([finished("b")])
    book.complete()
    book.close()
    assert ids(paths.output) == ["a", "b"]


def test_a_folder_that_cannot_be_synced_is_no_obstacle(paths, monkeypatch):
    real = os.fsync

    def fsync(fd):
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(fd)

    monkeypatch.setattr("os.fsync", fsync)
    write(paths, NAMES, complete=True)
    assert ids(paths.output) == NAMES and ids(paths.errors) == ["c"]


@pytest.mark.parametrize("written", [0, 5])
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_leaves_whole_lines(paths, monkeypatch, written, call):
    book = ledger(paths)
    book.append([finished("a")])
    real_write, full = os.write, OSError(errno.ENOSPC, "No space left on device")

    def write(fd, data):
        if os.fstat(fd).st_ino != os.stat(paths.partial).st_ino:
            return real_write(fd, data)
        if written:
            real_write(fd, data[:written])
        raise full

    def fsync(fd):
        if os.fstat(fd).st_ino == os.stat(paths.partial).st_ino:
            raise full

    monkeypatch.setattr(os, call, {"write": write, "fsync": fsync}[call])
    with pytest.raises(StorageError, match="No space left on device"):
        book.append([finished("b")])
    monkeypatch.undo()
    book.close()
    assert ids(paths.partial) == ["a"]
    write_again = ledger(paths)
    write_again.append([finished("b"), finished("c")])
    write_again.complete()
    write_again.close()
    assert ids(paths.output) == NAMES
