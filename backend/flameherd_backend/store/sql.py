"""The queries of `queries/*.sql`: ClickHouse's SQL with `{name:Type}` for values and `$name` for pieces that we make."""

from functools import cache
from importlib import resources
from string import Template


@cache
def _template(name: str) -> Template:
    file = resources.files("flameherd_backend") / "queries" / f"{name}.sql"
    lines = file.read_text(encoding="utf-8").splitlines()
    return Template("\n".join(line for line in lines if not line.startswith("--")))


def load(name: str, **pieces: str) -> str:
    """A query with its pieces filled in. Pieces are SQL of ours, never a value."""
    return _template(name).substitute(pieces)
