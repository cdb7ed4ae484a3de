"""Capabilities by their bits, and the message that names what is missing."""

from flameherd_agent.kernel.capabilities import LOST, NEEDED, effective, how_to_give, lacking


def test_capabilities_are_read_from_their_bits() -> None:
    assert effective("CapEff:\t0000000000000000\n") == frozenset()
    assert effective(f"CapEff:\t{1 << 39 | 1 << 38:016x}\n") == {"CAP_BPF", "CAP_PERFMON"}
    assert effective("") == frozenset()


def test_wider_capabilities_include_narrower_ones() -> None:
    assert lacking(NEEDED, frozenset()) == ["CAP_BPF", "CAP_PERFMON"]
    assert lacking(NEEDED, frozenset({"CAP_BPF"})) == ["CAP_PERFMON"]
    assert lacking(NEEDED, frozenset({"CAP_SYS_ADMIN"})) == []
    assert lacking(LOST, frozenset({"CAP_DAC_OVERRIDE", "CAP_SYS_ADMIN"})) == ["CAP_SYS_PTRACE"]
    assert lacking([], frozenset()) == []


def test_what_to_do_names_the_capabilities() -> None:
    assert how_to_give(["CAP_BPF", "CAP_PERFMON"]).startswith("give CAP_BPF and CAP_PERFMON (")
