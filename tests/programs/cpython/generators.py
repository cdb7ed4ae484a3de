"""Generators within generators, a comprehension, and coroutines under asyncio's loop.

Truth: <module>@top > main@for > ?outer@from > ?inner@yield > burn
Truth: <module>@top > main@sum > ~main.<locals>.<genexpr>@expression > burn
Truth: <module>@top > main@run > ... > ~start@start > ?middle@middle > ?last@last > burn
Truth: <module>@top > main@run > ... > ~start@start > ?middle@middle > ?last@sleep > ...
Truth: <module>@top > main@run > start
"""

import asyncio

from burning import burn, ready


def inner():
    for _ in range(3):
        yield burn()  # @yield


def outer():
    yield from inner()  # @from


async def last():
    await asyncio.sleep(0)  # @sleep
    burn()  # @last


async def middle():
    await last()  # @middle


async def start():
    await middle()  # @start


def main():
    loop = asyncio.new_event_loop()
    while True:
        for _ in outer():  # @for
            pass
        sum(burn() for _ in range(3))  # @sum,expression
        loop.run_until_complete(start())  # @run


ready()
main()  # @top
