"""What the page costs: `python -m bench.page`.

Real backend, real Chromium without a GPU. Prints how long it takes from the first request of a cold tab until the
flame graph of 4,000 nodes is painted, and the time between frames while 50,000 nodes are zoomed and moved.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flameherd_agent.pipeline.otlp import encode_batches
from playwright.sync_api import Page, sync_playwright

from tests.backend.running import RunningBackend
from tests.browser import demo
from tests.browser.conftest import CHROMIUM, FLAGS
from tests.browser.watched import READY, WIDE

ROUNDS = 5
FRAMES = 120
SMALL, LARGE = 20_000, 50_000
"""Nodes sent: of the first the backend shows 4,000, of the second all, from a file."""

_FRAME_TIMES = """
([frames, event]) => new Promise(done => {
  const box = document.querySelector('.flame-scroller');
  const {left, top, width, height} = box.getBoundingClientRect();
  const at = {clientX: left + width / 3, clientY: top + height / 2, bubbles: true, cancelable: true};
  const times = [];
  let last = performance.now();
  const step = now => {
    times.push(now - last);
    last = now;
    if (times.length > frames) return done(times.slice(1));
    const out = times.length > frames / 2 ? -1 : 1;
    box.dispatchEvent(new WheelEvent('wheel', event === 'zoom'
      ? {...at, ctrlKey: true, deltaY: -60 * out} : {...at, shiftKey: true, deltaX: 25 * out}));
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})
"""


@contextmanager
def _backend(folder: Path, nodes: int) -> Iterator[RunningBackend]:
    with RunningBackend(folder / f"store-{nodes}") as backend:
        for batch in encode_batches(demo.deep(time.time_ns(), nodes)):
            answer = backend.post(batch.message())
            assert (answer.status, answer.body) == (200, b"")
        yield backend


def _line(what: str, times_ms: list[float]) -> None:
    ordered = sorted(times_ms)
    high = ordered[int(0.95 * (len(ordered) - 1))]
    print(f"{what:<58} median {statistics.median(ordered):7.1f} ms   95 % {high:7.1f} ms")


def _first_picture(page: Page) -> tuple[float, int]:
    """Milliseconds from navigation to the painted flame graph, and its nodes."""
    page.wait_for_selector(".flame-scroller")
    found = page.evaluate(
        "performance.getEntriesByName('flame graph').map(m => [m.startTime, m.detail])[0]"
    )
    return float(found[0]), int(found[1])


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="flameherd-bench-") as name,
        sync_playwright() as playwright,
    ):
        folder = Path(name)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        with _backend(folder, SMALL) as backend:
            link = f"http://127.0.0.1:{backend.ports['page']}/?type=cpu"
            taken: list[float] = []
            nodes = 0
            for _ in range(ROUNDS):
                page = browser.new_page(viewport=WIDE)  # type: ignore[arg-type]
                page.goto(link)
                milliseconds, nodes = _first_picture(page)
                taken.append(milliseconds)
                page.close()
            _line(f"first flame graph, {nodes:,} nodes", taken)
        with _backend(folder, LARGE) as backend:
            profile = folder / "large.pb.gz"
            profile.write_bytes(backend.get("export", type="cpu", format="pprof").body)
            page = browser.new_page(viewport=WIDE)  # type: ignore[arg-type]
            page.goto(f"http://127.0.0.1:{backend.ports['page']}/?pane=flame")
            page.wait_for_selector(READY)
            page.locator("input[type=file]").set_input_files(profile)
            page.wait_for_selector(".query-bar.file")
            nodes = int(page.locator(".flame-scroller").get_attribute("data-nodes") or 0)
            for event in ("zoom", "move"):
                _line(
                    f"between frames, {event}, {nodes:,} nodes",
                    page.evaluate(_FRAME_TIMES, [FRAMES, event]),
                )
        browser.close()


if __name__ == "__main__":
    main()
