"""Rows of measurements beside their budgets, as Markdown."""

from typing import NamedTuple


class Row(NamedTuple):
    """A line of the table. Without a budget it is told, not judged."""

    what: str
    measured: float
    unit: str
    budget: float | None = None

    @property
    def verdict(self) -> str:
        """`ok`, `OVER`, or nothing. What could not be measured (NaN) is not ok."""
        if self.budget is None:
            return ""
        return "ok" if self.measured <= self.budget else "OVER"


def render(table: list[Row]) -> str:
    """The table in Markdown."""
    lines = ["| what | measured | budget | |", "| --- | ---: | ---: | --- |"]
    for row in table:
        number = f"{row.measured:,.0f}" if not row.unit else f"{row.measured:,.2f} {row.unit}"
        budget = "" if row.budget is None else f"{row.budget:g}"
        lines.append(f"| {row.what} | {number} | {budget} | {row.verdict} |")
    return "\n".join(lines)
