"""A module that comes into being while the program runs; its functions are made anew again and again.

Truth: <module>@top > main@main > made_1 > burn
Truth: <module>@top > main@main > made_2 > burn
Truth: <module>@top > main@main > Made.method > burn
Truth: <module>@top > main@load > load > ~<module> > ~Made
"""

import time

from burning import burn, ready

SOURCE = """
def made_1(burn):
    return burn()

def made_2(burn):
    for _ in range(2):
        burn()

class Made:
    def method(self, burn):
        return burn()
"""


def load():
    names = {}
    exec(compile(SOURCE, "made.py", "exec"), names)
    return [names["made_1"], names["made_2"], names["Made"]().method]


def main():
    functions = load()
    reload_at = time.time() + 1
    while True:
        for function in functions:
            function(burn)  # @main
        if time.time() > reload_at:
            reload_at = time.time() + 1
            functions = load()  # @load


ready()
main()  # @top
