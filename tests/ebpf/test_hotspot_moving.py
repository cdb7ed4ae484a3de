"""Objects and code that move or go under load: no name that the program contradicts; what was torn is counted."""

import pytest
from flameherd_agent.recording import Recording

from tests.ebpf.recorded import OPTIONS, STEP_S, needs_root, warm
from tests.ebpf.test_truth_hotspot import TIERS, needs_programs
from tests.java_truth import Verdict, judge
from tests.jdks import Jdk, jdks
from tests.programs.running import running_command
from tests.runtime_truth import SHARE
from tests.truth import samples_by_pid

pytestmark = [needs_root, pytest.mark.timeout(900)]
FREQUENCY_HZ = 997
SHORT, LIMIT_S = 1_500, 120.0
SOAK_S = 600.0
CACHE = ("-XX:ReservedCodeCacheSize=8m", "-XX:-SegmentedCodeCache", "-XX:TieredStopAtLevel=1")
"""Room for a fraction of what is compiled: methods are freed and others put in their places."""
APART = (
    "-XX:CompileCommand=quiet",
    "-XX:CompileCommand=dontinline,Churn::link",
    "-XX:CompileCommand=dontinline,Churn::fill",
)
"""Where these are inlined into each other, the JVM's notes do not tell the way into the next from the next."""
KINDS = {
    "flushing": ("Many", (*CACHE, "-Xmx128m", "-XX:+UseSerialGC"), ("100",)),
    "unloading": ("Late", ("-Xmx32m", "-XX:+UseSerialGC", "-XX:MaxMetaspaceSize=24m"), ()),
    "zgc": ("Churn", ("-Xmx64m", "-XX:+UseZGC", *APART), ()),
    "g1": ("Churn", ("-Xmx32m", "-XX:+UseG1GC", *APART), ()),
}
"""(program, options, arguments)"""


def judged(jdk: Jdk, kind: str, seconds: float, samples: int) -> tuple[Verdict, int]:
    """The verdict, and how many frames could not be named."""
    needs_programs()
    program_name, options, arguments = KINDS[kind]
    command = jdk.command(program_name, *TIERS["everywhere"], *options, arguments=arguments)
    with (
        running_command(command, program_name) as program,
        Recording([program.pid], frequency_hz=FREQUENCY_HZ, options=OPTIONS) as recording,
    ):
        warm(recording, FREQUENCY_HZ)
        began = program.cpu_seconds()
        waited = 0.0
        while waited < seconds and (program.cpu_seconds() - began) * FREQUENCY_HZ < 1.3 * samples:
            assert program.process.poll() is None, f"{program_name} has ended"
            recording.run(STEP_S)
            waited += STEP_S
        result = recording.result()
        unnamed = recording.engine.interpreters.unnamed
    found = samples_by_pid(result.profiles)[program.pid]
    verdict = judge(program_name, found)
    print(jdk.name, kind, result.outcomes, dict(unnamed), verdict.describe())
    return verdict, unnamed.total()


def wrongly_named(verdict: Verdict) -> int:
    """Samples with a name that contradicts the program; one that is missing or cut does not."""
    return sum(
        count
        for (why, _), count in verdict.why.items()
        if why not in ("truncated", "no Java frame") and "name='?'" not in why
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("jdk", jdks()[:1], ids=lambda jdk: jdk.name)
def test_names_stay_true(jdk: Jdk, kind: str) -> None:
    verdict, unnamed = judged(jdk, kind, LIMIT_S, SHORT)
    assert verdict.samples >= SHORT // 2, verdict.describe()
    assert wrongly_named(verdict) == 0, verdict.describe()
    missing = verdict.samples - verdict.right
    assert missing <= max((1 - SHARE) * verdict.samples, unnamed), verdict.describe()


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("jdk", jdks(), ids=lambda jdk: jdk.name)
def test_for_ten_minutes(jdk: Jdk, kind: str) -> None:
    verdict, unnamed = judged(jdk, kind, SOAK_S, 1 << 40)
    assert wrongly_named(verdict) == 0, verdict.describe()
    missing = verdict.samples - verdict.right
    assert missing <= max((1 - SHARE) * verdict.samples, unnamed), verdict.describe()
