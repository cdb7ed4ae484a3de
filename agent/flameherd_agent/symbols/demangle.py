"""Names as a programmer wrote them: C++ (Itanium ABI), Rust v0 and Rust legacy.

LLVM's demanglers do C++ and Rust v0. They are C++ code that reads hostile names, so this runs in
the worker only, on names of at most `MAX_MANGLED_CHARACTERS` and `MAX_REFERENCES`: each reference
back may double the result, so that 500 characters can ask for more memory than there is.

Rust legacy names are valid C++ names whose last component is `h` and 16 hexadecimal digits, with
punctuation written as `$LT$`, `..` and the like (rustc's legacy mangling).

Compilers' suffixes (`.cold`, `.part.0`, `.constprop.1`, `.isra.0`, `.llvm.123`) mark pieces and
clones of one function and are dropped here; the symbol's own name keeps them."""

import re

MAX_MANGLED_CHARACTERS = 4096
"""Longer names stay mangled."""
MAX_REFERENCES = 40
"""Names with more stay mangled. The most in 150,000 names of LLVM, clang and node are 40; the worst
that can be made of so many has 13 MB."""
MAX_CHARACTERS = 1024
"""A longer result is cut and ends in an ellipsis."""

_SUFFIX = re.compile(
    r"(?:\.(?:cold|part|constprop|isra|lto_priv|llvm|clone|localalias|warm|hot|ipa-ra)(?:\.\d+)*)+$"
)
_REFERENCE = re.compile("[ST][0-9A-Z]*_|B[0-9A-Za-z]*_")
_RUST_LEGACY_HASH = re.compile(r"::h[0-9a-f]{16}$")
_RUST_ESCAPE = re.compile(r"\$(SP|BP|RF|LT|GT|LP|RP|C|u[0-9a-f]{1,6})\$|\.\.")
_RUST_PUNCTUATION = {
    "SP": "@",
    "BP": "*",
    "RF": "&",
    "LT": "<",
    "GT": ">",
    "LP": "(",
    "RP": ")",
    "C": ",",
}


def demangle(name: str) -> str:
    """The readable form of a symbol's name; the name itself where it is not mangled or
    malformed."""
    plain = _SUFFIX.sub("", name) if "." in name else name
    if name.startswith(("_Z", "_R", "__Z", "__R")) and len(name) <= MAX_MANGLED_CHARACTERS:
        plain = _demangle(plain) or plain
    if len(plain) > MAX_CHARACTERS:
        return plain[: MAX_CHARACTERS - 1] + "…"
    return plain or name


def _demangle(name: str) -> str | None:
    import pycxxfilt

    if len(_REFERENCE.findall(name)) > MAX_REFERENCES:
        return None
    try:
        plain: str | None = pycxxfilt.demangle(name)
    except ValueError:  # the prefix of a mangled name, but not one
        return None
    if plain is None:
        return None
    match = _RUST_LEGACY_HASH.search(plain)
    if match is None:
        return plain
    path = plain[: match.start()]
    # a component cannot start with `$` or `.`: rustc puts `_` before
    components = [c[1:] if c.startswith(("_$", "_.")) else c for c in path.split("::")]
    return "::".join(_RUST_ESCAPE.sub(_unescape, component) for component in components)


def _unescape(match: re.Match[str]) -> str:
    code = match.group(1)
    if code is None:
        return "::"
    if code in _RUST_PUNCTUATION:
        return _RUST_PUNCTUATION[code]
    value = int(code[1:], 16)
    return chr(value) if 0x20 <= value < 0xD800 or 0xE000 <= value < 0x110000 else match.group(0)
