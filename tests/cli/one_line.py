"""What a user sees of an error."""


def one_line(err: str) -> str:
    """Returns the error, which must be the last and only line of its kind, and no traceback."""
    lines = err.strip().splitlines()
    assert "Traceback" not in err
    assert sum(line.startswith("coachwhip: error: ") for line in lines) == 1
    return lines[-1]
