"""Three threads besides the main one, in functions of their own.

Truth: <module>@top > main@main > burn
Truth: ... > Worker.run@run > first@first > burn
Truth: ... > second@second > burn
Truth: ... > second@third > third@end > burn
"""

import threading

from burning import burn, ready


def first():
    while True:
        burn()  # @first


def third():
    burn()  # @end


def second(deeper):
    while True:
        if deeper:
            third()  # @third
        else:
            burn()  # @second


class Worker(threading.Thread):
    def run(self):
        first()  # @run


def main():
    Worker(daemon=True).start()
    threading.Thread(target=second, args=(False,), daemon=True).start()
    threading.Thread(target=second, args=(True,), daemon=True).start()
    ready()
    while True:
        burn()  # @main


main()  # @top
