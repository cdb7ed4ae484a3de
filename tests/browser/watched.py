"""Opening pages, watching them, and asking them what they show."""

from pathlib import Path
from types import TracebackType
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Locator, Page, Route, expect

from tests.backend.running import RunningBackend

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "out" / "browser"
"""Screenshots of each run, to be looked at."""
READY = ".flame-panel[aria-busy=false], .list-view[aria-busy=false], .notice:not(:has(.spinner))"
"""It shows what it was asked for, or says why not."""
WIDE = {"width": 1440, "height": 860}
NARROW = {"width": 420, "height": 900}
SLOW_MS = 60_000

expect.set_options(timeout=SLOW_MS)


class Site:
    """Pages of one backend. Leaving it fails if one of them had a defect that nobody sees."""

    def __init__(self, browser: Browser, backend: RunningBackend) -> None:
        self.browser = browser
        self.backend = backend
        self.origin = f"http://127.0.0.1:{backend.ports['page']}"
        self.troubles: list[str] = []
        self.expected: list[str] = []
        """Parts of console messages that a test provokes on purpose."""
        self.requests: list[tuple[str, str]] = []
        """Method and URL."""
        self._contexts: list[BrowserContext] = []

    def __enter__(self) -> "Site":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for context in self._contexts:
            context.close()
        if kind is None:
            assert not self.unexpected(), self.unexpected()

    def unexpected(self) -> list[str]:
        return [text for text in self.troubles if not any(part in text for part in self.expected)]

    def open(
        self,
        link: str = "",
        *,
        dark: bool = False,
        size: dict[str, int] | None = None,
        wait: str = READY,
        touch: bool = False,
    ) -> Page:
        """A page in a context of its own, when it shows something."""
        context = self.browser.new_context(
            viewport=size or WIDE,  # type: ignore[arg-type]
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            has_touch=touch,
            accept_downloads=True,
            permissions=["clipboard-read", "clipboard-write"],
        )
        self._contexts.append(context)
        context.set_default_timeout(SLOW_MS)
        page = context.new_page()
        page.on("console", lambda message: self._said(message.type, message.text))
        page.on("pageerror", lambda error: self.troubles.append(f"exception: {error}"))
        page.on("request", lambda request: self._asked(request.method, request.url))
        page.goto(f"{self.origin}/{link}")
        page.wait_for_selector(wait)
        return page

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.troubles.append(f"console {kind}: {text}")

    def _asked(self, method: str, url: str) -> None:
        self.requests.append((method, url))
        if not url.startswith((self.origin + "/", f"blob:{self.origin}/", "data:")):
            self.troubles.append(f"request off the page's origin: {url}")


def picture(page: Page, name: str) -> None:
    """Keeps what the page looks like now."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png")


def table_rows(page: Page) -> list[list[str]]:
    """Texts of the rows that are on screen; numbers as they are shown."""
    rows: list[list[str]] = page.locator(".rows-body .row").evaluate_all(
        """rows => rows
             .sort((a, b) => a.ariaRowIndex - b.ariaRowIndex)
             .map(row => [...row.querySelectorAll('[role=cell]')].map(cell =>
                (cell.querySelector('.name') ?? cell.querySelector('.value') ?? cell).textContent.trim()))"""
    )
    return rows


def graph(page: Page) -> Locator:
    return page.locator(".flame-scroller").first


def colours(page: Page, selector: str = ".flame-canvas") -> int:
    """How many colours a canvas shows: an empty one has one."""
    count: int = page.locator(selector).first.evaluate(
        """canvas => {
             const {width, height} = canvas;
             const copy = new OffscreenCanvas(width, height).getContext('2d', {willReadFrequently: true});
             copy.drawImage(canvas, 0, 0);
             const data = new Uint32Array(copy.getImageData(0, 0, width, height).data.buffer);
             return new Set(data).size;
           }"""
    )
    return count


def select_down(page: Page, depth: int) -> str:
    """Selects by keys the largest frame of a depth below those above it; its label. Depth 0 is the root."""
    graph(page).focus()
    page.keyboard.press("ArrowDown")
    for _ in range(depth):
        page.keyboard.press("ArrowDown")
    return graph(page).get_attribute("data-selected") or ""


def settled(page: Page) -> None:
    """Waits until no answer is on its way."""
    page.wait_for_selector(READY)


def failing(route: Route, status: int, body: dict[str, Any]) -> None:
    """Answers a request with a problem."""
    route.fulfill(status=status, content_type="application/problem+json", json=body)
