"""Debian's Chromium on pages of a real backend, with real OTLP data in it.

Every page is watched: an error in its console, an exception, a request that leaves the page's own origin or one
that fails makes its test fail.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from flameherd_agent.pipeline.otlp import encode
from playwright.sync_api import Browser, Page, sync_playwright

from tests.backend.running import RunningBackend
from tests.browser import demo
from tests.browser.watched import Site

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
"""Nothing of the browser itself asks anybody else; every launch has a profile folder of its own."""


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not installed: `make setup` installs it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBackend]:
    """A backend with twelve minutes of a shop's profiles."""
    with RunningBackend(tmp_path_factory.mktemp("shop") / "store") as backend:
        request = encode(demo.profiles(time.time_ns()))
        answer = backend.post(request.SerializeToString())
        assert (answer.status, answer.body) == (200, b"")
        yield backend
        assert "ERROR" not in backend.said()


@pytest.fixture
def site(chromium: Browser, shop: RunningBackend) -> Iterator[Site]:
    """Opens watched pages of the shop's backend."""
    with Site(chromium, shop) as it:
        yield it


@pytest.fixture
def page(site: Site) -> Page:
    """The page as somebody sees it who opens it for the first time."""
    return site.open()
