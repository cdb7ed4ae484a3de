"""The bytecode cache: what is used again, and what is made anew."""

import json
from pathlib import Path

import pytest
from flameherd_agent.kernel import loader

ANSWER = {"maps": {"fh_config": [2, 4, 40, 1, 0]}, "programs": {"fh_tick": {"code": ""}}}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were compiled; nothing really is."""
    texts: list[str] = []

    def fake(
        _directory: Path, text: str, _flags: list[str], _programs: list[str]
    ) -> dict[str, object]:
        texts.append(text)
        return dict(ANSWER)

    monkeypatch.setattr(loader, "_compile", fake)
    return texts


def cached(folder: Path) -> Path:
    (path,) = folder.glob("bytecode-*.json")
    return path


def test_compiled_once(tmp_path: Path, compiled: list[str]) -> None:
    first = loader.bytecode(tmp_path)
    assert loader.bytecode(tmp_path) == first == loader.Bytecode(**ANSWER)  # type: ignore[arg-type]
    assert len(compiled) == 1


def test_another_kernel_is_compiled_for(
    tmp_path: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loader.bytecode(tmp_path)
    monkeypatch.setattr(loader, "_kernel_identity", lambda: b"another kernel")
    loader.bytecode(tmp_path)
    assert len(compiled) == 2


def test_equal_checksums_are_not_enough(tmp_path: Path, compiled: list[str]) -> None:
    loader.bytecode(tmp_path)
    path = cached(tmp_path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"source": "other text"}))
    loader.bytecode(tmp_path)
    assert len(compiled) == 2
    assert json.loads(path.read_text()) == content


@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b'{"source": 1', b"\xff"])
def test_a_damaged_file_is_replaced(tmp_path: Path, compiled: list[str], damage: bytes) -> None:
    loader.bytecode(tmp_path)
    path = cached(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(damage)
    loader.bytecode(tmp_path)
    assert path.read_bytes() == whole
    assert len(compiled) == 2
