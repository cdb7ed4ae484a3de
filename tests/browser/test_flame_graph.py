"""The flame graph and the table beside it, operated as people do."""

import re

from playwright.sync_api import Page, expect

from tests.browser.watched import (
    Site,
    colours,
    graph,
    picture,
    select_down,
    settled,
    table_rows,
)

SECONDS = re.compile(r"< 0\.01 seconds|[\d,]+\.\d\d seconds|0 seconds")


def _self_ns(text: str) -> float:
    return 0.0 if text.startswith("<") else float(text.split()[0].replace(",", ""))


def test_the_page_opens_with_table_and_flame_graph(page: Page) -> None:
    expect(page.get_by_role("columnheader", name="Location")).to_be_visible()
    expect(page.get_by_text("Frame width represents CPU time per function")).to_be_visible()
    assert colours(page) > 20
    rows = table_rows(page)
    assert len(rows) > 10
    assert all(SECONDS.fullmatch(self) and SECONDS.fullmatch(total) for _, self, total in rows)
    picture(page, "both-light")


def test_the_table_sorts_by_each_column_both_ways(page: Page) -> None:
    values = [_self_ns(row[1]) for row in table_rows(page)]
    assert values == sorted(values, reverse=True)
    header = page.get_by_role("columnheader", name="Self")
    expect(header).to_have_attribute("aria-sort", "descending")
    header.get_by_role("button").click()
    expect(header).to_have_attribute("aria-sort", "ascending")
    values = [_self_ns(row[1]) for row in table_rows(page)]
    assert values == sorted(values)
    page.get_by_role("columnheader", name="Total").get_by_role("button").click()
    settled(page)
    values = [_self_ns(row[2]) for row in table_rows(page)]
    assert values == sorted(values, reverse=True)
    page.get_by_role("columnheader", name="Location").get_by_role("button").click()
    settled(page)
    names = [row[0] for row in table_rows(page)]
    assert names == sorted(names)


def test_search_filters_table_and_flame_graph(page: Page) -> None:
    before = colours(page)
    page.keyboard.press("/")
    page.keyboard.type("tcp_")
    expect(page.locator(".table")).to_have_attribute("data-rows", "5")
    assert all("tcp_" in row[0] for row in table_rows(page))
    expect(page.locator(".found")).to_have_text(re.compile(r"^5 functions, \d+\.\d %$"))
    assert colours(page) < before, "what does not match is drawn in one muted colour"
    page.get_by_role("searchbox").fill("/^main\\.\\(\\*cart/")
    expect(page.locator(".table")).to_have_attribute("data-rows", "2")
    page.get_by_role("searchbox").fill("/(/")
    expect(page.locator(".found")).to_have_text("not a valid expression")
    page.get_by_role("searchbox").fill("no such thing")
    expect(page.get_by_text("No function matches the search.")).to_be_visible()


def test_panes(page: Page) -> None:
    page.get_by_role("button", name="Table", exact=True).click()
    expect(graph(page)).to_have_count(0)
    expect(page.get_by_role("columnheader", name="Mapping")).to_be_visible()
    settled(page)
    picture(page, "table-light")
    page.get_by_role("button", name="Flamegraph", exact=True).click()
    expect(page.locator(".table")).to_have_count(0)
    expect(graph(page)).to_be_visible()
    page.keyboard.press("b")
    expect(page.locator(".table")).to_have_count(1)
    expect(graph(page)).to_be_visible()


def test_the_tooltip_tells_self_total_share_source_and_mapping(page: Page) -> None:
    assert select_down(page, 4) == "main.(*server).checkout"
    box = graph(page).bounding_box()
    assert box
    page.mouse.move(box["x"] + 30, box["y"] + 4 * 20 + 8)
    tooltip = page.locator(".tooltip")
    expect(tooltip).to_contain_text("main.(*server).checkout")
    for fact in ("Total", "Self", "%", "checkout/server.go:88", "/srv/checkout", "Go"):
        expect(tooltip).to_contain_text(fact)
    page.mouse.move(5, 5)
    expect(tooltip).to_have_count(0)


def test_a_click_zooms_and_reset_view_takes_it_back(page: Page) -> None:
    reset = page.get_by_role("button", name="Reset view")
    expect(reset).to_be_disabled()
    box = graph(page).bounding_box()
    assert box
    page.mouse.click(box["x"] + 30, box["y"] + 4 * 20 + 8)
    expect(page.locator(".details strong")).to_have_text("main.(*server).checkout")
    assert "zoom=" in page.url
    # The zoomed frame fills the width: its right end is the same frame.
    page.mouse.move(box["x"] + box["width"] - 30, box["y"] + 4 * 20 + 8)
    expect(page.locator(".tooltip")).to_contain_text("main.(*server).checkout")
    reset.click()
    expect(reset).to_be_disabled()
    assert "zoom=" not in page.url


def test_keys_move_zoom_and_leave(page: Page) -> None:
    assert select_down(page, 1) == "runtime.goexit"
    page.keyboard.press("ArrowRight")
    sibling = graph(page).get_attribute("data-selected")
    assert sibling != "runtime.goexit"
    page.keyboard.press("ArrowLeft")
    expect(graph(page)).to_have_attribute("data-selected", "runtime.goexit")
    page.keyboard.press("ArrowDown")
    expect(graph(page)).to_have_attribute("data-selected", "net/http.(*conn).serve")
    page.keyboard.press("Enter")
    assert "zoom=" in page.url
    page.keyboard.press("Escape")
    assert "zoom=" not in page.url
    page.keyboard.press("ArrowUp")
    expect(graph(page)).to_have_attribute("data-selected", "runtime.goexit")
    expect(page.locator("[aria-live=polite]")).to_contain_text("Total")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_focus_on_subtree_shows_its_own_table(page: Page) -> None:
    assert select_down(page, 4) == "main.(*server).checkout"
    page.get_by_role("button", name=re.compile("Focus on subtree")).first.click()
    expect(page.locator(".trail")).to_contain_text("net/http.(*conn).serve")
    expect(page.locator(".table")).not_to_have_attribute("data-rows", "75")
    settled(page)
    functions = {row[0] for row in table_rows(page)}
    assert "main.(*cart).discount" in functions
    assert "exec_simple_query" not in functions
    assert "path=" in page.url
    page.locator(".trail").get_by_role("button", name="all", exact=True).click()
    expect(page.locator(".trail")).to_have_count(0)
    expect(page.locator(".rows-body")).to_contain_text("divideKnuth")


def test_sandwich_shows_callers_and_callees(page: Page) -> None:
    page.get_by_role("searchbox").fill("do_syscall_64")
    row = page.locator(".rows-body .row").first
    row.hover()
    row.get_by_role("button", name=re.compile("Callers and callees of do_syscall_64")).click()
    page.get_by_role("searchbox").fill("")
    expect(page.get_by_role("heading", name="Callers")).to_be_visible()
    expect(page.get_by_role("heading", name="Callees")).to_be_visible()
    expect(page.locator(".sandwich-middle")).to_contain_text("do_syscall_64")
    settled(page)
    halves = page.locator(".half .flame-scroller")
    assert [int(halves.nth(i).get_attribute("data-nodes") or 0) > 5 for i in (0, 1)] == [True, True]
    picture(page, "sandwich-light")
    page.go_back()
    expect(page.locator(".sandwich")).to_have_count(0)


def test_the_menu_of_a_frame(page: Page) -> None:
    box = graph(page).bounding_box()
    assert box
    page.mouse.click(box["x"] + 30, box["y"] + 4 * 20 + 8, button="right")
    menu = page.get_by_role("menu")
    expect(menu).to_contain_text("main.(*server).checkout")
    menu.get_by_role("menuitem", name="Copy name").click()
    expect(menu).to_have_count(0)
    assert page.evaluate("navigator.clipboard.readText()") == "main.(*server).checkout"
    page.mouse.click(box["x"] + 30, box["y"] + 4 * 20 + 8, button="right")
    menu.get_by_role("menuitem", name="Mark this function").click()
    assert "function=" in page.url
    expect(page.locator(".row.picked .name")).to_have_text("main.(*server).checkout")


def test_how_it_is_drawn_can_be_chosen(page: Page) -> None:
    before = page.screenshot()
    for name, fragment in (
        ("Flame", "orientation=flame"),
        ("Tail first", "align=tail"),
        ("Package", "colour=package"),
    ):
        page.get_by_role("button", name=name, exact=True).click()
        assert fragment in page.url
        after = page.screenshot()
        assert after != before, name
        before = after
    expect(page.get_by_role("list", name="Colours")).to_contain_text("encoding/json")


def test_lock_waits_have_their_own_hint(site: Site) -> None:
    page = site.open("?pane=flame")
    page.get_by_role("combobox", name="Profile").select_option(label="Lock wait")
    expect(
        page.get_by_text("Frame width represents time spent waiting on locks per function")
    ).to_be_visible()
    settled(page)
    assert select_down(page, 5) == "sync.(*Mutex).lockSlow"


def test_dark_and_light(site: Site) -> None:
    page = site.open(dark=True)
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    picture(page, "both-dark")
    page.get_by_role("button", name="Light colours").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
