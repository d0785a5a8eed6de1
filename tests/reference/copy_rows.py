"""Reference of copying rows of a pool (slots or pages) to other rows, in numpy."""

from numpy.typing import NDArray


def copy_rows(pool: NDArray, source: NDArray, destination: NDArray) -> NDArray:
    """Returns the pool after row `source[i]` went to row `destination[i]`, for each i.

    Args:
        pool: [rows, values per row]. Not changed.
        source: [copies].
        destination: [copies]; distinct rows, none of them a source.
    """
    after = pool.copy()
    after[destination] = pool[source]
    return after
