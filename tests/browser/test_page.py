"""The page itself: small, strict, and filled by a real agent."""

import gzip
import re
from pathlib import Path

import flameherd_backend
from playwright.sync_api import Browser, Page, expect

from tests.backend.running import RunningBackend, request
from tests.browser.watched import SLOW_MS, Site, graph, picture
from tests.ebpf.agents import POLICY, agent
from tests.programs.running import running

STATIC = Path(flameherd_backend.__file__).parent / "static"
MOST_BYTES = 150_000


def test_the_bundle_is_small_and_holds_nothing_inline() -> None:
    sent = [path for path in STATIC.rglob("*") if path.suffix in (".js", ".css", ".html")]
    assert len(sent) >= 3, "the page is not built: `make ui`"
    assert sum(len(gzip.compress(path.read_bytes())) for path in sent) < MOST_BYTES
    index = (STATIC / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", index)


def test_the_page_is_served_under_a_strict_policy(site: Site, page: Page) -> None:
    answer = request(f"{site.origin}/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    # The browser enforces it: what is not in the bundle does not run.
    site.expected.append("Content Security Policy")
    page.evaluate(
        "const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s)"
    )
    assert page.evaluate("window.ran") is None


def test_an_empty_page_fills_itself_with_the_stacks_of_this_machine(
    chromium: Browser, tmp_path: Path
) -> None:
    with RunningBackend(tmp_path / "store") as backend, Site(chromium, backend) as site:
        page = site.open(wait=".notice")
        expect(page.get_by_role("heading", name="Waiting for the first profile")).to_be_visible()
        expect(page.get_by_text("flameherd doctor")).to_be_visible()
        policy = POLICY.format(frequency=97).replace(
            "http://127.0.0.1:9", f"http://127.0.0.1:{backend.ports['OTLP/HTTP']}"
        )
        with running("pie") as program, agent(tmp_path, config=policy):
            expect(graph(page)).to_be_visible(timeout=4 * SLOW_MS)
            page.get_by_role("button", name="Live").click()
            # Its functions by their file: names of a program this young may come with a later profile.
            page.get_by_role("searchbox").fill(str(program.executable))
            expect(page.locator(".rows-body .name").first).to_be_visible(timeout=2 * SLOW_MS)
        page.get_by_role("searchbox").fill("")
        picture(page, "this-machine-light")
