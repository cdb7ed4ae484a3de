"""Writes every generated file, or with `--check` tells which of them are out of date.

A generator is a module with `generate() -> {path: content}`; the list below is the registry.
"""

import argparse
import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATORS = (
    "tools.gen_abi",
    "tools.gen_policy_docs",
    "tools.gen_crd",
    "tools.gen_values_schema",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail on drift")
    arguments = parser.parse_args()
    stale = []
    for name in GENERATORS:
        for path, content in importlib.import_module(name).generate().items():
            if path.exists() and path.read_text() == content:
                continue
            stale.append(path.relative_to(ROOT))
            if not arguments.check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content)
    for path in stale:
        print(f"{path}: {'out of date; run `make generate`' if arguments.check else 'written'}")
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
