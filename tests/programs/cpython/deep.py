"""Recursion a hundred frames deep.

Truth: <module>@top > main@main > walk@down*99 > walk@end > burn
"""

from burning import burn, ready


def walk(n):
    if n:
        return 1 + walk(n - 1)  # @down
    return burn(40000)  # @end


def main():
    while True:
        walk(99)  # @main


ready()
main()  # @top
