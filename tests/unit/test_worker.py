"""The worker: real files of real processes, and files and children that misbehave."""

import logging
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from flameherd_agent.elf.identity import identify
from flameherd_agent.elf.reader import SHF_COMPRESSED, ElfFile
from flameherd_agent.symbols.index import SymbolIndex
from flameherd_agent.types import FileAddress, Pid
from flameherd_agent.unwind.build import build_table
from flameherd_agent.unwind.table import UnwindTable
from flameherd_agent.worker.cache import Cache, CacheError, fallback_places
from flameherd_agent.worker.client import FileAnswer, FileRequest, NamesAnswer, WorkerClient
from flameherd_agent.worker.snapshot import take_snapshot, without

from tests.unit.elf_files import EH_FRAME, TEXT, Part, eh_frame, elf_file

LIBC = Path("/lib/x86_64-linux-gnu/libc.so.6").resolve()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[WorkerClient]:
    worker = WorkerClient(tmp_path / "cache")
    yield worker
    worker.close()


def collect(client: WorkerClient, limit_s: float = 60.0) -> list[FileAnswer]:
    """All answers to what is pending, as an event loop would take them."""
    answers: list[FileAnswer] = []
    names_of(client, answers, None, limit_s)
    return answers


def names_of(
    client: WorkerClient,
    answers: list[FileAnswer],
    names: list[NamesAnswer] | None,
    limit_s: float = 60.0,
) -> None:
    """Adds what comes to `answers` and `names`."""
    until = time.monotonic() + limit_s
    while client.pending:
        assert time.monotonic() < until
        if client.fileno() >= 0:
            select.select([client.fileno()], [], [], 0.05)
        for answer in client.poll():
            if isinstance(answer, FileAnswer):
                answers.append(answer)
            else:
                assert names is not None
                names.append(answer)


def ask_names(client: WorkerClient, *paths: Path) -> list[NamesAnswer]:
    """First the tables, then the names, as the agent does."""
    answers = ask(client, *paths)
    for path, answer in zip(paths, answers, strict=True):
        client.submit_names(request_for(path), answer.content_key)
    names: list[NamesAnswer] = []
    names_of(client, [], names)
    assert [name.error for name in names] == [""] * len(paths)
    return names


def request_for(path: Path, pid: int | None = None) -> FileRequest:
    """A request for a file as if a process, this one if not told, had mapped it."""
    status = path.stat()
    device = (os.major(status.st_dev), os.minor(status.st_dev))
    return FileRequest(Pid(pid or os.getpid()), str(path), device, status.st_ino, 0x1000, 0x2000)


def ask(client: WorkerClient, *paths: Path) -> list[FileAnswer]:
    for path in paths:
        client.submit(request_for(path))
    return collect(client)


def symbol_table(names: dict[str, int]) -> list[Part]:
    """`.symtab` and `.strtab` with 16-byte functions."""
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in names)
    rows = bytes(24)
    for name, address in names.items():
        at = strings.index(b"\0" + name.encode() + b"\0") + 1
        rows += struct.pack("<IBBHQQ", at, 0x12, 0, 1, address, 16)
    return [Part(".symtab", 2, 0, 0, rows), Part(".strtab", 3, 0, 0, strings)]


def program(
    names: dict[str, int], code: bytes = b"\x0e\x10", build_id: bytes = b"same" * 5
) -> bytes:
    note = struct.pack("<III", 4, len(build_id), 3) + b"GNU\0" + build_id
    data = elf_file(
        [
            Part(".eh_frame", 1, 2, EH_FRAME, eh_frame([(TEXT, 64, code)])),
            *symbol_table(names),
        ],
        notes=note,
    )
    # The writer leaves sh_link alone: .symtab, which is section 2, links to .strtab, section 3.
    at = struct.unpack_from("<Q", data, 40)[0] + 2 * 64 + 40
    return data[:at] + struct.pack("<I", 3) + data[at + 4 :]


def test_libc_as_this_process_maps_it(client: WorkerClient) -> None:
    (answer,) = ask(client, LIBC)
    assert answer.error == ""
    elf = ElfFile.open(LIBC)
    assert answer.gnu_build_id == identify(elf).gnu_build_id
    assert answer.htlhash == identify(elf).htlhash
    loaded, built = UnwindTable.load(Path(answer.table_path)), build_table(elf)
    assert answer.rows == len(built)
    assert (loaded.pcs == built.pcs).all()
    assert (loaded.rule_table[loaded.rules] == built.rule_table[built.rules]).all()
    vaddr, offset, size = answer.segments[0]
    assert elf.vaddr_to_offset(vaddr) == offset
    assert answer.size == LIBC.stat().st_size
    assert size > 1 << 20
    assert not answer.is_go


def test_the_cache_answers_the_second_time(tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        client = WorkerClient(tmp_path)
        (answer,) = ask(client, LIBC)
        client.close()
        found.append((answer.content_key, Path(answer.table_path).stat().st_ino))
    assert found[0] == found[1]


def test_a_damaged_cache_entry_is_made_anew(client: WorkerClient) -> None:
    (answer,) = ask(client, LIBC)
    Path(answer.table_path).write_bytes(b"nonsense")
    (again,) = ask(client, LIBC)
    assert len(UnwindTable.load(Path(again.table_path))) == answer.rows
    (names,) = ask_names(client, LIBC)
    Path(names.symbols_path).write_bytes(b"nonsense")
    (names,) = ask_names(client, LIBC)
    assert len(SymbolIndex.open(Path(names.symbols_path)).lookup(malloc_in(LIBC))) == 1


def malloc_in(path: Path) -> FileAddress:
    """The address of a function that libc surely exports."""
    text = subprocess.run(["nm", "-D", path], capture_output=True, text=True, check=True).stdout
    line = next(line for line in text.splitlines() if " malloc@@" in line)
    return FileAddress(int(line.split()[0], 16))


def test_names_outlive_the_process(client: WorkerClient, tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(program({"f": TEXT}))
    request = request_for(path)
    number = client.submit(request)
    (answer,) = collect(client)
    assert answer.request == number
    path.unlink()
    for wanted in ("", "open"):  # the copy that was kept for the names is used up by them
        names: list[NamesAnswer] = []
        client.submit_names(request, answer.content_key)
        names_of(client, [], names)
        assert names[0].reason == wanted


def test_names_of_another_content_are_refused(client: WorkerClient, tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(program({"f": TEXT}))
    names: list[NamesAnswer] = []
    client.submit_names(request_for(path), "0" * 32)
    names_of(client, [], names)
    assert names[0].reason == "changed"


def test_tables_come_before_names(client: WorkerClient) -> None:
    (answer,) = ask(client, LIBC)
    python = Path(sys.executable).resolve()
    order: list[type] = []
    for _ in range(3):
        client.submit_names(request_for(LIBC), answer.content_key)
    client.submit(request_for(python))
    until = time.monotonic() + 60
    while client.pending:
        assert time.monotonic() < until
        select.select([client.fileno()], [], [], 0.05)
        order += [type(answer) for answer in client.poll()]
    assert order.index(FileAnswer) <= 1  # one request for names may have been under way
    assert len(order) == 4


def test_the_vdso(client: WorkerClient) -> None:
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith("[vdso]"):
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            request = FileRequest(Pid(1), "[vdso]", (0, 0), 0, start, end, "vdso")
            client.submit(request)
    (answer,) = collect(client)
    assert answer.error == ""
    assert answer.rows > 5
    names: list[NamesAnswer] = []
    client.submit_names(request, answer.content_key)
    names_of(client, [], names)
    assert len(SymbolIndex.open(Path(names[0].symbols_path))._index) > 2


def test_the_child_has_no_descriptor_of_ours_and_dies_with_us(tmp_path: Path) -> None:
    script = f"""
import os, sys, time
from pathlib import Path
sys.path.insert(0, {str(Path.cwd())!r})
from tests.unit.test_worker import ask, LIBC
from flameherd_agent.worker.client import WorkerClient
secret = os.open("/etc/passwd", os.O_RDONLY); os.set_inheritable(secret, True)
client = WorkerClient(Path({str(tmp_path)!r}))
ask(client, LIBC)
print(client._process.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as agent:
        assert agent.stdout is not None
        child = int(agent.stdout.readline())
        links = {str(path.readlink()) for path in Path(f"/proc/{child}/fd").iterdir()}
        assert not any("passwd" in link for link in links)
        agent.kill()
    until = time.monotonic() + 10
    while Path(f"/proc/{child}").exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not Path(f"/proc/{child}").exists()


def test_names_wait_while_something_else_needs_the_memory(
    client: WorkerClient, tmp_path: Path
) -> None:
    file = tmp_path / "program"
    file.write_bytes(program({"one": TEXT}))
    wanted = request_for(file)
    client.submit(wanted)
    (answer,) = collect(client)
    until = time.monotonic() + 60
    while not client.pause(True):
        assert time.monotonic() < until
        select.select([client.fileno()], [], [], 0.05)
        client.poll()
    client.submit_names(wanted, answer.content_key)
    client.submit(wanted)
    answers: list[FileAnswer] = []
    while not answers:
        assert time.monotonic() < until
        select.select([client.fileno()], [], [], 0.05)
        for came in client.poll():
            assert isinstance(came, FileAnswer), "tables do not wait"
            answers.append(came)
    assert client.pending == 1
    client.pause(False)
    names: list[NamesAnswer] = []
    names_of(client, [], names)
    assert [each.error for each in names] == [""]


def test_the_child_leaves_when_idle_and_comes_back(tmp_path: Path) -> None:
    client = WorkerClient(tmp_path, idle_s=0.1)
    assert ask(client, LIBC)[0].error == ""
    time.sleep(0.6)
    assert client.poll() == []
    assert client.fileno() == -1
    assert ask(client, LIBC)[0].error == ""
    assert client.restarts == 0
    client.close()


def test_equal_build_ids_do_not_share_names(client: WorkerClient, tmp_path: Path) -> None:
    real, forged, copy = (tmp_path / name for name in ("real", "forged", "copy"))
    real.write_bytes(program({"true_name": TEXT}))
    forged.write_bytes(program({"fake_name": TEXT}))
    copy.write_bytes(real.read_bytes())
    answers = ask(client, real, forged, copy)
    assert len({a.gnu_build_id for a in answers}) == 1
    names = [
        SymbolIndex.open(Path(found.symbols_path)).lookup(FileAddress(TEXT))[0].function
        for found in ask_names(client, real, forged, copy)
    ]
    assert names == ["true_name", "fake_name", "true_name"]
    assert answers[0].content_key == answers[2].content_key != answers[1].content_key


def test_code_does_not_change_the_key_but_rows_do(tmp_path: Path) -> None:
    def key(data: bytes) -> str:
        path = tmp_path / "file"
        path.write_bytes(data)
        with path.open("rb") as file:
            return take_snapshot(file.fileno(), len(data)).key

    base = program({"f": TEXT})
    assert key(base) != key(program({"f": TEXT}, code=b"\x0e\x18"))
    assert key(base) != key(program({"g": TEXT}))
    assert key(base) != key(base[: TEXT + 8] + b"\x90" + base[TEXT + 9 :])  # in no code section
    real = bytearray(LIBC.read_bytes())
    before = key(bytes(real))
    text = ElfFile(bytes(real)).section(".text")
    assert text is not None
    real[text.offset + 5000] ^= 1
    assert key(bytes(real)) == before


def test_stubs_without_lazy_binding_have_names(client: WorkerClient) -> None:
    bash = Path("/bin/bash").resolve()
    stubs = ElfFile.open(bash).section(".plt.got")
    if stubs is None:
        pytest.skip(f"{bash} has no .plt.got")
    (names,) = ask_names(client, bash)
    lines = SymbolIndex.open(Path(names.symbols_path)).lookup(FileAddress(stubs.addr))
    assert lines
    assert lines[0].function.endswith("@plt")


def test_names_in_a_hurry_come_first(client: WorkerClient) -> None:
    (answer,) = ask(client, LIBC)
    numbers = [client.submit_names(request_for(LIBC), answer.content_key) for _ in range(6)]
    client.hurry({numbers[-1], numbers[3]})
    names: list[NamesAnswer] = []
    names_of(client, [], names)
    order = [name.request for name in names]
    assert sorted(order) == numbers
    # The first was on its way already.
    assert [n for n in order if n != numbers[0]][:2] == [numbers[3], numbers[-1]]


def test_ranges() -> None:
    assert without([(0, 100)], [(10, 20), (15, 30), (90, 200)]) == [(0, 10), (30, 90)]
    assert without([(0, 10), (5, 20)], []) == [(0, 10), (10, 20)]
    assert without([(5, 5)], []) == []


def test_a_deleted_program_and_a_gone_process(client: WorkerClient, tmp_path: Path) -> None:
    path = tmp_path / "program"
    shutil.copy("/bin/sh", path)
    with subprocess.Popen(
        [path, "-c", "echo; read x"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        request = request_for(path, process.pid)
        path.unlink()
        client.submit(request)
        (answer,) = collect(client)
        assert answer.error == ""
        assert answer.rows > 100
        process.kill()
    client.submit(request)
    (answer,) = collect(client)
    assert answer.reason == "open"


def truncated(good: bytes) -> bytes:
    return good[:200]


def no_elf(good: bytes) -> bytes:
    return b"#!/bin/sh\n" * 100


def bomb(good: bytes) -> bytes:
    packer = zlib.compressobj(9)
    packed = packer.compress(bytes(1 << 27)) + packer.flush()
    packed = struct.pack("<IIQQ", 1, 0, 1 << 27, 1) + packed
    return elf_file([Part(".debug_frame", 1, SHF_COMPRESSED, 0, packed)])


@pytest.mark.parametrize("spoil", [truncated, no_elf, bomb])
def test_hostile_files_cost_themselves_only(
    client: WorkerClient, tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    bad = tmp_path / "bad"
    bad.write_bytes(spoil(program({"f": TEXT})))
    first, second = ask(client, bad, LIBC)
    assert first.reason == "malformed"
    assert second.error == ""
    assert client.restarts == 0


def with_many_symbols(path: Path, size: int) -> Path:
    """A sparse file of `size` bytes, nearly all of it symbol table."""
    good = program({"f": TEXT})
    path.write_bytes(good)
    sections = struct.unpack_from("<Q", good, 40)[0]
    with path.open("r+b") as file:
        file.truncate(size)
        file.seek(sections + 2 * 64 + 24)  # .symtab: offset, size
        file.write(struct.pack("<QQ", len(good), size - len(good)))
    return path


def test_a_gigabyte_of_symbols_is_over_the_cap(client: WorkerClient, tmp_path: Path) -> None:
    first, second = ask(client, with_many_symbols(tmp_path / "sparse", 1 << 30), LIBC)
    assert first.reason == "malformed"
    assert "more than" in first.error
    assert second.error == ""


def test_a_file_that_takes_too_much_memory(tmp_path: Path) -> None:
    module = (sys.executable, "-P", "-m", "flameherd_agent.worker.child")
    client = WorkerClient(tmp_path / "cache", command=(*module, "--headroom", str(24 << 20)))
    large = with_many_symbols(tmp_path / "sparse", 250 << 20)
    names: list[NamesAnswer] = []
    answers = ask(client, large, LIBC)
    for path, answer in zip((large, LIBC), answers, strict=True):
        client.submit_names(request_for(path), answer.content_key)
    names_of(client, [], names)
    assert [answer.reason for answer in names] == ["memory", ""]
    assert client.restarts == 0
    client.close()


# A child that speaks the protocol and misbehaves by the name of the file.
FAKE = """
import json, os, signal, sys, time
out = os.fdopen(os.dup(0), "wb", buffering=0)
out.write(b'{"ready": true}\\n')
for line in os.fdopen(0, "rb", buffering=0):
    request = json.loads(line)
    if "hang" in request["path"]: time.sleep(600)
    if "die" in request["path"]: os.kill(os.getpid(), signal.SIGKILL)
    if "leave" in request["path"]: os._exit(1)
    out.write(json.dumps({"id": request["id"], "content_key": request["path"]}).encode() + b"\\n")
"""


@pytest.mark.parametrize(
    ("name", "reason", "children"),
    [("hang", "timeout", 1), ("die", "crashed", 2), ("leave", "crashed", 2)],
)
def test_a_child_that_hangs_or_dies_costs_one_file(
    tmp_path: Path, name: str, reason: str, children: int
) -> None:
    # A limit that a busy machine does not reach by itself.
    limit_s = 3.0 if name == "hang" else 60.0
    client = WorkerClient(tmp_path, time_limit_s=limit_s, command=(sys.executable, "-c", FAKE))
    numbers = [
        client.submit(FileRequest(Pid(1), path, (0, 0), 1, 0, 1))
        for path in ("a", name, "b", "c", name, *(f"d{i}" for i in range(30)))
    ]
    answers = {answer.request: answer for answer in collect(client)}
    assert list(answers) == numbers
    reasons = [answers[number].reason for number in numbers]
    assert reasons == ["", reason, "", "", reason] + [""] * 30
    assert client.restarts == 2 * children
    assert answers[numbers[-1]].content_key == "d29"
    client.close()


def test_what_is_needed_most_comes_first(tmp_path: Path) -> None:
    """What waits when the child has room: weights may have changed since the request was made."""
    client = WorkerClient(tmp_path, command=(sys.executable, "-c", FAKE))
    weights = {"one": 1, "large": -9, "three": 0, "two": 2, "plain": 1}
    numbers = {
        client.submit(
            FileRequest(Pid(1), path, (0, 0), 1, 0, 1), partial(weights.__getitem__, path)
        ): path
        for path in weights
    }
    done: list[str] = []
    client.call("kallsyms", {"path": "kernel"}, lambda answer: done.append(answer["content_key"]))
    weights["three"] = 3
    answers = collect(client)
    assert [numbers[answer.request] for answer in answers] == [
        "three",
        "two",
        "one",
        "plain",
        "large",
    ]
    assert done == ["kernel"]
    client.close()


def test_a_worker_killed_by_someone_else(client: WorkerClient) -> None:
    assert ask(client, LIBC)[0].error == ""
    assert client._process is not None
    os.kill(client._process.pid, signal.SIGKILL)
    assert ask(client, LIBC)[0].error == ""


def test_a_child_that_does_not_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    client = WorkerClient(tmp_path, command=(sys.executable, "-c", "raise SystemExit(3)"))
    with caplog.at_level(logging.ERROR):
        answers = ask(client, LIBC, LIBC)
    assert [answer.reason for answer in answers] == ["no_worker", "no_worker"]
    assert "does not start" in caplog.text
    client.close()


def test_an_unusable_cache_directory_is_replaced_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    client = WorkerClient(tmp_path / "file")
    with caplog.at_level(logging.WARNING):
        answers = ask(client, LIBC, Path(sys.executable).resolve())
    assert [answer.error for answer in answers] == ["", ""]
    assert all(Path(answer.table_path).exists() for answer in answers)
    assert caplog.text.count("cannot be used") == 1
    client.close()
    assert not Path(answers[0].table_path).exists()


def test_a_full_disk(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        client = WorkerClient(small)
        (answer,) = ask(client, LIBC)
        assert answer.error == ""
        assert "cannot be used" in answer.warning
        client.close()
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_no_directory_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    monkeypatch.setattr("flameherd_agent.worker.cache.fallback_places", lambda _: [blocked / "x"])
    cache = Cache(blocked, "x")
    with pytest.raises(CacheError, match="cannot write"):
        cache.add("a.rows", lambda path: path.write_bytes(b"x"))


def test_the_cache_forgets_what_was_not_used_for_longest(tmp_path: Path) -> None:
    cache = Cache(tmp_path, "unused", max_bytes=25)
    for age, name in ((500, "old.rows"), (400, "used.rows"), (10, "young.rows")):
        path = cache.add(name, lambda path: path.write_bytes(b"0123456789"))
        then = time.time() - age
        os.utime(path, (then, then))
    assert cache.find("used.rows") is not None
    cache.evict()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["used.rows", "young.rows"]
    assert all("unused" in str(place) for place in fallback_places("unused"))
