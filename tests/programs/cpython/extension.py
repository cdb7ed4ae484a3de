"""C extensions at the leaf: one that gives up the interpreter's lock while it works, one that keeps it.

Truth: <module>@top > main@main > pack@pack > ~
Truth: <module>@top > main@main > count@count > ~
"""

import zlib

from burning import ready

DATA = bytes(range(256)) * 256


def pack():
    return len(zlib.compress(DATA, 9))  # @pack


def count():
    return sum(sorted(range(3000), reverse=True))  # @count


def main():
    while True:
        pack(), count()  # @main


ready()
main()  # @top
