"""The objects that an installation's values ask for."""

from pathlib import Path
from typing import Any

import pytest
from flameherd_operator.defaults import read, to_apply
from flameherd_operator.observed import see
from flameherd_operator.settings import Document
from flameherd_policy.errors import PolicyError

API = "apiVersion: flameherd.dev/v1alpha1"
POOL = (
    '---\n{"apiVersion": "flameherd.dev/v1alpha1", "kind": "AgentPool", '
    '"metadata": {"name": "default"}, "spec": {"whenIdle": "Keep"}}\n'
)
CLUSTER = f"---\n{API}\nkind: ClusterProfilingPolicy\nmetadata: {{name: default}}\nspec: {{}}\n"


def written(folder: Path, text: str) -> tuple[Document, ...]:
    path = folder / "defaults.yaml"
    path.write_text(text)
    return read(path)


def test_documents_are_kept_as_they_are_written(tmp_path: Path) -> None:
    pool, cluster = written(tmp_path, POOL + CLUSTER)
    assert pool["spec"] == {"whenIdle": "Keep"}  # although it is the default
    assert cluster["kind"] == "ClusterProfilingPolicy"
    assert written(tmp_path, "---\n") == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (POOL + POOL, "two documents of one kind"),
        (POOL.replace('"default"', '"edge"'), "must be default"),
        (POOL.replace("whenIdle", "whenidle"), "whenidle"),
        (
            f"{API}\nkind: ProfilingPolicy\nmetadata: {{name: default}}\n"
            "spec: {podSelector: {}}\n",
            "is no default",
        ),
    ],
)
def test_what_is_no_default_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        written(tmp_path, text)


def pool(uid: str, generation: int, name: str = "default") -> Any:
    meta = {"name": name, "uid": uid, "generation": generation}
    return see("AgentPool", {"metadata": meta, "spec": {}})


def test_a_default_is_applied_when_it_is_missing_or_was_changed(tmp_path: Path) -> None:
    documents = written(tmp_path, POOL)
    assert list(to_apply(documents, [], {})) == [*documents]
    assert list(to_apply(documents, [pool("a", 1, "edge")], {})) == [*documents]
    assert list(to_apply(documents, [pool("a", 1)], {})) == [*documents]  # by whom, who knows
    applied = {"AgentPool": ("a", 2)}
    assert list(to_apply(documents, [pool("a", 2)], applied)) == []
    assert list(to_apply(documents, [pool("a", 1)], applied)) == []  # the watch lags
    assert list(to_apply(documents, [pool("a", 3)], applied)) == [*documents]
    assert list(to_apply(documents, [pool("b", 1)], applied)) == [*documents]
    assert list(to_apply(documents, [], applied)) == [*documents]
