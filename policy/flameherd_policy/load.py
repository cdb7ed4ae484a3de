"""Files of policies or of an AgentConfig → structs. YAML (any number of documents) or JSON, which
is YAML.

Strict: an unknown field, a key that is there twice, a wrong type are problems, and all problems of
a file are told at once.
"""

import json
from collections.abc import Hashable
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from flameherd_policy.agent_config import AgentConfig
from flameherd_policy.base import API_VERSION, Model
from flameherd_policy.compile import Policy, compile_host
from flameherd_policy.decode import decode, shown, suggestion
from flameherd_policy.errors import PolicyError, Problem
from flameherd_policy.policies import ClusterProfilingPolicy, ProfilingPolicy
from flameherd_policy.pools import AgentPool

MAX_FILE_BYTES: Final = 4 << 20
MAX_DOCUMENTS: Final = 1024

KINDS: Final[dict[str, type[Model]]] = {
    kind.__name__: kind
    for kind in (ProfilingPolicy, ClusterProfilingPolicy, AgentPool, AgentConfig)
}


def load_file(path: Path) -> list[Model]:
    """Every document of a file; raises `PolicyError` with every problem of every document."""
    return load_text(_read(path), str(path))


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise PolicyError([Problem("", f"cannot be read: {error.strerror}", str(path))]) from error
    if len(data) > MAX_FILE_BYTES:
        raise PolicyError([Problem("", f"is larger than {MAX_FILE_BYTES >> 20} MiB", str(path))])
    return data


def parse_file(path: Path) -> list[Any]:
    """Every document of a file as it is written, None for an empty one; raises like `load_file`."""
    return _parse(_read(path), str(path))


def load_text(data: bytes, name: str) -> list[Model]:
    """Like `load_file`; `name` stands for the file in messages."""
    models: list[Model] = []
    found: list[Problem] = []
    for index, document in enumerate(_parse(data, name), 1):
        if document is None:  # an empty document: what stands between two "---"
            continue
        try:
            models.append(decode_document(document))
        except PolicyError as error:
            label = _label(document)
            found += [
                msgspec.structs.replace(p, file=name, document=index, label=label)
                for p in error.problems
            ]
    if found:
        raise PolicyError(found)
    return models


def decode_document(document: object) -> Model:
    """One document with `apiVersion` and `kind`, strictly; raises `PolicyError`."""
    if not isinstance(document, dict):
        raise PolicyError(
            [Problem("", f"{shown(document)} is not a document with apiVersion and kind")]
        )
    fields = dict(document)
    version, kind = fields.pop("apiVersion", None), fields.pop("kind", None)
    found = []
    if version != API_VERSION:
        found.append(Problem("apiVersion", f"{shown(version)} is not {API_VERSION!r}"))
    model = KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        hint = (
            suggestion(kind, list(KINDS))
            if isinstance(kind, str)
            else f"; known: {', '.join(KINDS)}"
        )
        found.append(Problem("kind", f"{shown(kind)} is not a kind of ours{hint}"))
        raise PolicyError(found)
    try:
        value = decode(model, fields).value
    except PolicyError as error:
        raise PolicyError([*found, *error.problems]) from None
    if found:
        raise PolicyError(found)
    return value


def load_agent_config(path: Path) -> AgentConfig:
    """What `flameherd agent --config PATH` carries out: one AgentConfig, or policies, which are
    compiled.

    Raises `PolicyError` with every problem, each with file, document and field.
    """
    return agent_config_of(load_file(path), str(path))


def agent_config_of(documents: list[Model], name: str) -> AgentConfig:
    """The one AgentConfig among `documents`, or their policies compiled for this machine."""
    configs = [document for document in documents if isinstance(document, AgentConfig)]
    policies: list[Policy] = [
        d for d in documents if isinstance(d, ProfilingPolicy | ClusterProfilingPolicy | AgentPool)
    ]
    if not documents:
        raise PolicyError([Problem("", f"holds no document; known: {', '.join(KINDS)}", name)])
    if len(configs) > 1 or (configs and policies):
        message = "either one AgentConfig, or policies; not both and not several"
        raise PolicyError([Problem("", message, name)])
    if configs:
        return configs[0]
    try:
        return compile_host(policies)
    except PolicyError as error:
        raise PolicyError(msgspec.structs.replace(p, file=name) for p in error.problems) from None


def _label(document: object) -> str:
    """`ClusterProfilingPolicy host`, as far as the document says."""
    if not isinstance(document, dict):
        return ""
    meta = document.get("metadata")
    name = meta.get("name") if isinstance(meta, dict) else None
    return " ".join(part[:80] for part in (document.get("kind"), name) if isinstance(part, str))


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: no timestamps, no merge keys, and no key twice.

    The pure Python loader on purpose: deep nesting is a RecursionError here, but a crash of the
    process in libyaml's (seen with 200,000 open brackets, PyYAML 6.0.3).
    """

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None:
                raise yaml.constructor.ConstructorError(
                    None, None, "a key that is not text", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is there twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern) for tag, pattern in resolvers if not tag.endswith((":timestamp", ":merge"))
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _parse_json(text: str, name: str) -> list[object] | None:
    """One JSON document, or None if it is not JSON: YAML's flow style begins with a brace, too.

    JSON is not quite YAML: escaped surrogate pairs are one character here and two there.
    """

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        result: dict[str, object] = {}
        for key, value in pairs:
            if key in result:
                raise PolicyError([Problem("", f"the key {key!r} is there twice", name, 1)])
            result[key] = value
        return result

    try:
        return [json.loads(text, object_pairs_hook=unique)]
    except json.JSONDecodeError:
        return None


def _parse(data: bytes, name: str) -> list[object]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PolicyError([Problem("", f"is not UTF-8 text (byte {error.start})", name)]) from error
    documents: list[object] = []
    try:
        if text.lstrip().startswith("{") and (parsed := _parse_json(text, name)) is not None:
            return parsed
        for document in yaml.load_all(text, Loader=_Loader):
            documents.append(document)
            if len(documents) > MAX_DOCUMENTS:
                raise PolicyError([Problem("", f"holds more than {MAX_DOCUMENTS} documents", name)])
    except PolicyError:  # is a ValueError
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        message = error.problem or "cannot be parsed"
        raise PolicyError([Problem(where, message, name, len(documents) + 1)]) from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        message = f"is not YAML: {error}"
        raise PolicyError([Problem("", message, name, len(documents) + 1)]) from error
    except RecursionError as error:
        message = "is nested too deeply"
        raise PolicyError([Problem("", message, name, len(documents) + 1)]) from error
    return documents
