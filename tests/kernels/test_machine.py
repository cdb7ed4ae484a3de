"""The virtual machines themselves."""

import pytest

from tests.kernels.machine import Machine

pytestmark = pytest.mark.kernels


def test_the_kernel_is_the_one_asked_for(vm: Machine) -> None:
    print(f"{vm.package}: up in {vm.boot_seconds:.1f} s")
    assert vm.release.startswith(vm.kernel.name + ".")
    assert vm.run(["uname", "-r"]).check().stdout.strip() == vm.release


def test_results_carry_code_output_and_errors(vm: Machine) -> None:
    result = vm.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (result.code, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert vm.run(["no-such-program"]).code == 127
    with pytest.raises(AssertionError, match="exit code 3"):
        result.check()


def test_a_command_that_hangs_is_killed_with_its_children(vm: Machine) -> None:
    assert vm.run(["sh", "-c", "sleep 1000 & sleep 1000"], timeout=1).code is None
    script = (
        "import glob, pathlib, sys, time\n"
        "for _ in range(100):\n"
        "    lines = [pathlib.Path(p).read_bytes() for p in glob.glob('/proc/[0-9]*/cmdline')]\n"
        "    if not any(line.startswith(b'sleep') for line in lines):\n"
        "        sys.exit()\n"
        "    time.sleep(0.1)\n"
        "sys.exit('still there')\n"
    )
    vm.run(["python3", "-c", script]).check()


def test_large_output_arrives_whole(vm: Machine) -> None:
    result = vm.run(["python3", "-c", "print('0123456789' * 200_000)"]).check()
    assert result.stdout == "0123456789" * 200_000 + "\n"


def test_arithmetic_is_right_under_emulation(vm: Machine) -> None:
    """As QEMU 7.2 emulates AVX2, numpy's argsort gives wrong orders: the guest must not have it."""
    script = (
        "import numpy as np\n"
        "for n in range(8, 4096, 97):\n"
        "    a = np.random.default_rng(n).integers(0, n, n)\n"
        "    assert (a[np.argsort(a)] == np.sort(a)).all(), n\n"
        "    assert np.sort(a).tolist() == sorted(a.tolist()), n\n"
    )
    vm.run(["python3", "-c", script]).check()
