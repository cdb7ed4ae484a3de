"""The commands of README's Kubernetes section, as they stand there: tests run these, and no others."""

import re
import shlex
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
HEADING = "## In a Kubernetes cluster"


def commands() -> list[list[str]]:
    """Each command's words, in order."""
    section = README.read_text().partition(f"\n{HEADING}\n")[2].partition("\n## ")[0]
    (block,) = re.findall(r"^```sh\n(.*?)^```$", section, re.M | re.S)
    found = [shlex.split(line, comments=True) for line in block.splitlines()]
    return [words for words in found if words]
