"""Exceptions through ten frames; work while one is handled, and in `finally` while one passes.

Truth: <module>@top > main@catch > work > burn
Truth: <module>@top > main@main > fall@fall*9 > fall@lowest > burn
Truth: <module>@top > main@main > fall@fall*9 > fall@late > burn
"""

from burning import burn, ready


def fall(n):
    if n:
        return fall(n - 1)  # @fall
    try:
        burn()  # @lowest
        raise ValueError(n)
    finally:
        burn()  # @late


def work():
    burn()


def main():
    while True:
        try:
            fall(9)  # @main
        except ValueError:
            work()  # @catch


ready()
main()  # @top
