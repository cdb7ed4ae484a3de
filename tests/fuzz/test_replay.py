"""What fuzzing found stays mended: the corpus, the seeds and some mutations of both, without a fuzzer.

`make fuzz` is the long form (docs/fuzzing.md).
"""

import random
import subprocess
import warnings
from pathlib import Path

import pytest

from tests.fuzz.registry import TARGETS
from tests.fuzz.target import SEPARATOR, Target
from tests.fuzz.unwinder_target import c_seeds

CORPUS = Path(__file__).parent / "corpus"
MAX_CORPUS_BYTES = 300 << 10
MUTATIONS = 60
"""Of each input that a target starts from."""


def _found(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]


def _mutated(data: bytes, generator: random.Random) -> bytes:
    """A copy with a few bytes changed, put in, taken out or doubled."""
    out = bytearray(data)
    for _ in range(generator.randint(1, 6)):
        at = generator.randrange(len(out) + 1)
        length = generator.choice((1, 1, 2, 4, 8, 24))
        kind = generator.randrange(4)
        if kind == 0:
            out[at : at + length] = generator.choice((b"\0", b"\xff", b"\x80")) * length
        elif kind == 1:
            out[at : at + 1] = bytes([generator.randrange(256)])
        elif kind == 2:
            del out[at : at + length]
        else:
            out[at:at] = out[at : at + length]
    return bytes(out)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_corpus_and_seeds(target: Target) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for data in [*target.seeds(), *_found(target.name), b"", SEPARATOR]:
            target.run(data)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_mutations(target: Target) -> None:
    """The same mutations in every run."""
    generator = random.Random(target.name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for data in [*target.seeds(), *_found(target.name)]:
            for _ in range(MUTATIONS if len(data) < 4096 else MUTATIONS // 4):
                changed = _mutated(data, generator)
                try:
                    target.run(changed)
                except Exception as error:
                    error.add_note(f"the input: {changed!r}")
                    raise


def test_the_unwinder_of_the_kernel_side(tmp_path: Path) -> None:
    """`unwinder.c` without libFuzzer, by gcc, under its sanitizers: seeds, corpus and mutations."""
    driver = tmp_path / "driver.c"
    driver.write_text(_DRIVER)
    program = tmp_path / "driver"
    flags = "-g -O1 -fsanitize=address,undefined -fno-sanitize=alignment -fno-sanitize-recover=all"
    source = Path(__file__).parent / "unwinder.c"
    subprocess.run(["gcc", *flags.split(), "-o", program, driver, source], check=True)
    generator = random.Random("unwinder")
    inputs = [*c_seeds(), *_found("unwinder")]
    inputs += [_mutated(data, generator) for data in inputs for _ in range(MUTATIONS)]
    text = b"".join(len(data).to_bytes(4, "little") + data for data in inputs)
    done = subprocess.run([program], input=text, capture_output=True)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    assert int(done.stdout) == len(inputs)


_DRIVER = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
int LLVMFuzzerTestOneInput(const uint8_t *, size_t);
int main(void) {
    uint32_t size, count = 0;
    while (fread(&size, 4, 1, stdin) == 1) {
        uint8_t *data = malloc(size + 1);
        if (fread(data, 1, size, stdin) != size)
            return 2;
        LLVMFuzzerTestOneInput(data, size);
        free(data);
        count++;
    }
    printf("%u\\n", count);
    return 0;
}
"""


def test_the_corpus_is_small_and_known() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MAX_CORPUS_BYTES
    assert {path.parent.name for path in files} <= {*TARGETS, "unwinder"}


def test_a_broken_promise_is_noticed() -> None:
    """The harness is not blind: a reader that lets an unsorted map through fails its target."""
    target = TARGETS["maps"]
    with pytest.MonkeyPatch.context() as patch:
        parse = target.run.__globals__["parse_maps"]
        patch.setitem(target.run.__globals__, "parse_maps", lambda data: parse(data)[::-1])
        with pytest.raises(Exception, match="sorted"):
            target.run(target.seeds()[1])
