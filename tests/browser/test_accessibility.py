"""axe-core finds no serious violation in any view, in both themes."""

import pytest
from playwright.sync_api import Page

from tests.browser.watched import NARROW, ROOT, Site, settled

AXE = ROOT / "backend" / "ui" / "node_modules" / "axe-core" / "axe.min.js"
VIEWS = {
    "both": "?type=cpu",
    "table": "?type=cpu&pane=table",
    "flame": "?type=cpu&pane=flame&colour=package&search=json",
    "diff": "?type=cpu&from=now-5m&to=now&base_from=now-10m&base_to=now-5m",
    "functions": "?type=cpu&view=functions",
    "executables": "?type=cpu&view=executables",
    "traces": "?type=cpu&view=traces&by=workload",
    "empty": "?type=cpu&match=pod%3Dgone",
}


def violations(page: Page) -> list[str]:
    """Serious and critical ones, with what they are about."""
    # Through the debugging protocol, so that the page's own Content-Security-Policy stays as it is.
    page.evaluate(AXE.read_text(encoding="utf-8") + "; 0")
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [
        f"{one['id']}: {node['html'][:160]} ({node['failureSummary']})"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_no_serious_violation(site: Site, view: str, dark: bool) -> None:
    page = site.open(VIEWS[view], dark=dark)
    assert violations(page) == []


def test_no_serious_violation_in_menus_dialogs_and_narrow_windows(site: Site) -> None:
    page = site.open("?type=cpu", size=NARROW)
    assert violations(page) == []
    page.get_by_role("button", name="Keys and help").click()
    assert violations(page) == []
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Namespace").click()
    settled(page)
    page.locator(".values li").first.wait_for()
    assert violations(page) == []
    page.keyboard.press("Escape")
    page.locator(".rows-body .row .name").first.dblclick()
    page.get_by_role("heading", name="Callers").wait_for()
    assert violations(page) == []
