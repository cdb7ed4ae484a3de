"""Generates `agent/flameherd_agent/kernel/abi.py` from `bpf/abi.h`.

The header is compiled with `gcc -g`, so that the compiler itself lays the structs out; the DWARF is read with
pyelftools and written as numpy dtypes and IntEnums. The counters' help texts come from the X-macro lists, which
the preprocessor is asked for. Nothing is parsed out of C by hand.
"""

import re
import subprocess
import tempfile
from pathlib import Path

from elftools.dwarf.die import DIE
from elftools.elf.elffile import ELFFile

ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "bpf" / "abi.h"
TARGET = ROOT / "agent" / "flameherd_agent" / "kernel" / "abi.py"

PREAMBLE = '''"""What crosses the border to the kernel side. Generated from `bpf/abi.h` by `make generate`: do not edit.

Struct dtypes are aligned as the C compiler laid them out; enums carry the header's names without their prefix.
"""

from enum import IntEnum
from typing import Final

import numpy as np

'''


def camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.removeprefix("fh_").split("_"))


def compile_header(directory: Path) -> Path:
    """An object file whose DWARF describes every struct and enum of the header."""
    source = directory / "abi.c"
    text = HEADER.read_text()
    structs = re.findall(r"^struct (fh_\w+) \{", text, re.M)
    enums = re.findall(r"^enum (fh_\w+) \{", text, re.M)
    uses = [f"struct {name} use_{name};" for name in structs]
    uses += [f"enum {name} use_{name};" for name in enums]
    source.write_text(f'#include "{HEADER}"\n' + "\n".join(uses) + "\n")
    output = directory / "abi.o"
    subprocess.run(
        ["gcc", "-g", "-gdwarf-4", "-c", "-DFLAMEHERD_HOST", str(source), "-o", str(output)],
        check=True,
    )
    return output


def macro_help(macro: str) -> dict[str, str]:
    """{name: help} of an X-macro list, by the preprocessor."""
    probe = f'#include "{HEADER}"\n#define X(name, help) @@ name help\n{macro}(X)\n'
    text = subprocess.run(
        ["gcc", "-E", "-P", "-DFLAMEHERD_HOST", "-x", "c", "-"],
        input=probe,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    entries = re.findall(r'@@\s+(\w+)\s+((?:"[^"]*"\s*)+)', text)
    return {name: "".join(re.findall(r'"([^"]*)"', quoted)) for name, quoted in entries}


def type_of(die: DIE) -> DIE:
    return die.get_DIE_from_attribute("DW_AT_type")


def name_of(die: DIE) -> str:
    return str(die.attributes["DW_AT_name"].value.decode())


def format_of(die: DIE) -> str:
    """The numpy format of a member's type, as source text."""
    if die.tag == "DW_TAG_typedef":
        return format_of(type_of(die))
    if die.tag == "DW_TAG_base_type":
        size = die.attributes["DW_AT_byte_size"].value
        encoding = die.attributes["DW_AT_encoding"].value
        return f'"<{"i" if encoding in (5, 13) else "u"}{size}"'
    if die.tag == "DW_TAG_structure_type":
        return camel(name_of(die))
    if die.tag == "DW_TAG_array_type":
        element = type_of(die)
        count = next(
            child.attributes["DW_AT_upper_bound"].value + 1
            for child in die.iter_children()
            if child.tag == "DW_TAG_subrange_type"
        )
        if element.tag == "DW_TAG_base_type" and name_of(element) == "char":
            return f'"S{count}"'
        return f"({format_of(element)}, ({count},))"
    raise TypeError(f"{HEADER}: {die.tag} has no numpy format")


def render() -> str:
    helps = {"outcome": macro_help("FH_OUTCOMES"), "counter": macro_help("FH_COUNTERS")}
    with tempfile.TemporaryDirectory() as scratch:
        elf = ELFFile.load_from_path(str(compile_header(Path(scratch))))
        top = next(elf.get_dwarf_info().iter_CUs()).get_top_DIE()
        dies = [die for die in top.iter_children() if "DW_AT_name" in die.attributes]
        out = [PREAMBLE]
        for die in dies:
            if die.tag == "DW_TAG_enumeration_type" and name_of(die).startswith("fh_"):
                out.append(render_enum(die))
        for die in dies:
            if die.tag == "DW_TAG_structure_type" and name_of(die).startswith("fh_"):
                out.append(render_struct(die))
        elf.close()
    for enum, texts in helps.items():
        out.append(f"{enum.upper()}_HELP: Final = {{\n")
        out += [f'    {camel(enum)}.{name}: "{text}",\n' for name, text in texts.items()]
        out.append("}\n")
    return "".join(out)


def render_enum(die: DIE) -> str:
    name = name_of(die)
    prefix = {"fh_limit": "FH_"}.get(name)
    members = [
        (name_of(child), child.attributes["DW_AT_const_value"].value)
        for child in die.iter_children()
    ]
    if prefix is None:
        first = members[0][0]
        prefix = (
            name.removesuffix("_kind").removesuffix("_type").removesuffix("_flag").upper() + "_"
        )
        if not first.startswith(prefix):
            raise ValueError(f"{HEADER}: enumerators of {name} should start with {prefix}")
    lines = [f"class {camel(name)}(IntEnum):\n"]
    for member, value in members:
        short = member.removeprefix(prefix)
        if short in ("COUNT", "FIRST"):
            continue
        lines.append(f"    {short} = {value}\n")
    return "".join(lines) + "\n\n"


def render_struct(die: DIE) -> str:
    members = [child for child in die.iter_children() if child.tag == "DW_TAG_member"]
    names = ", ".join(f'"{name_of(child)}"' for child in members)
    formats = ", ".join(format_of(type_of(child)) for child in members)
    offsets = ", ".join(
        str(child.attributes["DW_AT_data_member_location"].value) for child in members
    )
    size = die.attributes["DW_AT_byte_size"].value
    return (
        f"{camel(name_of(die))}: Final = np.dtype(\n    {{\n"
        f'        "names": [{names}],\n        "formats": [{formats}],\n'
        f'        "offsets": [{offsets}],\n        "itemsize": {size},\n    }}\n)\n\n'
    )


def generate() -> dict[Path, str]:
    """{file: content} of what this generator makes."""
    return {TARGET: render()}
