"""Fingers on the flame graph: pinch, drag, a long press that looks and then offers the menu, a tap that zooms."""

import time
from typing import Any

import pytest
from playwright.sync_api import CDPSession, Page, expect

from tests.browser.watched import Site, graph, picture, settled

ROW = 20
LONG_S = 1.0


class Hand:
    """Fingers on a page's flame graph; x in shares of its width, y in rows of it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.session: CDPSession = page.context.new_cdp_session(page)
        box = graph(page).bounding_box()
        assert box
        self.box = box

    def touch(self, kind: str, *points: tuple[float, float]) -> None:
        made: list[dict[str, Any]] = [
            {
                "x": self.box["x"] + share * self.box["width"],
                "y": self.box["y"] + row * ROW + ROW / 2,
                "id": number,
            }
            for number, (share, row) in enumerate(points)
        ]
        self.session.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": made})

    def stroke(
        self, *ways: tuple[tuple[float, float], tuple[float, float]], steps: int = 8
    ) -> None:
        """Each finger from one place to another, all at once."""
        self.touch("Start", *(begin for begin, _ in ways))
        for step in range(1, steps + 1):
            part = step / steps
            self.touch(
                "Move",
                *((a[0] + (b[0] - a[0]) * part, a[1] + (b[1] - a[1]) * part) for a, b in ways),
            )
        self.touch("End")

    def tap(self, share: float, row: float) -> None:
        """At once, however slow this program is."""
        box = self.box
        x, y = box["x"] + share * box["width"], box["y"] + row * ROW + ROW / 2
        self.page.touchscreen.tap(x, y)

    def look(self, share: float, row: float) -> str:
        """What a long press tells; the menu that comes behind it is closed."""
        self.touch("Start", (share, row))
        tooltip = self.page.locator(".tooltip-name")
        expect(tooltip).to_be_visible()
        name = tooltip.inner_text()
        self.touch("End")
        expect(self.page.get_by_role("menu")).to_be_visible()
        # It listens when it was painted.
        self.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))"
        )
        self.page.keyboard.press("Escape")
        expect(self.page.get_by_role("menu")).to_have_count(0)
        return name


@pytest.fixture
def hand(site: Site) -> Hand:
    return Hand(site.open("?type=cpu&pane=flame", touch=True))


def test_a_long_press_looks_and_then_offers_the_menu(hand: Hand) -> None:
    hand.touch("Start", (0.03, 4))
    tooltip = hand.page.locator(".tooltip")
    expect(tooltip).to_contain_text("main.(*server).checkout")
    expect(tooltip).to_contain_text("checkout/server.go:88")
    picture(hand.page, "touch-tooltip-light")
    hand.touch("End")
    expect(tooltip).to_have_count(0)
    hand.page.get_by_role("menuitem", name="Focus on subtree").tap()
    expect(hand.page.locator(".trail")).to_contain_text("main.(*server).checkout")
    settled(hand.page)


def test_a_tap_zooms_and_reset_takes_it_back(hand: Hand) -> None:
    hand.tap(0.03, 4)
    expect(hand.page.locator(".details strong")).to_have_text("main.(*server).checkout")
    hand.page.wait_for_url("**zoom=*")
    assert hand.look(0.97, 4) == "main.(*server).checkout"
    hand.page.get_by_role("button", name="Reset view").tap()
    assert hand.look(0.97, 4) != "main.(*server).checkout"


def test_two_fingers_zoom_one_moves_and_reset_takes_both_back(hand: Hand) -> None:
    reset = hand.page.get_by_role("button", name="Reset view")
    expect(reset).to_be_disabled()
    left, right = hand.look(0.02, 1), hand.look(0.97, 1)
    assert left != right
    # Two fingers near the right end, spread: what lies under each stays there, and the left end is out of sight.
    hand.stroke(((0.9, 2), (0.05, 2)), ((0.97, 2), (0.95, 2)))
    expect(reset).to_be_enabled()
    assert hand.look(0.02, 1) != left
    assert hand.look(0.95, 1) == right
    # Dragged to the right again and again, the left end comes back.
    for _ in range(25):
        hand.stroke(((0.1, 2), (0.9, 2)), steps=3)
    assert hand.look(0.02, 1) == left
    assert "zoom=" not in hand.page.url
    reset.tap()
    expect(reset).to_be_disabled()
    assert (hand.look(0.02, 1), hand.look(0.97, 1)) == (left, right)


def test_a_finger_that_moved_neither_looks_nor_zooms(hand: Hand) -> None:
    hand.touch("Start", (0.5, 2))
    hand.touch("Move", (0.6, 2))
    time.sleep(LONG_S)
    expect(hand.page.locator(".tooltip")).to_have_count(0)
    hand.touch("End")
    expect(hand.page.get_by_role("menu")).to_have_count(0)
    assert "zoom=" not in hand.page.url


def test_up_and_down_is_the_browsers_own_scrolling(site: Site) -> None:
    page = site.open("?type=cpu&pane=flame", touch=True, size={"width": 420, "height": 560})
    graph(page).scroll_into_view_if_needed()
    hand = Hand(page)
    assert graph(page).evaluate("box => box.scrollHeight > box.clientHeight")
    hand.stroke(((0.5, 6), (0.5, 0)))
    # A function, not a text: the page's policy forbids what evaluates texts.
    page.wait_for_function("() => document.querySelector('.flame-scroller').scrollTop > 0")
