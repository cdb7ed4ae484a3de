"""The objects that an installation's values ask for: the AgentPool and the ClusterProfilingPolicy
`default`.

The chart cannot make them itself: Helm refuses an object of a kind that the same release only just
defines. So it hands them over as a file, and the operator keeps the fields that are in it as they
are there, by server-side apply; fields that are not in it stay whoever's they are. Pure, but for
reading the file.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flameherd_policy.errors import PolicyError, Problem
from flameherd_policy.load import load_file, parse_file
from flameherd_policy.policies import ClusterProfilingPolicy
from flameherd_policy.pools import AgentPool

from flameherd_operator.observed import ClusterPolicy, Pool
from flameherd_operator.settings import DEFAULT_NAME, Document

Applied = Mapping[str, tuple[str, int]]
"""Kind → (uid, generation) of its default right after it was applied."""


def read(path: Path) -> tuple[Document, ...]:
    """The file's documents, as they are written. Raises `PolicyError`."""
    problems = []
    models = load_file(path)
    for index, model in enumerate(models, 1):
        kind = type(model).__name__
        if not isinstance(model, AgentPool | ClusterProfilingPolicy):
            said = f"a {kind} is no default: only AgentPool and ClusterProfilingPolicy are"
            problems.append(Problem("kind", said, str(path), index))
        elif model.metadata.name != DEFAULT_NAME:
            said = f"must be {DEFAULT_NAME}: the operator may write no other"
            problems.append(Problem("metadata.name", said, str(path), index, kind))
    if len({type(model) for model in models}) < len(models):
        problems.append(Problem("", "has two documents of one kind", str(path)))
    if problems:
        raise PolicyError(problems)
    return tuple(document for document in parse_file(path) if document is not None)


def to_apply(
    documents: Iterable[Document], seen: Iterable[Pool | ClusterPolicy], applied: Applied
) -> Iterator[Document]:
    """Those that are missing, or were changed since they were applied."""
    there = {
        one.resource.kind: (one.uid, one.generation) for one in seen if one.name == DEFAULT_NAME
    }
    for document in documents:
        kind = document["kind"]
        now, then = there.get(kind), applied.get(kind)
        # A watch may still show what was there before we wrote.
        stale = now is not None and then is not None and now[0] == then[0] and now[1] <= then[1]
        if not stale:
            yield document


def identity(answer: Mapping[str, Any]) -> tuple[str, int]:
    """(uid, generation) of an object as the API server answers."""
    return answer["metadata"]["uid"], answer["metadata"]["generation"]
