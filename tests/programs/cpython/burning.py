"""What every truth program here ends in: work in one function, and the way to say that it begins.

How to read the `Truth:` lines of the programs: one right answer each, root first. `name@tag` is a frame of that
function, stopped at the line that ends in `# @tag`; `*n`: n times in a row; `~` before it: it was called by native code, which
lies between; `?`: it may be, by the version; `...`: frames of the standard library. The last function may be anywhere in its lines, and any
beginning of the chain is right as well, its last frame anywhere.
"""

import sys


def burn(n=4000):
    x = 0
    for i in range(n):
        x += i * i % 7
    return x


def ready():
    sys.stdout.write("ready\n")
    sys.stdout.flush()
