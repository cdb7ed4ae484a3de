"""Demangling: C++, Rust v0, Rust legacy, compilers' suffixes, hostile names."""

import subprocess

import pytest
from flameherd_agent.symbols.demangle import MAX_CHARACTERS, demangle
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("main", "main"),
        ("", ""),
        ("_ZN3foo3barEv", "foo::bar()"),
        ("_ZN3foo3barEv.part.0.constprop.1", "foo::bar()"),
        ("_ZN3foo3barEv.cold", "foo::bar()"),
        ("work.isra.0", "work"),
        ("work.llvm.1234567890", "work"),
        (".cold", ".cold"),
        ("lib.so.version", "lib.so.version"),
        ("_Zbad", "_Zbad"),
        ("_RNvCskwGfYPst2Cb_3foo16example_function", "foo::example_function"),
        ("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE", "core::fmt::Write::write_fmt"),
        (
            "_ZN4core3ptr85drop_in_place$LT$std..rt..lang_start$LT$$LP$$RP$$GT$..$u7b$$u7b$closure$u7d$$u7d$$GT$17h0123456789abcdefE",
            "core::ptr::drop_in_place<std::rt::lang_start<()>::{{closure}}>",
        ),
        (
            "_ZN58_$LT$alloc..string..String$u20$as$u20$core..fmt..Debug$GT$3fmt17h0123456789abcdefE",
            "<alloc::string::String as core::fmt::Debug>::fmt",
        ),
        ("_ZN3foo17h0123456789abcdegE", "foo::h0123456789abcdeg"),
    ],
)
def test_names(name: str, plain: str) -> None:
    assert demangle(name) == plain


def test_equals_cxxfilt_on_the_standard_library() -> None:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", "/usr/lib/x86_64-linux-gnu/libstdc++.so.6"],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    names = [line.split()[2].split("@")[0] for line in listing.splitlines() if " T _ZN" in line]
    theirs = subprocess.run(
        ["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()
    # The two print template arguments, literals and constructors' abbreviations differently:
    # compare the name up to its parameters and template arguments.
    ours = [demangle(name) for name in names]
    same = sum(a.split("(")[0].split("<")[0] == b.split("(")[0].split("<")[0]
               for a, b in zip(ours, theirs, strict=True))  # fmt: skip
    assert len(names) > 1000
    assert same > 0.97 * len(names)


def test_long_results_are_cut() -> None:
    plain = demangle("_Z1f" + "N3aaaE" * 600)
    assert len(plain) <= max(MAX_CHARACTERS, 4096)
    cut = demangle("x" * 5000)
    assert len(cut) == MAX_CHARACTERS
    assert cut.endswith("…")


@given(st.text(max_size=200), st.sampled_from(["", "_Z", "_R", "_ZN", "_ZN3foo17h", "_RNv"]))
def test_hostile_names_never_crash(name: str, prefix: str) -> None:
    assert isinstance(demangle(prefix + name), str)


def test_references_that_double_the_name_are_not_followed() -> None:
    """`B<X, X>` of `B<X, X>` of …: 400 characters would ask for terabytes and end the worker."""

    def nested(levels: int) -> str:
        digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"

        def base36(number: int) -> str:
            return ("" if number < 36 else base36(number // 36)) + digits[number % 36]

        return "_Z1f1A1BIS_S_E" + "".join(
            f"1BIS{base36(at)}_S{base36(at)}_E" for at in range(1, 2 * levels, 2)
        )

    assert demangle(nested(1)).startswith("f(A, B<A, A>, B<B<A, A>, B<A, A>>")
    assert demangle(nested(19)) != nested(19)
    for levels in (20, 60):
        assert demangle(nested(levels)) == nested(levels)
