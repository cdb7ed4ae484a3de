"""Profiles that the tests of writers and exporters send around."""

from flameherd_agent.model import (
    FrameType,
    Line,
    Location,
    Mapping,
    Profile,
    ResourceProfiles,
    Sample,
)

HOSTILE = 'evil;"><script>alert(1)</script>\n]]>&\x00\ud800\u2028é'
"""A function name that tries every writer's escaping."""

START_NS = 1_790_000_000_000_000_000

APP = Mapping("/usr/bin/app", gnu_build_id="0a" * 20, htlhash="ab" * 16)
GO_APP = Mapping("/usr/bin/goapp", go_build_id="go/build/id", htlhash="cd" * 16)
KERNEL = Mapping("[kernel.kallsyms]")

WORK = Location(FrameType.NATIVE, 0x1234, APP, (Line("work", "_Z4workv", "/src/app.cc", 12),))
INLINED = Location(
    FrameType.NATIVE,
    0x2000,
    APP,
    (Line("inner", "", "/src/app.h", 3), Line("outer", "", "/src/app.cc", 40)),
)
UNNAMED = Location(FrameType.NATIVE, 0x3000, APP)
MAIN = Location(FrameType.NATIVE, 0x4000, APP, (Line("main"),))
SYSCALL = Location(FrameType.KERNEL, 0xFFFFFFFF81000010, KERNEL, (Line("do_syscall_64"),))
GO_MAIN = Location(FrameType.GO, 0x450000, GO_APP, (Line("main.main", "", "/go/main.go", 9),))
NASTY = Location(FrameType.NATIVE, 0x5000, APP, (Line(HOSTILE),))


def thread(pid: int, tid: int, name: str) -> tuple[tuple[str, str | int], ...]:
    return (
        ("process.executable.name", "app"),
        ("process.pid", pid),
        ("thread.id", tid),
        ("thread.name", name),
    )


def resources() -> list[ResourceProfiles]:
    """Two resources, 19 and 97 Hz, with every kind of frame."""
    container = ResourceProfiles(
        (("container.id", "c" * 64), ("host.name", "node-1"), ("service.name", "shop")),
        [
            Profile(
                [
                    Sample((WORK, INLINED, UNNAMED, MAIN), thread(10, 10, "main"), 3),
                    Sample((SYSCALL, WORK, MAIN), thread(10, 11, "io"), 2),
                    Sample((WORK, MAIN), thread(10, 11, "io"), 1, truncated=True),
                    Sample((WORK, INLINED, UNNAMED, MAIN), thread(10, 11, "io"), 5),
                ],
                period_ns=round(1e9 / 19),
                time_unix_ns=START_NS,
                duration_ns=10_000_000_000,
                comments=["first"],
            )
        ],
        policy="shop/cpu",
    )
    process = ResourceProfiles(
        (("process.executable.name", "goapp"), ("service.name", "unknown_service")),
        [
            Profile(
                [
                    Sample((GO_MAIN,), thread(20, 20, "goapp"), 7),
                    Sample((NASTY, MAIN), thread(20, 21, "ü\ud800"), 1),
                ],
                period_ns=round(1e9 / 97),
                time_unix_ns=START_NS + 5,
                duration_ns=10_000_000_000,
            )
        ],
        policy="host",
    )
    return [container, process]


def numbered(number: int, samples: int = 1) -> list[ResourceProfiles]:
    """One resource that is told apart from others by `number`, with `samples` distinct stacks."""
    stacks = [
        Sample(
            (Location(FrameType.NATIVE, n, APP, (Line(f"function_number_{n}"),)), MAIN),
            thread(1, 1, "t"),
            1,
        )
        for n in range(samples)
    ]
    attributes = (("service.instance.id", str(number)),)
    return [ResourceProfiles(attributes, [Profile(stacks, 10_000_000, START_NS + number, 1)])]
