"""A small shop on a cluster, as profiles: enough runtimes, pods and changes for every view to have something to show.

Written down, not drawn by lot: tests know each sum. The shape of the stacks is that of real programs.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import cast

from flameherd_agent.model import (
    FrameType,
    Line,
    Location,
    Mapping,
    Profile,
    ResourceProfiles,
    Sample,
)

HZ = 20
INTERVAL_NS = 10 * 10**9


class Kind(StrEnum):
    """Frame types of runtimes that the agent does not unwind yet; on the wire they are texts."""

    JVM = "jvm"
    CPYTHON = "cpython"


_KINDS = {
    "k": ("kernel", "[kernel.kallsyms]"),
    "g": ("go", "/srv/checkout"),
    "j": ("jvm", ""),
    "p": ("cpython", ""),
    "c": ("native", "/usr/lib/x86_64-linux-gnu/libc.so.6"),
    "v": ("native", "/usr/lib/jvm/java-21/lib/server/libjvm.so"),
    "n": ("native", "/usr/lib/postgresql/16/bin/postgres"),
    "i": ("native", "/usr/bin/python3.11"),
}
"""Letter before a name → frame type and mapping."""

# Root first; `letter:name@file:line`; then the weight in the earlier and in the later half of the time.
_CHECKOUT = """
g:runtime.goexit g:net/http.(*conn).serve@net/http/server.go:1850 g:net/http.HandlerFunc.ServeHTTP@net/http/server.go:2220 g:main.(*server).checkout@checkout/server.go:88 g:main.(*cart).total@checkout/cart.go:41 g:main.(*cart).discount@checkout/cart.go:77 | 26 9
g:runtime.goexit g:net/http.(*conn).serve g:net/http.HandlerFunc.ServeHTTP g:main.(*server).checkout g:main.(*cart).total g:main.(*cart).discount g:regexp.(*Regexp).doExecute@regexp/exec.go:527 g:regexp.(*machine).step@regexp/exec.go:250 | 4 38
g:runtime.goexit g:net/http.(*conn).serve g:net/http.HandlerFunc.ServeHTTP g:main.(*server).checkout g:encoding/json.(*Decoder).Decode@encoding/json/stream.go:49 g:encoding/json.(*decodeState).object@encoding/json/decode.go:600 g:encoding/json.(*decodeState).value@encoding/json/decode.go:351 g:encoding/json.(*decodeState).object g:encoding/json.unquoteBytes@encoding/json/decode.go:1150 | 17 16
g:runtime.goexit g:net/http.(*conn).serve g:net/http.HandlerFunc.ServeHTTP g:main.(*server).checkout g:encoding/json.(*Decoder).Decode g:encoding/json.(*decodeState).object g:runtime.mallocgc@runtime/malloc.go:1010 g:runtime.(*mcache).nextFree@runtime/malloc.go:920 | 9 10
g:runtime.goexit g:net/http.(*conn).serve g:net/http.HandlerFunc.ServeHTTP g:main.(*server).checkout g:main.(*payments).charge@checkout/payments.go:30 g:net/http.(*Client).do@net/http/client.go:590 g:crypto/tls.(*Conn).Write@crypto/tls/conn.go:1170 g:crypto/internal/fips140/aes/gcm.gcmAesEnc | 12 12
g:runtime.goexit g:net/http.(*conn).serve g:net/http.HandlerFunc.ServeHTTP g:main.(*server).checkout g:main.(*payments).charge g:net/http.(*Client).do g:crypto/tls.(*Conn).Write g:internal/poll.(*FD).Write g:syscall.Syscall k:entry_SYSCALL_64_after_hwframe k:do_syscall_64 k:__x64_sys_write k:vfs_write k:sock_write_iter k:tcp_sendmsg k:tcp_sendmsg_locked k:tcp_push k:__tcp_transmit_skb k:ip_queue_xmit k:nf_hook_slow | 8 9
g:runtime.goexit g:net/http.(*conn).serve g:bufio.(*Reader).ReadLine g:internal/poll.(*FD).Read g:syscall.Syscall k:entry_SYSCALL_64_after_hwframe k:do_syscall_64 k:__x64_sys_read k:vfs_read k:sock_read_iter k:tcp_recvmsg | 7 7
g:runtime.goexit g:runtime.gcBgMarkWorker@runtime/mgc.go:1420 g:runtime.systemstack g:runtime.gcDrain@runtime/mgcmark.go:1160 g:runtime.scanobject@runtime/mgcmark.go:1440 | 15 14
g:runtime.goexit g:runtime.gcBgMarkWorker g:runtime.systemstack g:runtime.gcDrain g:runtime.greyobject@runtime/mgcmark.go:1640 | 5 5
g:runtime.mstart g:runtime.schedule@runtime/proc.go:3980 g:runtime.findRunnable@runtime/proc.go:3300 g:runtime.netpoll g:runtime.epollwait k:entry_SYSCALL_64_after_hwframe k:do_syscall_64 k:do_epoll_wait | 6 6
"""
_PAYMENTS = """
c:start_thread v:JavaThread::thread_main_inner v:JavaCalls::call_helper j:java.lang.Thread.run@Thread.java:1583 j:org.apache.tomcat.util.net.NioEndpoint$SocketProcessor.doRun@NioEndpoint.java:1790 j:shop.payments.ChargeController.charge@ChargeController.java:44 j:shop.payments.Ledger.post@Ledger.java:120 j:java.util.HashMap.putVal@HashMap.java:630 | 14 13
c:start_thread v:JavaThread::thread_main_inner v:JavaCalls::call_helper j:java.lang.Thread.run j:org.apache.tomcat.util.net.NioEndpoint$SocketProcessor.doRun j:shop.payments.ChargeController.charge j:shop.payments.Ledger.post j:java.math.BigDecimal.divide@BigDecimal.java:1700 j:java.math.MutableBigInteger.divideKnuth@MutableBigInteger.java:1210 | 21 12
c:start_thread v:JavaThread::thread_main_inner v:JavaCalls::call_helper j:java.lang.Thread.run j:org.apache.tomcat.util.net.NioEndpoint$SocketProcessor.doRun j:shop.payments.ChargeController.charge j:com.fasterxml.jackson.databind.ObjectMapper.readValue@ObjectMapper.java:3900 j:com.fasterxml.jackson.core.json.UTF8StreamJsonParser.nextToken@UTF8StreamJsonParser.java:750 | 16 15
c:start_thread v:GangWorker::loop v:G1ParTask::work v:G1ParScanThreadState::trim_queue v:G1ParScanThreadState::copy_to_survivor_space c:__memmove_avx512_unaligned_erms | 9 17
c:start_thread v:CompileBroker::compiler_thread_loop v:C2Compiler::compile_method v:PhaseIdealLoop::build_and_optimize | 7 2
"""
_SUGGEST = """
i:_start c:__libc_start_main i:Py_RunMain p:<module>@/srv/suggest/main.py:1 p:serve@/srv/suggest/main.py:31 p:rank@/srv/suggest/rank.py:12 p:score@/srv/suggest/rank.py:48 p:dot@/usr/lib/python3/dist-packages/numpy/core/multiarray.py:736 | 19 19
i:_start c:__libc_start_main i:Py_RunMain p:<module> p:serve p:rank p:features@/srv/suggest/rank.py:77 p:loads@/usr/lib/python3.11/json/__init__.py:299 p:raw_decode@/usr/lib/python3.11/json/decoder.py:343 | 12 13
i:_start c:__libc_start_main i:Py_RunMain p:<module> p:serve p:rank p:features p:<listcomp>@/srv/suggest/rank.py:80 i:_PyEval_EvalFrameDefault | 8 8
i:_start c:__libc_start_main i:Py_RunMain i:gc_collect_main | 4 4
"""
_DATABASE = """
n:_start n:main n:PostmasterMain n:ServerLoop n:BackendMain n:PostgresMain@postgres.c:4200 n:exec_simple_query@postgres.c:1030 n:PortalRun n:ExecutorRun n:ExecSeqScan@nodeSeqscan.c:110 n:heap_getnextslot@heapam.c:1380 n:heapgettup_pagemode@heapam.c:980 | 10 11
n:_start n:main n:PostmasterMain n:ServerLoop n:BackendMain n:PostgresMain n:exec_simple_query n:PortalRun n:ExecutorRun n:ExecHashJoin@nodeHashjoin.c:690 n:hash_any@hashfn.c:150 | 9 8
n:_start n:main n:PostmasterMain n:ServerLoop n:BackendMain n:PostgresMain n:exec_simple_query n:PortalRun n:ExecutorRun n:ExecSeqScan n:heap_getnextslot n:ReadBufferExtended n:FileRead c:__pread64 k:entry_SYSCALL_64_after_hwframe k:do_syscall_64 k:__x64_sys_pread64 k:vfs_read k:ext4_file_read_iter k:filemap_read k:copy_page_to_iter | 8 8
n:_start n:main n:PostmasterMain n:ServerLoop n:WalWriterMain n:XLogBackgroundFlush k:entry_SYSCALL_64_after_hwframe k:do_syscall_64 k:__x64_sys_fdatasync k:ext4_sync_file | 5 5
n:_start n:main n:PostmasterMain n:ServerLoop n:0x4a10 | 2 2
"""
_LOCKS = """
g:runtime.goexit g:net/http.(*conn).serve g:net/http.HandlerFunc.ServeHTTP g:main.(*server).checkout g:sync.(*Mutex).lockSlow@sync/mutex.go:170 | 30 50
g:runtime.goexit g:net/http.(*conn).serve g:net/http.HandlerFunc.ServeHTTP g:main.(*server).checkout g:main.(*cart).total g:sync.(*RWMutex).RLock@sync/rwmutex.go:60 | 5 5
"""

_WORKLOADS = (
    ("shop", "checkout", "server", "node-1", 2, _CHECKOUT),
    ("shop", "suggest", "model", "node-2", 1, _SUGGEST),
    ("payments", "ledger", "app", "node-2", 2, _PAYMENTS),
    ("data", "postgres", "postgres", "node-3", 1, _DATABASE),
)
"""Namespace, workload, container, node, pods, stacks."""

Weighted = tuple[tuple[Location, ...], tuple[int, int]]


def _location(text: str, known: dict[str, Location]) -> Location:
    letter, _, rest = text.partition(":")
    name, _, source = rest.partition("@")
    found = known.get(letter + name)
    if found is None:
        kind, path = _KINDS[letter]
        file, _, line = source.rpartition(":")
        lines = () if name.startswith("0x") else (Line(name, "", file, int(line or 0)),)
        frame_type = cast("FrameType", Kind(kind)) if kind in list(Kind) else FrameType(kind)
        mapping = Mapping(path, gnu_build_id=path.encode().hex()[:40]) if path else None
        address = int(name, 16) if name.startswith("0x") else 0x1000 + 16 * len(known)
        found = known[letter + name] = Location(frame_type, address, mapping, lines)
    return found


def stacks(text: str) -> Iterator[Weighted]:
    """Leaf first, with the weights of the earlier and the later half."""
    known: dict[str, Location] = {}
    for line in text.strip().splitlines():
        frames, _, weights = line.partition("|")
        before, after = map(int, weights.split())
        stack = tuple(_location(word, known) for word in frames.split())
        yield tuple(reversed(stack)), (before, after)


def profiles(end_ns: int, minutes: int = 12) -> list[ResourceProfiles]:
    """One profile a pod each ten seconds; CPU time of everyone, lock waits of checkout.

    The load swings by 40 % over four minutes; the later half of the time has other weights.
    """
    steps = minutes * 6
    found = []
    for namespace, workload, container, node, pods, text in _WORKLOADS:
        cpu = list(stacks(text))
        locks = list(stacks(_LOCKS)) if workload == "checkout" else []
        for pod in range(pods):
            name = f"{workload}-6c9f7d{pod}"
            attributes = (
                ("host.name", node),
                ("k8s.container.name", container),
                ("k8s.deployment.name", workload),
                ("k8s.namespace.name", namespace),
                ("k8s.node.name", node),
                ("k8s.pod.name", name),
                ("service.name", workload),
            )
            taken = []
            for step in range(steps):
                start_ns = end_ns - (steps - step) * INTERVAL_NS
                load = 10 + 4 * abs(step % 24 - 12) // 12 + pod
                late = int(step >= steps // 2)
                taken.append(_profile(cpu, late, load, start_ns, workload))
                if locks:
                    taken.append(_waits(locks, late, load, start_ns, workload))
            found.append(ResourceProfiles(attributes, taken, f"{namespace}/cpu"))
    return found


def _own(workload: str) -> tuple[tuple[str, str | int], ...]:
    return (("process.executable.name", workload), ("process.pid", 1), ("thread.name", workload))


def _profile(
    cpu: Sequence[Weighted], late: int, load: int, start_ns: int, workload: str
) -> Profile:
    samples = [
        Sample(stack, _own(workload), max(1, weights[late] * load // 10)) for stack, weights in cpu
    ]
    return Profile(samples, 10**9 // HZ, start_ns, INTERVAL_NS)


def _waits(
    locks: Sequence[Weighted], late: int, load: int, start_ns: int, workload: str
) -> Profile:
    samples = [
        Sample(stack, _own(workload), weights[late] * load * 1_000_000) for stack, weights in locks
    ]
    return Profile(
        samples, 0, start_ns, INTERVAL_NS, "lock_wait", "nanoseconds", "lock_wait", "nanoseconds"
    )


def deep(end_ns: int, nodes: int) -> list[ResourceProfiles]:
    """A profile whose flame graph has at least so many nodes: a tree of four calls each, all of them taken."""
    known: dict[str, Location] = {}
    names = [f"c:function_{level}_{call}" for level in range(9) for call in range(4)]
    locations = [_location(name, known) for name in names]
    samples = []
    paths: list[tuple[Location, ...]] = [()]
    made = 0
    for level in range(9):
        paths = [(locations[4 * level + call], *path) for path in paths for call in range(4)]
        for number, path in enumerate(paths):
            samples.append(Sample(path, _own("big"), 1 + number % 7))
            made += 1
            if made >= nodes:
                break
        if made >= nodes:
            break
    return [
        ResourceProfiles(
            (("host.name", "node-9"), ("service.name", "big")),
            [Profile(samples, 10**9 // HZ, end_ns - INTERVAL_NS, INTERVAL_NS)],
            "big",
        )
    ]
