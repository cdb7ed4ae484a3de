"""What is true of each truth program: how it is started and which chains it runs through.

Read beside the sources: the chain of a program is stated at the top of its file.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tests.programs.build import build, require
from tests.programs.running import Running, running, running_deleted, running_in_container
from tests.truth import HELPERS, LIBC, START, THREAD_START, Chain, Step, Truth, fn, lib

RUNTIMES_SHARE = 0.995
"""Share of right stacks for everything but C and C++, which must reach Truth's default."""


@dataclass(frozen=True)
class Case:
    """One program under one condition."""

    name: str
    start: Callable[[], AbstractContextManager[Running]]
    truth: Truth
    program: str = ""
    """Which program of `build.RECIPES`; "" = the one called `name`."""
    tools: tuple[str, ...] = ()
    """What else must be installed."""

    def prepare(self) -> None:
        """Build it.

        Raises:
            MissingToolError: this machine lacks what it needs.
        """
        for tool in self.tools:
            require(tool)
        build(self.program or self.name)


def _case(name: str, truth: Truth) -> Case:
    return Case(name, lambda: running(name), truth)


def _main(*names: str) -> Chain:
    """A chain of own functions, once each, from `main` on."""
    return Chain((*START, fn("main"), *map(fn, names)))


BASIC = Truth((Chain((*START, fn("main"), fn("recurse", 20), fn("bottom"), fn("burn"))),))
STATIC_START = (fn("_start"), Step("__libc_start*", "*", 1, 2))
STATIC = Truth((Chain((*STATIC_START, fn("main"), fn("recurse", 20), fn("bottom"), fn("burn"))),))

QSORT = Truth(
    (
        Chain(
            (
                *START,
                fn("main"),
                *(step for n in range(1, 61) for step in (lib(LIBC, 2, 4), fn(f"cmp_{n}"))),
                fn("burn"),
            )
        ),
    )
)

CPP_STEPS = (
    *START,
    fn("main"),
    fn("truth::outer*"),
    fn("lib_enter"),
    fn("truth::callback*"),
    *(fn(f"*truth::descend<{n}>*") for n in range(6, -1, -1)),
    fn("lib_leaf"),
    fn("lib_spin"),
    fn("burn*"),
)
CPP_HELPERS = (
    *HELPERS,
    Step("*", "libstdc++*|libgcc_s*|libm.so*"),
    Step("truth::Guard::~Guard*"),
)


def _landing(at: int) -> Chain:
    """libgcc about to jump from a clean-up into the caller's, `CPP_STEPS[at]`.

    It has by then written the landing pad's address over its own return address, so that the caller
    is twice on the stack, really.
    """
    steps = (*CPP_STEPS[: at + 1], CPP_STEPS[at], Step("_Unwind_Resume", "libgcc_s*"))
    return Chain(steps, len(steps), CPP_HELPERS)


CPP = Truth(
    (Chain(CPP_STEPS, helpers=CPP_HELPERS), *(_landing(at) for at in range(5, 12))), full=0.5
)

SIGNALS = Truth(
    tuple(
        Chain(
            (
                *START,
                fn("main"),
                fn("outer"),
                fn("interrupted"),
                Step("burn", "*", 0, 1),
                lib(LIBC, 1, 5),  # the signal frame, and raise below it
                fn(handler),
                fn("handler_work"),
                fn("burn"),
            )
        )
        for handler in ("on_alarm", "on_user")
    ),
    full=0.1,
)

PLUGINS = Truth(tuple(_main(f"run_{x}", f"{x}_entry", f"{x}_work", "burn") for x in "ab"))

LOADER = Chain((Step("*", "ld-linux*", 1, 40),))
EXIT = Chain((fn("_start"), lib(LIBC, 1, 8)), least=2)
KERNEL_ONLY = ("*exec*", "*exit*", "*fork*", "*mmput*")
VFORK = Truth(
    (
        _main("parent_work", "spin", "burn"),
        _main("first_work", "first_inner", "spin", "burn"),
        _main("second_work", "second_inner", "spin", "burn"),
        _main("launch"),
        LOADER,
        EXIT,
    ),
    kernel_only=KERNEL_ONLY,
)
PREFORK = Truth(
    (_main("spawn_worker", "worker_loop", "worker_task", "burn"),), kernel_only=KERNEL_ONLY
)

VDSO = Truth((Chain((*START, fn("main"), fn("vdso_loop"), lib(LIBC, 1, 1), lib("*vdso*", 1, 3))),))
SYSCALLS = Truth(
    (
        Chain((*START, fn("main"), fn("read_loop"), fn("read_zero"), lib(LIBC, 1, 2))),
        Chain((*START, fn("main"), fn("getppid_loop"), lib(LIBC, 1, 2))),
    ),
    kernel=0.5,
)
THREADS = Truth(
    (Chain((*THREAD_START, fn("thread_body"), fn("thread_step"), fn("burn")), least=2),)
)
NOCFI = Truth((_main("bare_outer", "bare_inner", "leaf_work", "burn"),))


def _deep(levels: int, *, whole: bool) -> Truth:
    steps = (*START, fn("main"), *(fn(f"level_{n}") for n in range(1, levels + 1)), fn("burn"))
    return Truth((Chain(steps, whole=whole),))


CLOSURE = Step("*{{closure}}*|*{closure#*", "*", 0, 2)
RUST = Truth(
    (
        Chain(
            (
                *START,
                fn("main"),
                Step("std::*|core::*|*FnOnce*|*lang_start*|*__rust*", "*", 1, 16),
                fn("truth_rust::main*"),
                fn("truth_rust::outer*"),
                Step("std::*|core::*|*catch_unwind*|*panicking*|__rust*", "*", 0, 6),
                fn("*truth_rust::Step*::walk*"),
                fn("truth_rust::descend*"),
                CLOSURE,
                fn("truth_rust::descend*"),
                CLOSURE,
                fn("truth_rust::descend*"),
                CLOSURE,
                Step("core::*|*Fn*call*", "*", 0, 2),
                fn("truth_rust::bottom*"),
                fn("truth_rust::burn*"),
            ),
            helpers=(
                *HELPERS,
                Step("*", "libgcc_s*"),
                Step("std::*|core::*|alloc::*|*__rust*|*rust_panic*|*panic_unwind*|*gimli*"),
            ),
        ),
    ),
    share=RUNTIMES_SHARE,
)

GO_HELPERS = (*HELPERS, Step("runtime.*|runtime/*|internal/*|sync*|gogo|gosave*"))
GO_SYSTEM = Chain(
    (Step("runtime.*|runtime/*|_rt0*|internal/*|x_cgo*|threadentry", "*", 1, 60),),
    helpers=GO_HELPERS,
)
"""The scheduler's and the collector's own stacks: no goroutine lies below them."""
GO_MAIN = (fn("runtime.goexit*"), fn("runtime.main"), fn("main.main"))
GO = Truth(
    (
        Chain(
            (
                *GO_MAIN,
                fn("main.outer"),
                fn("main.inlined"),
                fn("main.(*walker).step"),
                fn("main.descend[*"),
                fn("main.burn"),
            ),
            least=3,
            helpers=GO_HELPERS,
        ),
        Chain(
            (
                fn("runtime.goexit*"),
                Step("main.main.gowrap*", "*", 0, 1),  # the compiler's wrapper of `go worker(…)`
                fn("main.worker"),
                fn("main.work"),
                fn("main.burn"),
            ),
            least=3,
            helpers=GO_HELPERS,
        ),
        GO_SYSTEM,
    ),
    share=RUNTIMES_SHARE,
)

CGO_GLUE = "main._Cfunc_*|runtime.*|_cgo*|crosscall*|goCallback|main._cgo*|main.outer.func*"
CGO_DOWN = (
    *GO_MAIN,
    fn("main.outer"),
    Step(CGO_GLUE, "*", 1, 6),
    fn("c_outer"),
    fn("c_inner"),
)
CGO = Truth(
    (
        Chain((*CGO_DOWN, fn("c_burn")), least=3, helpers=GO_HELPERS),
        Chain(
            (*CGO_DOWN, Step(CGO_GLUE, "*", 1, 12), fn("main.goCallback"), fn("main.burn")),
            least=3,
            helpers=(*GO_HELPERS, Step(CGO_GLUE)),
        ),
        GO_SYSTEM,
        Chain((lib(LIBC, 1, 2),), helpers=(*GO_HELPERS, Step(CGO_GLUE))),
    ),
    share=RUNTIMES_SHARE,
)

NATIVE = (
    _case("qsort", QSORT),
    _case("cpp", CPP),
    _case("signals", SIGNALS),
    _case("static", STATIC),
    _case("pie", BASIC),
    _case("nopie", BASIC),
    _case("vdso", VDSO),
    _case("syscalls", SYSCALLS),
    _case("nocfi", NOCFI),
    _case("deep250", _deep(250, whole=True)),
    _case("deep500", _deep(500, whole=True)),
    _case("deep1000", _deep(1000, whole=False)),
)
PROCESSES = (
    _case("plugins", PLUGINS),
    _case("vfork", VFORK),
    _case("prefork", PREFORK),
    Case("deleted", lambda: running_deleted("pie", "deleted"), BASIC, "pie"),
    Case("container", lambda: running_in_container("pie", "container"), BASIC, "pie", ("runc",)),
)
MANY_THREADS = (_case("threads", THREADS),)
RUNTIMES = (
    _case("rust", RUST),
    _case("go_stripped", GO),
    _case("go_pie", GO),
    _case("go_cgo", CGO),
)
