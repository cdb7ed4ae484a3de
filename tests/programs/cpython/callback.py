"""Native code calls back, three times on one stack: list.sort, libc's qsort through ctypes, functools.reduce.

Truth: <module>@top > main@main > ~key@key > ~compare@compare > ~add@add > burn
"""

import ctypes
import functools

from burning import burn, ready

INT_POINTER = ctypes.POINTER(ctypes.c_int)
COMPARE = ctypes.CFUNCTYPE(ctypes.c_int, INT_POINTER, INT_POINTER)
libc = ctypes.CDLL(None)


def add(a, b):
    return a + b + burn() % 2  # @add


@COMPARE
def compare(a, b):
    functools.reduce(add, [1, 2, 3])  # @compare
    return a[0] - b[0]


def key(x):
    numbers = (ctypes.c_int * 3)(3, 1, 2)
    libc.qsort(numbers, 3, ctypes.sizeof(ctypes.c_int), compare)  # @key
    return x


def main():
    while True:
        sorted([3, 1, 2], key=key)  # @main


ready()
main()  # @top
