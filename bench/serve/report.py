"""What was measured, as rows for a file and as a table."""

from __future__ import annotations

from statistics import median

from bench.serve.load import Waits


def rows(found: dict[tuple[str, int], list[Waits]]) -> list[dict]:
    """Returns medians over the repeats, and how many times better than the first server's.

    Args:
        found: (server, clients) -> what clients waited for, of each repeat.
    """
    listed = []
    for clients in sorted({clients for _, clients in found}):
        begin = {}
        for name in dict.fromkeys(name for name, _ in found):
            waits = found[name, clients]
            first, between = median(w.first for w in waits), median(w.between for w in waits)
            rate = median(w.rate for w in waits)
            begin = begin or {"first": first, "between": between, "rate": rate}
            listed.append(
                {
                    "clients": clients,
                    "server": name,
                    "first_token_s": first,
                    "first_token_ratio": begin["first"] / first,
                    "between_tokens_s": between,
                    "between_tokens_ratio": begin["between"] / between,
                    "tokens_per_second": rate,
                    "rate_ratio": rate / begin["rate"],
                }
            )
    return listed


def show(listed: list[dict], title: str) -> None:
    """Prints the rows as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in ("clients", "server", "first token", "", "between tokens", "", "tokens/s", ""):
        table.add_column(column, justify="left" if column == "server" else "right")
    for row in listed:
        table.add_row(
            str(row["clients"]),
            row["server"],
            f"{1e3 * row['first_token_s']:.1f} ms",
            f"{row['first_token_ratio']:.2f}x",
            f"{1e3 * row['between_tokens_s']:.2f} ms",
            f"{row['between_tokens_ratio']:.2f}x",
            f"{row['tokens_per_second']:.0f}",
            f"{row['rate_ratio']:.2f}x",
        )
    Console(width=120).print(table)
