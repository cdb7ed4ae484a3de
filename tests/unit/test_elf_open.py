"""Safe opens, against a process with a root directory of its own that is full of traps.

Needs root for chroot(2); the traps are made in a temporary directory.
"""

import contextlib
import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from flameherd_agent.elf.filemap import FileMap
from flameherd_agent.elf.open import MappedFile, OpenFile, open_in_root, open_mapped, open_path
from flameherd_agent.errors import ElfError
from flameherd_agent.types import Pid

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="chroot(2) needs root")
CHROOTED = (
    "import os, sys, time; os.chroot(sys.argv[1]); os.chdir('/');"
    "print('ready', flush=True); time.sleep(600)"
)


@contextlib.contextmanager
def running(*command: str) -> Iterator[Pid]:
    """A process that has printed a line; killed afterwards."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield Pid(process.pid)
        finally:
            process.kill()


@pytest.fixture
def contained(tmp_path: Path) -> Iterator[tuple[Pid, Path]]:
    """(process, its root directory)."""
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    with running(sys.executable, "-c", CHROOTED, str(root)) as pid:
        yield pid, root


def mapped(pid: Pid, path: str, real: Path | None = None) -> MappedFile:
    """A mapping of `path` whose device and inode are those of `real`; unknown without."""
    status = real.stat() if real is not None else None
    device, inode = (status.st_dev, status.st_ino) if status else (0, 0)
    return MappedFile(pid, path, device, inode, 0x1000, 0x2000)


def content(opened: OpenFile) -> bytes:
    try:
        return os.pread(opened.fd, 100, 0)
    finally:
        opened.close()


@needs_root
def test_names_are_resolved_inside_the_root(contained: tuple[Pid, Path]) -> None:
    pid, root = contained
    (root / "bin/app").write_bytes(b"inside")
    (root / "bin/link").symlink_to("/bin/app")
    (root / "bin/up").symlink_to("../../../../../../../../bin/app")
    for name in ("/bin/app", "/bin/link", "/bin/up"):
        opened = open_mapped(mapped(pid, name, root / "bin/app"))
        assert opened.how == "root"
        assert content(opened) == b"inside"


@needs_root
def test_an_absolute_link_never_leads_to_the_hosts_file(contained: tuple[Pid, Path]) -> None:
    pid, root = contained
    secret = root.parent / "secret"
    secret.write_bytes(b"host secret")
    (root / "bin/app").symlink_to(secret)
    assert Path(f"/proc/{pid}/root/bin/app").read_bytes() == b"host secret"  # the trap works
    for file in (mapped(pid, "/bin/app", secret), mapped(pid, "/bin/app")):
        with pytest.raises(ElfError, match="No such file"):
            open_mapped(file)
    with pytest.raises(ElfError, match="No such file"):
        open_in_root(pid, "/bin/app")


@needs_root
def test_magic_links_are_not_followed(contained: tuple[Pid, Path]) -> None:
    pid, root = contained
    (root / "proc").mkdir()
    (root / "bin/app").write_bytes(b"inside")
    if subprocess.run(["mount", "-t", "proc", "proc", root / "proc"], check=False).returncode:
        pytest.skip("procfs cannot be mounted here")
    try:
        with pytest.raises(ElfError, match="cannot open"):
            open_in_root(pid, f"/proc/{pid}/root/bin/app")
    finally:
        subprocess.run(["umount", root / "proc"], check=True)


@needs_root
@pytest.mark.timeout(20)
def test_what_is_no_regular_file_neither_hangs_nor_reacts(contained: tuple[Pid, Path]) -> None:
    pid, root = contained
    os.mkfifo(root / "fifo")
    (root / "directory").mkdir()
    names = ["/fifo", "/directory"]
    with contextlib.suppress(PermissionError):
        os.mknod(root / "zero", 0o20666, os.makedev(1, 5))
        names.append("/zero")
    for name in names:
        for file in (mapped(pid, name, Path(f"{root}{name}")), mapped(pid, name)):
            with pytest.raises(ElfError, match="not a regular file"):
                open_mapped(file)


@needs_root
def test_a_sparse_terabyte_is_refused_unread(contained: tuple[Pid, Path]) -> None:
    pid, root = contained
    with (root / "huge").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ElfError, match="over the limit"):
        open_mapped(mapped(pid, "/huge", root / "huge"))


@needs_root
def test_another_file_of_that_name_is_not_taken(contained: tuple[Pid, Path]) -> None:
    pid, root = contained
    (root / "bin/app").write_bytes(b"new")
    (root / "bin/old").write_bytes(b"old")
    with pytest.raises(ElfError, match="is mapped"):
        open_mapped(mapped(pid, "/bin/app", root / "bin/old"))
    elsewhere = mapped(pid, "/bin/app", root / "bin/app")
    elsewhere = MappedFile(pid, "/bin/app", elsewhere.device + 1, elsewhere.inode, 1, 2)
    with pytest.raises(ElfError, match="device"):
        open_mapped(elsewhere)


def areas(pid: Pid, name: str) -> list[MappedFile]:
    """Mappings whose path contains a name."""
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and name in fields[5]:
            start, end = (int(part, 16) for part in fields[0].split("-"))
            major, minor = (int(part, 16) for part in fields[3].split(":"))
            device = os.makedev(major, minor)
            found.append(MappedFile(pid, fields[5], device, int(fields[4]), start, end))
    return found


@pytest.mark.parametrize("replace", [False, True])
def test_a_program_that_was_deleted_or_replaced(tmp_path: Path, replace: bool) -> None:
    program = tmp_path / "program"
    shutil.copy("/bin/sh", program)
    original = program.read_bytes()
    with running(str(program), "-c", "echo ready; read x") as pid:
        (file, *_) = areas(pid, "/program")
        program.unlink()
        if replace:
            program.write_bytes(b"another")
        for asked in (file, *areas(pid, "/program")[:1]):
            opened = open_mapped(asked)
            assert opened.how in ("map_files", "exe")
            assert content(opened) == original[:100]


MEMFD = (
    "import mmap, os, time; fd = os.memfd_create('code'); os.write(fd, b'in memory' * 1000);"
    "m = mmap.mmap(fd, 9000, prot=mmap.PROT_READ | mmap.PROT_EXEC); os.close(fd);"
    "print('ready', flush=True); time.sleep(600)"
)


@needs_root
def test_a_file_that_never_had_a_name() -> None:
    with running(sys.executable, "-c", MEMFD) as pid:
        (file,) = areas(pid, "memfd:code")
        wider = MappedFile(pid, file.path, 0, 0, file.start, file.end + (1 << 20))
        for asked in (file, wider):
            assert content(open_mapped(asked))[:9] == b"in memory"


def test_a_process_that_is_gone() -> None:
    """Its file is opened by its name here only if device and inode say that it is the very same one."""
    with running("/bin/sh", "-c", "echo ready; read x") as pid:
        file = areas(pid, "sh")[0]
    opened = open_mapped(file)
    assert opened.how == "path"
    assert os.fstat(opened.fd).st_ino == file.inode
    opened.close()
    for other in (replace(file, inode=file.inode + 1), replace(file, device=file.device + 1)):
        with pytest.raises(ElfError, match="cannot open"):
            open_mapped(other)


def test_changes_while_open_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    opened = open_path(path)
    assert not opened.changed()
    path.write_bytes(b"12345")
    assert opened.changed()
    opened.close()


def test_file_maps_hold_no_descriptor_and_go_with_their_last_view(tmp_path: Path) -> None:
    path = tmp_path / "mapped-file"
    path.write_bytes(b"x" * mmap.PAGESIZE)
    before = len(list(Path("/proc/self/fd").iterdir()))
    opened = open_path(path)
    file = FileMap(opened.fd)
    opened.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    view = file.data[10:20]
    file.shed()
    del file
    assert bytes(view) == b"x" * 10
    view.release()
    del view
    assert "mapped-file" not in Path("/proc/self/maps").read_text()
