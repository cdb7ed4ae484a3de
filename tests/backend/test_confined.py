"""In a pod of a `restricted` namespace: another user without any right, a read-only root, nothing but a volume to write to."""

import subprocess
from pathlib import Path

import pytest

from tests.backend.running import RunningBackend
from tests.backend.test_receive import message, recent
from tests.unit import profiles

UID = "65532"
VOLUME = Path("/mnt")
POD = f"""
set -e
mount --make-rprivate /
mount -t tmpfs -o size=512m none {VOLUME}
chown {UID}:{UID} {VOLUME}
mount -o remount,bind,ro /
for place in /dev/shm /run /var/tmp /tmp; do
    mountpoint -q $place && mount -o remount,bind,ro $place
done
exec setpriv --reuid={UID} --regid={UID} --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all \\
    env -i PATH=/usr/bin "$@"
"""


def test_it_runs_without_rights_and_writes_nowhere_but_to_its_volume(tmp_path: Path) -> None:
    allowed = subprocess.run(["unshare", "--mount", "true"], capture_output=True)
    if allowed.returncode:
        pytest.skip("a mount namespace is not permitted here")
    pod = ["unshare", "--mount", "sh", "-c", POD, "pod"]
    options = ["--store", str(VOLUME / "store"), "--min-free", "64Mi"]
    with RunningBackend(tmp_path / "log-of-store", options, pod) as backend:
        status = Path(f"/proc/{backend.process.pid}/status").read_text()
        assert f"Uid:\t{UID}" in status
        assert "CapEff:\t0000000000000000" in status
        assert backend.post(message(recent(profiles.numbered(0, samples=50)))).status == 200
        assert backend.get("flamegraph", type="cpu").json()["samples"] == 50
        assert backend.stop() == 0
        assert "Traceback" not in backend.said()
    assert not (VOLUME / "store").exists()  # it was a mount of its own
