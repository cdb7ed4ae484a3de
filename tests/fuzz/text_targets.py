"""Targets that read text which the kernel or a process writes, and symbol names."""

import os

import numpy as np
from flameherd_agent.errors import EnvironmentProblem
from flameherd_agent.metadata.cgroup import container_of_path, container_of_text
from flameherd_agent.metadata.hierarchy import parse_mountinfo
from flameherd_agent.process.maps import MAX_MAPPINGS, NO_FILE, parse_maps
from flameherd_agent.symbols.demangle import MAX_CHARACTERS, demangle
from flameherd_agent.symbols.flat import FlatIndex, write
from flameherd_agent.symbols.kallsyms import parse as parse_kallsyms
from flameherd_agent.symbols.perfmap import MAX_NAME_BYTES, PerfMap
from flameherd_agent.symbols.perfmap import parse as parse_perf_map
from flameherd_agent.types import Address

from tests.fuzz.target import must, parts_of, scratch

_U64 = 1 << 64


def maps(data: bytes) -> None:
    """`/proc/PID/maps`."""
    regions = parse_maps(data)
    must(len(regions) <= MAX_MAPPINGS, "mappings are bounded")
    for region in regions:
        must(0 <= region.start < region.end <= _U64, "a region is a range of addresses")
        must(0 <= region.offset < _U64, "an offset has 64 bits")
        must(0 <= region.file.inode < _U64, "an inode has 64 bits")
        must(all(0 <= part < 1 << 32 for part in region.file.device), "device numbers have 32 bits")
        must(region.file == NO_FILE or bool(region.file.path) or region.file.inode > 0, "a file")
        region.file.path.encode(errors="surrogateescape")
    starts = [region.start for region in regions]
    must(starts == sorted(starts), "regions are sorted")


def kallsyms(data: bytes) -> None:
    """`/proc/kallsyms`, written as an index and looked up."""
    try:
        columns = parse_kallsyms(data)
    except EnvironmentProblem:
        return
    path = scratch() / "kallsyms"
    write(path, columns.sections())
    index = FlatIndex.open(path)
    starts, ends = index.starts, index.starts + index.sizes.astype(np.uint64)
    must(bool((starts[1:] > starts[:-1]).all()), "symbols are sorted")
    must(bool((ends[:-1] <= starts[1:]).all()), "symbols do not overlap")
    some = [int(a) for a in starts[:32].tolist() + starts[-4:].tolist()]
    lines = [index.lookup(address) for address in some]
    must(index.lookup_batch(some) == lines, "lookups in batch and one by one agree")
    for address, line in zip(some, lines, strict=True):
        text = f"{address:016x} "
        must(
            line is None or any(row.startswith(text) for row in data.decode("latin-1").lower().splitlines()),
            "a name stands at its address",
        )  # fmt: skip


def perf_map(data: bytes) -> None:
    """A perf map file, read at once and in two pieces."""
    first, second = parts_of(data, 2)
    for start, end, name in parse_perf_map(first):
        must(0 <= start < end < _U64 and 0 < len(name) <= MAX_NAME_BYTES, "a function is a range")
    fd = os.memfd_create("fuzz")
    try:
        grown, whole = PerfMap(), PerfMap()
        os.write(fd, first)
        grown.update(fd)
        os.write(fd, second)
        grown.update(fd)
        whole.update(fd)
    finally:
        os.close(fd)
    addresses = [start + at for start, end, _ in parse_perf_map(first + second) for at in (0, 1)]
    for address in [*addresses[:64], 0, _U64 - 1]:
        line = whole.lookup(Address(address))
        must(grown.lookup(Address(address)) == line, "reading in pieces gives the same names")
        must(line is None or bool(line.function), "a name is not empty")


def cgroup(data: bytes) -> None:
    """`/proc/PID/cgroup` and `/proc/PID/mountinfo`."""
    text = data.decode("utf-8", "surrogateescape")
    for ref in (container_of_text(text), *map(container_of_path, text.splitlines()[:20])):
        if ref is not None:
            must(ref.container_id in text, "a container's id comes from the text")
            must(ref.container_id.isascii() and len(ref.container_id) <= 64, "an id is an id")
            must(ref.pod_uid is None or len(ref.pod_uid) in (32, 36), "a pod's uid is a uid")
    for mount in parse_mountinfo(text):
        must(mount.kind in ("cgroup", "cgroup2"), "only cgroup mounts")


def names(data: bytes) -> None:
    """Mangled names of C++ and Rust."""
    for raw in data.split(b"\n", 8)[:8]:
        name = raw.split(b"\0")[0].decode("utf-8", "replace")
        plain = demangle(name)
        must(bool(plain) == bool(name), "a name stays a name")
        must(len(plain) <= MAX_CHARACTERS, "a readable name is bounded")
        plain.encode()


_ID = "0123456789abcdef" * 4
_POD = "12345678-1234-1234-1234-123456789abc"


def maps_seeds() -> list[bytes]:
    """A shared library, a deleted file, memory without a file, the vDSO and vsyscall pages."""
    return [
        b"55d0aa1000-55d0ab2000 r-xp 00001000 fd:01 786                    /usr/bin/x\n"
        b"7f3b5c0000-7f3b5d0000 rw-p 00000000 00:00 0 \n"
        b"7ffd34c000-7ffd34e000 r-xp 00000000 00:00 0                      [vdso]\n"
        b"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0          [vsyscall]\n",
        b"7f00-7f10 r-xp 00000000 fd:01 12 /tmp/a b (deleted)\n7f10-7f20 r-xp 00000010 fd:01 12 /x\n",
    ]


def kallsyms_seeds() -> list[bytes]:
    """Core text, a module's function, an alias, an eBPF program."""
    return [
        b"ffffffff81000000 T _stext\nffffffff81000000 T startup_64\nffffffff81000100 t local.cold\n"
        b"ffffffff81000100 W __alias\nffffffff81000200 D data\nffffffff81000300 T _etext\n"
        b"ffffffffc0000000 t handler\t[ext4]\nffffffffc0000100 t bpf_prog_6deef7357e7b4530\t[bpf]\n",
        b"0000000000000000 T _stext\n0000000000000000 t x\n",
    ]


def perf_map_seeds() -> list[bytes]:
    """Functions, one moved, one overlapping, half a line."""
    return [
        b"7f0000001000 40 LazyCompile:~main /app/x.js:1\n7f0000001040 20 b c\n|//|"
        b"7f0000001000 80 moved\n0x7f0000001010 0x10 inner\n7f00",
    ]


def cgroup_seeds() -> list[bytes]:
    """One of each layout."""
    slice_ = f"kubepods-burstable-pod{_POD.replace('-', '_')}.slice"
    paths = [
        f"12:pids:/docker/{_ID}\n0::/system.slice/docker-{_ID}.scope\n",
        f"0::/kubepods/burstable/pod{_POD}/{_ID}\n",
        f"3:cpu,pids:/kubepods.slice/{slice_}/crio-{_ID}.scope\n",
        f"0::/system.slice/containerd.service/{slice_}:cri-containerd:{_ID}\n",
        f"0::/ecs/x/{_ID[:32]}-123456\n1:name=systemd:/machine.slice/libpod-{_ID}.scope/container\n",
        "31 23 0:28 / /sys/fs/cgroup/pids rw,nosuid shared:11 - cgroup cgroup rw,pids\n",
    ]
    return [path.encode() for path in paths]


def name_seeds() -> list[bytes]:
    """C++, Rust of both manglings, suffixes of compilers, back-references."""
    return [
        b"_ZNSt6vectorIiSaIiEE9push_backEOi\n_ZN3foo3barEv.cold\n_ZNK1AcvT_IiEEv",
        b"_RNvMs0_NtCs1234_7mycrate3fooINtB5_3BarpE3baz\n_RINvNtC3std3mem8align_ofNtC1a1bE",
        b"_ZN4core3fmt9Formatter3pad17h0123456789abcdefE\n_ZN5_$LT$impl$u20$A$GT$3run17h0123456789abcdefE",
        b"_ZN58_$LT$alloc..string..String$u20$as$u20$core..fmt..Debug$GT$3fmt17h0123456789abcdefE",
        b"_ZN1AIS0_S0_E1BIT_T0_E1CIS1_S1_E1fEv\nmain.part.0.isra.0\n__ZN1a1bEv",
    ]
