"""`flameherd doctor`: each check against a machine that lacks something, and the page."""

import argparse
import fcntl
import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from flameherd_agent.commands import doctor, doctor_checks
from flameherd_agent.commands.doctor_checks import (
    CHECKS,
    Finding,
    Machine,
    State,
    kernel_version,
)
from flameherd_agent.kernel.capabilities import BITS

EVERYTHING = frozenset(BITS)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine in files on which every check that only reads is content."""
    made = Machine(
        proc=tmp_path / "proc",
        sys=tmp_path / "sys",
        capabilities=EVERYTHING,
        seccomp=False,
        release="6.1.0-38-amd64",
        cache=tmp_path / "cache",
        lock=tmp_path / "agent.lock",
    )
    (made.proc / "sys/kernel").mkdir(parents=True)
    (made.proc / "sys/net/core").mkdir(parents=True)
    (made.proc / "self/map_files").mkdir(parents=True)
    (made.proc / "self/map_files/1-2").write_text("")
    (made.proc / "kallsyms").write_text("ffffffff81000000 T _text\n")
    (made.proc / "7").mkdir()
    (made.proc / "7/maps").write_text("")
    (made.sys / "kernel/btf").mkdir(parents=True)
    (made.sys / "kernel/btf/vmlinux").write_bytes(struct.pack("=H", 0xEB9F))
    (made.sys / "kernel/security").mkdir()
    return made


def sysctl(machine: Machine, name: str, value: int) -> None:
    (machine.proc / "sys" / name).write_text(f"{value}\n")


READERS = [
    doctor_checks.check_kernel_version,
    doctor_checks.check_btf,
    doctor_checks.check_lockdown,
    doctor_checks.check_memlock,
    doctor_checks.check_kernel_symbols,
    doctor_checks.check_other_processes,
    doctor_checks.check_other_users_files,
    doctor_checks.check_deleted_files,
    doctor_checks.check_throttling,
    doctor_checks.check_kernel_stacks,
    doctor_checks.check_jit,
    doctor_checks.check_statistics,
    doctor_checks.check_cache,
    doctor_checks.check_other_agent,
]


@pytest.mark.parametrize("check", READERS, ids=lambda check: check.__name__)
def test_a_good_machine(machine: Machine, check: object) -> None:
    assert callable(check)
    finding = check(machine)
    assert finding.state is State.OK, finding


def test_old_kernels(machine: Machine) -> None:
    old = replace(machine, release="4.19.0-27-amd64")
    assert doctor_checks.check_kernel_version(old).state is State.MISSING
    assert kernel_version("5.10.0-38-amd64") == (5, 10)
    assert kernel_version("nonsense") == (0, 0)


def test_no_btf(machine: Machine) -> None:
    path = machine.sys / "kernel/btf/vmlinux"
    path.write_bytes(b"\x00\x00")
    assert doctor_checks.check_btf(machine).state is State.MISSING
    path.unlink()
    finding = doctor_checks.check_btf(machine)
    assert finding.state is State.MISSING
    assert "CONFIG_DEBUG_INFO_BTF" in finding.mend


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("[none] integrity confidentiality", State.OK),
        ("none [integrity] confidentiality", State.OK),
        ("none integrity [confidentiality]", State.MISSING),
    ],
)
def test_lockdown(machine: Machine, text: str, state: State) -> None:
    (machine.sys / "kernel/security/lockdown").write_text(text)
    assert doctor_checks.check_lockdown(machine).state is state


def test_hidden_kernel_addresses(machine: Machine) -> None:
    (machine.proc / "kallsyms").write_text("0000000000000000 T _text\n" * 20)
    sysctl(machine, "kernel/kptr_restrict", 2)
    finding = doctor_checks.check_kernel_symbols(machine)
    assert finding.state is State.DEGRADED
    assert finding.mend.startswith("sysctl kernel.kptr_restrict=1")
    sysctl(machine, "kernel/kptr_restrict", 1)
    without = replace(machine, capabilities=frozenset())
    assert "CAP_SYSLOG" in doctor_checks.check_kernel_symbols(without).mend


def test_capabilities_that_are_lacking(machine: Machine) -> None:
    without = replace(
        machine, capabilities=EVERYTHING - {"CAP_DAC_READ_SEARCH", "CAP_DAC_OVERRIDE"}
    )
    finding = doctor_checks.check_other_users_files(without)
    assert finding.state is State.DEGRADED
    assert "give CAP_DAC_READ_SEARCH" in finding.mend


def test_the_cure_depends_on_what_forbids(machine: Machine) -> None:
    assert "security module" in machine.give("CAP_BPF")
    assert "seccomp" in replace(machine, seccomp=True).give("CAP_BPF")
    assert "give CAP_BPF" in replace(machine, capabilities=frozenset()).give("CAP_BPF")


def test_no_process_can_be_read(machine: Machine) -> None:
    (machine.proc / "7/maps").unlink()
    assert doctor_checks.check_other_processes(machine).state is State.MISSING


SETTINGS = [
    ("kernel/perf_event_max_sample_rate", 500, doctor_checks.check_throttling),
    ("kernel/perf_event_max_stack", 16, doctor_checks.check_kernel_stacks),
    ("net/core/bpf_jit_enable", 0, doctor_checks.check_jit),
    ("kernel/bpf_stats_enabled", 1, doctor_checks.check_statistics),
]


@pytest.mark.parametrize(("name", "value", "check"), SETTINGS)
def test_settings(machine: Machine, name: str, value: int, check: object) -> None:
    sysctl(machine, name, value)
    assert callable(check)
    finding = check(machine)
    assert finding.state is State.DEGRADED
    assert finding.mend.startswith(f"sysctl {name.replace('/', '.')}=")


def test_a_cache_that_cannot_be_written(machine: Machine, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    finding = doctor_checks.check_cache(replace(machine, cache=file / "below"))
    assert finding.state is State.DEGRADED
    assert "Not a directory" in finding.detail


def test_a_cache_without_room(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "CACHE_BYTES", 1 << 80)
    finding = doctor_checks.check_cache(machine)
    assert finding.state is State.DEGRADED
    assert "are free" in finding.detail
    assert not machine.cache.exists()  # it changes nothing


def test_another_agent_is_found_and_not_disturbed(machine: Machine) -> None:
    machine.lock.write_text("4711\n")
    assert doctor_checks.check_other_agent(machine).state is State.OK
    with machine.lock.open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        finding = doctor_checks.check_other_agent(machine)
    assert finding.state is State.DEGRADED
    assert "process 4711" in finding.detail
    assert machine.lock.read_text() == "4711\n"


def test_no_cgroups(machine: Machine) -> None:
    (machine.proc / "self/mountinfo").write_text("")
    assert doctor_checks.check_cgroups(machine).state is State.DEGRADED


def test_no_compiler(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "SYSTEM_PYTHON", "/bin/false")
    assert doctor_checks.check_compiler(machine).state is State.MISSING
    monkeypatch.setattr(doctor_checks, "SYSTEM_PYTHON", "/none")
    finding = doctor_checks.check_compiler(machine)
    assert finding.state is State.MISSING
    assert finding.mend == "apt-get install python3-bpfcc"


def test_a_check_that_breaks_does_not_end_the_others(tmp_path: Path) -> None:
    nothing = Machine(tmp_path, tmp_path, frozenset(), False, "6.1", tmp_path, tmp_path / "lock")
    findings = doctor.examine(nothing)
    assert len(findings) == len(CHECKS)
    broken = [f for f in findings if f.detail.startswith("could not be checked")]
    assert {f.name for f in broken} == {"kernel symbols", "pid namespace", "cgroups"}


FINDINGS = [
    Finding("version", State.OK, "6.1", "", "Kernel"),
    Finding("BPF maps", State.MISSING, "creating a map: no", "give CAP_BPF", "Rights"),
    Finding("symbols", State.DEGRADED, "unnamed", "", "Rights"),
]


def test_the_page() -> None:
    page = doctor.as_text(FINDINGS, colour=False).split("\n", 1)[1]
    assert page == (
        "\nKernel\n"
        "  ok        version   6.1\n"
        "\nRights\n"
        "  missing   BPF maps  creating a map: no\n"
        "                      → give CAP_BPF\n"
        "  degraded  symbols   unnamed\n"
        "\n1 ok, 1 degraded, 1 missing: this machine cannot be profiled like this\n"
    )


def test_colours_only_where_asked() -> None:
    assert "\x1b[31mmissing \x1b[0m" in doctor.as_text(FINDINGS, colour=True)
    assert "\x1b" not in doctor.as_text(FINDINGS, colour=False)


def test_json() -> None:
    document = json.loads(doctor.as_json(FINDINGS))
    assert document["ok"] is False
    assert document["findings"][1]["state"] == "missing"
    assert json.loads(doctor.as_json(FINDINGS[::2]))["ok"] is True


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("degraded", 0), ("missing", 3)])
def test_exit_codes(
    state: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = (lambda machine: Finding("x", State(state), "", "", "g"),)
    monkeypatch.setattr(doctor, "CHECKS", checks)
    parser = argparse.ArgumentParser()
    doctor.register(parser.add_subparsers())
    arguments = parser.parse_args(["doctor", "--json"])
    assert arguments.run(arguments) == code
    assert json.loads(capsys.readouterr().out)["ok"] is (code == 0)


def test_on_this_machine_the_trials_leave_nothing_behind(tmp_path: Path) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    findings = doctor.examine(Machine.this(tmp_path / "cache", tmp_path / "lock"))
    assert [f.name for f in findings if f.detail.startswith("could not")] == []
    assert set(Path("/proc/self/fd").iterdir()) == before
    assert list(tmp_path.iterdir()) == []
