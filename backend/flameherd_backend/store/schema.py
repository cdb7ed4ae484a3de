"""Brings a store to the schema of this version: the numbered files of `migrations/`, each once, in order.

Before a migration of a store that holds data, the embedded engine's tables are frozen: hard links to
all parts under `shadow/before-<number>/` of its folder, which cost no room until parts are merged
away. A server's administrator takes the backup. A store that is newer than this program is left alone.
"""

import secrets
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final, NamedTuple

from flameherd_backend.errors import EnvironmentProblem, StoreError
from flameherd_backend.store.database import Database, EmbeddedDatabase

_KEY: Final = "id_key"
_KEY_BYTES: Final = 32


class Migration(NamedTuple):
    """One file."""

    number: int
    name: str
    statements: tuple[str, ...]


def load(folder: Traversable | None = None) -> list[Migration]:
    """The migrations, by number."""
    folder = folder or resources.files("flameherd_backend.store") / "migrations"
    found = []
    for file in folder.iterdir():
        number, _, _ = file.name.partition("_")
        if not file.name.endswith(".sql") or not number.isdigit():
            continue
        text = file.read_text(encoding="utf-8")
        statements = (part.strip() for part in text.split(";\n"))
        kept = tuple(part for part in statements if part and not _only_comments(part))
        found.append(Migration(int(number), file.name, kept))
    return sorted(found)


def _only_comments(statement: str) -> bool:
    return all(not line.strip() or line.strip().startswith("--") for line in statement.splitlines())


def migrate(database: Database, migrations: list[Migration] | None = None) -> int:
    """Applies what is missing; returns the version. Raises `EnvironmentProblem` if the store is newer."""
    migrations = load() if migrations is None else migrations
    database.execute(
        "CREATE TABLE IF NOT EXISTS schema_versions (version UInt32, name String, at DateTime DEFAULT now()) "
        "ENGINE = MergeTree ORDER BY version"
    )
    version = _version(database)
    newest = migrations[-1].number if migrations else 0
    if version > newest:
        raise EnvironmentProblem(
            f"the store has schema {version}, this program knows {newest}: run the newer flameherd-backend"
        )
    for migration in migrations:
        if migration.number <= version:
            continue
        if version > 0 and isinstance(database, EmbeddedDatabase):
            _freeze(database, f"before-{migration.number}")
        for statement in migration.statements:
            try:
                database.execute(statement)
            except StoreError as error:
                raise EnvironmentProblem(
                    f"migration {migration.name} failed; the tables as they were are under shadow/before-"
                    f"{migration.number} of the store's folder: {error}"
                ) from error
        database.execute(
            "INSERT INTO schema_versions (version, name) VALUES ({version:UInt32}, {name:String})",
            {"version": migration.number, "name": migration.name},
        )
    return newest


def _version(database: Database) -> int:
    return int(database.query("SELECT max(version) AS version FROM schema_versions")["version"][0])


def _freeze(database: Database, name: str) -> None:
    tables = database.query(
        "SELECT name FROM system.tables WHERE database = currentDatabase() AND engine LIKE '%MergeTree'"
    )
    for table in tables.get("name", []):
        database.execute(f"ALTER TABLE {table} FREEZE WITH NAME '{name}'")


def id_key(database: Database) -> bytes:
    """The key of this store's ids, made with the store. All backends of a cluster share it."""
    sql = "SELECT min(value) AS value FROM meta WHERE key = {key:String}"
    stored = database.query(sql, {"key": _KEY})["value"][0]
    if not stored:
        database.execute(
            "INSERT INTO meta (key, value) VALUES ({key:String}, {value:String})",
            {"key": _KEY, "value": secrets.token_hex(_KEY_BYTES)},
        )
        stored = database.query(sql, {"key": _KEY})["value"][0]
    return bytes.fromhex(stored)
