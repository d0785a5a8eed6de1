"""Ids as digests: what repeats, and what is in another list."""

from hypothesis import given
from hypothesis import strategies as st

from coachwhip.batch.ids import IdList

names = st.lists(st.text("ab", max_size=4), max_size=30)


def id_list(names: list[str]) -> IdList:
    found = IdList()
    for name in names:
        found.add(name)
    return found


@given(names)
def test_finds_the_first_line_that_repeats_an_id(found):
    later = next((i for i, name in enumerate(found) if name in found[:i]), None)
    expected = None if later is None else (found.index(found[later]), later)
    assert id_list(found).first_repeated() == expected


@given(names, names)
def test_finds_what_is_in_another_list(mine, theirs):
    assert id_list(mine).also_in(id_list(theirs)).tolist() == [name in theirs for name in mine]
