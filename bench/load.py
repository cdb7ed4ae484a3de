"""Eight programs that keep a machine busy: native code, interpreters, system calls."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.programs.build import MissingToolError
from tests.programs.running import Running, running

PROGRAMS = 8
NATIVE = ("qsort", "cpp", "rust", "go_stripped")
"""The slot `native`: programs that stay in user space, in code with unwind tables."""
SPARE = ("static", "nopie", "pie", "threads")
"""Take the places of programs that this machine has no compiler or interpreter for."""
PYTHON = """
def leaf(n):
    return sum(i * i for i in range(n))
def middle(n):
    return leaf(n) + leaf(n // 2)
print("ready", flush=True)
while True:
    middle(2000)
"""
NODE = """
function leaf(n) { let s = 0; for (let i = 0; i < n; i++) s += i % 7; return s; }
function middle(n) { return [n, n / 2].map(leaf).concat(JSON.parse("[1, 2, 3]")).sort(); }
console.log("ready");
for (;;) middle(20000);
"""
JAVA = """
public class Hog {
    static long leaf(int n) { long s = 0; for (int i = 0; i < n; i++) s += i % 7; return s; }
    static String middle(int n) { return Long.toString(leaf(n) + leaf(n / 2)); }
    public static void main(String[] arguments) {
        System.out.println("ready");
        for (long total = 0;; ) total += middle(20000).hashCode();
    }
}
"""


def _interpreters(folder: Path) -> Iterator[tuple[str, Path, list[str]]]:
    """(name, executable, arguments) of the interpreters that are installed."""
    yield "python3", Path(sys.executable), ["-c", PYTHON]
    if node := shutil.which("node"):
        yield "node", Path(node), ["-e", NODE]
    if java := shutil.which("java"):
        source = folder / "Hog.java"
        source.write_text(JAVA)
        yield "java", Path(java), ["-Xmx64m", str(source)]


@contextmanager
def busy_programs(folder: Path) -> Iterator[list[Running]]:
    """`PROGRAMS` of them, each ready and busy; all are gone afterwards."""
    with ExitStack() as stack:
        programs: list[Running] = []
        for name, executable, arguments in _interpreters(folder):
            context = running(name, *arguments, executable=executable)
            try:
                programs.append(stack.enter_context(context))
            except RuntimeError as error:  # java without a compiler, a node of another kind
                print(f"{name} is left out: {error}", file=sys.stderr)
        for name in (*NATIVE, "syscalls", *SPARE):
            if len(programs) == PROGRAMS:
                break
            try:
                programs.append(stack.enter_context(running(name)))
            except MissingToolError as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
        yield programs
