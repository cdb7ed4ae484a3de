"""Metrics of the engine: what the kernel side, the process table and the worker count."""

from collections.abc import Mapping

from flameherd_agent.app import Engine
from flameherd_agent.kernel.abi import COUNTER_HELP, OUTCOME_HELP, Counter, Outcome
from flameherd_agent.kernel.ticks import TickBalance
from flameherd_agent.observe.metrics import Family, counter, gauge, labels


def engine_families(
    engine: Engine, counts: Mapping[Outcome | Counter, int], balance: TickBalance
) -> list[Family]:
    """A snapshot; `counts` and `balance` are the sampler's, read once for all who want them."""
    stats = engine.processes.stats
    families = [
        counter(f"flameherd_{name.name.lower()}_total", text, counts[name])
        for name, text in COUNTER_HELP.items()
    ]
    families += [
        counter(
            "flameherd_samples_outcome_total",
            "Samples by what became of them in the kernel: "
            + "; ".join(f"{name.name}: {text}" for name, text in OUTCOME_HELP.items()),
            {labels(outcome=name.name.lower()): counts[name] for name in Outcome},
        ),
        counter(
            "flameherd_cold_samples_total",
            "Samples unwound in user space by what became of them",
            {labels(outcome=name.name.lower()): count for name, count in stats.outcomes.items()},
        ),
        counter("flameherd_cold_given_up_total", "Cold samples over the cap", stats.cold_dropped),
        counter(
            "flameherd_cold_samples_interpreted_total",
            "Cold samples of processes that run an interpreter: they have native frames only",
            stats.cold_interpreted,
        ),
        counter(
            "flameherd_interpreters_refused_total",
            "Processes whose interpreter is unwound as native code",
            {labels(reason=why): n for why, n in engine.interpreters.refused.items()},
        ),
        counter(
            "flameherd_interpreter_frames_unnamed_total",
            "Interpreter frames whose function could not be read as they arrived",
            {labels(reason=why): n for why, n in engine.interpreters.unnamed.items()},
        ),
        gauge("flameherd_ticks_missed", "Ticks of busy CPUs that never fired", balance.missed),
        counter(
            "flameherd_processes_unreadable_total",
            "Processes that ended before their mappings were read, or that may not be read",
            stats.gone,
        ),
        counter(
            "flameherd_processes_refused_total",
            "Times that a process's mappings found no room in the kernel's maps",
            stats.no_room,
        ),
        counter(
            "flameherd_samples_pod_unknown_total",
            "Samples that were sent without a pod or a container's name: the cluster did not tell in time",
            engine.assembler.unknown_pods,
        ),
        gauge("flameherd_processes", "Processes loaded", len(engine.processes)),
        gauge("flameherd_executables", "Executables known", len(engine.executables)),
        counter(
            "flameherd_executables_unreadable_total",
            "Executables that could not be read",
            {labels(reason=why): n for why, n in engine.executables.unreadable.items()},
        ),
        counter(
            "flameherd_worker_restarts_total", "Restarts of the worker", engine.worker.restarts
        ),
        counter(
            "flameherd_tables_refused_total", "Unwind tables without room", engine.slabs.refused
        ),
        gauge("flameherd_table_bytes", "Bytes of unwind rows loaded", engine.slabs.bytes_used()),
        gauge(
            "flameherd_kernel_map_bytes",
            "Kernel memory of all maps",
            engine.sampler.loaded.map_bytes() + engine.slabs.kernel_bytes(),
        ),
        gauge("flameherd_ring_high_water_bytes", "Most that waited", engine.drain.ring_high_water),
        counter("flameherd_process_events_lost_total", "Lost", engine.processes.lost_events),
    ]
    return families
