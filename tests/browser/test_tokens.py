"""A backend that asks for a token: the form, a wrong one, each tenant's own view, and downloads, which links cannot ask for."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from flameherd_agent.pipeline.otlp import encode
from playwright.sync_api import Browser, Page, expect

from tests.backend.running import RunningBackend
from tests.browser import demo
from tests.browser.watched import Site, graph, picture, table_rows

AGENT, SHOP = "agent-token-0123456789", "shop-token-0123456789"
TOKENS = f"agent {AGENT} * -\nshop {SHOP} - shop\n"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBackend]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "tokens").write_text(TOKENS)
    with RunningBackend(folder / "store", ["--tokens", str(folder / "tokens")]) as backend:
        body = encode(demo.profiles(time.time_ns())).SerializeToString()
        assert backend.post(body, Authorization=f"Bearer {AGENT}").status == 200
        yield backend


@pytest.fixture
def door(chromium: Browser, guarded: RunningBackend) -> Iterator[Site]:
    with Site(chromium, guarded) as site:
        # What is answered before there is a token, the browser notes in its console.
        site.expected.append("401 (Unauthorized)")
        yield site


def enter(page: Page, token: str) -> None:
    page.get_by_label("Bearer token").fill(token)
    page.get_by_role("button", name="Use it").click()


def test_a_token_opens_the_page_for_this_tab_only(door: Site, tmp_path: Path) -> None:
    page = door.open("?type=cpu", wait=".notice form")
    expect(page.get_by_role("heading", name="This backend asks for a token")).to_be_visible()
    expect(page.get_by_role("button", name="Use it")).to_be_disabled()
    picture(page, "token-light")
    enter(page, "no-such-token-0123")
    expect(page.get_by_role("alert")).to_contain_text("the token is not known here")
    enter(page, SHOP)
    expect(graph(page)).to_be_visible()
    expect(page.get_by_label("Bearer token")).to_have_count(0)
    # The shop's own, and nothing of others.
    names = {row[0] for row in table_rows(page)}
    assert "regexp.(*machine).step" in names
    page.get_by_role("searchbox").fill("Ledger")
    expect(page.locator(".rows-body .row")).to_have_count(0)
    # The address, which people send around, does not hold it; the tab does.
    assert SHOP not in page.url
    assert all(SHOP not in url for _, url in door.requests)
    page.goto(f"{door.origin}/?type=cpu")
    expect(graph(page)).to_be_visible()
    other = door.open("?type=cpu", wait=".notice form")
    expect(other.get_by_label("Bearer token")).to_be_visible()


def test_a_download_carries_the_token(door: Site, tmp_path: Path) -> None:
    page = door.open("?type=cpu", wait=".notice form")
    enter(page, SHOP)
    expect(graph(page)).to_be_visible()
    page.get_by_role("button", name="Export").click()
    with page.expect_download() as waiting:
        page.get_by_role("link", name="Collapsed stacks").click()
    path = tmp_path / waiting.value.suggested_filename
    waiting.value.save_as(path)
    content = path.read_bytes()
    assert b"main.(*server).checkout" in content
    assert b"shop.payments" not in content


def test_a_token_that_sees_nothing_is_told_so(door: Site) -> None:
    page = door.open("?type=cpu", wait=".notice form")
    enter(page, AGENT)
    expect(page.get_by_role("heading", name="Waiting for the first profile")).to_be_visible()
