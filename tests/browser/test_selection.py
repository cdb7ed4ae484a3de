"""What is looked at: filters, windows, timeline, comparison, links; and what is said when there is nothing."""

import re
import time

from playwright.sync_api import Page, Route, expect

from tests.browser.watched import (
    NARROW,
    Site,
    colours,
    failing,
    graph,
    picture,
    select_down,
    settled,
    table_rows,
)


def _choose(page: Page, label: str, value: str) -> None:
    page.get_by_role("button", name=re.compile(f"^{label}")).click()
    page.get_by_role("checkbox", name=re.compile(value)).check()
    page.keyboard.press("Escape")
    settled(page)


def test_filters_narrow_every_view(page: Page) -> None:
    _choose(page, "Namespace", "payments")
    assert "match=namespace%3Dpayments" in page.url
    expect(page.locator(".rows-body")).not_to_contain_text("main.(*server)")
    expect(page.locator(".rows-body")).to_contain_text("divideKnuth")
    _choose(page, "Pod", "ledger-6c9f7d0")
    expect(page.get_by_role("button", name=re.compile("^Pod"))).to_contain_text("ledger-6c9f7d0")
    page.get_by_role("button", name="Executables").click()
    expect(page.locator(".rows-body")).to_contain_text("libjvm.so")
    expect(page.locator(".rows-body")).not_to_contain_text("checkout")
    page.get_by_role("button", name="Traces").click()
    expect(page.locator(".trace-list li")).to_have_count(5)
    page.get_by_role("button", name=re.compile("^Namespace")).click()
    page.get_by_role("button", name="All", exact=True).click()
    assert "namespace" not in page.url


def test_a_menu_searches_its_values(page: Page) -> None:
    page.get_by_role("button", name=re.compile("^Workload")).click()
    values = page.locator(".values li")
    expect(values).to_have_count(4)
    page.get_by_role("searchbox", name="Find workload").fill("gres")
    expect(values).to_have_count(1)
    expect(values).to_contain_text("postgres")


def test_windows(page: Page) -> None:
    for name, fragment in (("1 min", "now-1m"), ("5 min", "now-5m"), ("1 h", "now-1h")):
        page.get_by_role("button", name=name, exact=True).click()
        assert f"from={fragment}" in page.url
        settled(page)
    page.get_by_role("button", name="15 min", exact=True).click()
    assert "from=" not in page.url
    page.get_by_role("button", name="Custom window").click()
    end = time.time() - 300
    stamp = "%Y-%m-%dT%H:%M:%S"
    page.get_by_label("From", exact=True).fill(time.strftime(stamp, time.localtime(end - 120)))
    page.get_by_label("To", exact=True).fill(time.strftime(stamp, time.localtime(end)))
    page.get_by_role("button", name="Show", exact=True).click()
    assert f"from={int(end - 120)}000&to={int(end)}000" in page.url
    settled(page)
    expect(page.get_by_role("button", name="Custom window")).to_contain_text("+ 2 min")


def _total(page: Page) -> float:
    label = graph(page).get_attribute("aria-label") or ""
    found = re.search(r"([\d,.]+) seconds", label)
    assert found, label
    return float(found[1].replace(",", ""))


def test_brushing_the_timeline_looks_at_a_part_of_the_window(page: Page) -> None:
    expect(page.locator(".timeline-box")).to_have_attribute("data-ready", "yes")
    assert colours(page, ".timeline-box canvas") > 3
    whole = _total(page)
    box = page.locator(".timeline-box").bounding_box()
    assert box
    y = box["y"] + 40
    page.mouse.move(box["x"] + box["width"] * 0.55, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.65, y, steps=4)
    page.mouse.move(box["x"] + box["width"] * 0.75, y, steps=4)
    page.mouse.up()
    expect(page.locator(".brush-text")).to_contain_text("(3 min")
    assert "brush=" in page.url
    settled(page)
    assert 0 < _total(page) < whole / 2
    page.get_by_role("button", name="Zoom in").click()
    assert "brush=" not in page.url
    assert "from=" in page.url
    settled(page)
    page.go_back()
    expect(page.locator(".brush-text")).to_be_visible()
    page.get_by_role("button", name="Whole window").click()
    settled(page)
    expect(graph(page)).to_have_attribute("aria-label", re.compile(f"{whole:,.2f}"))


def test_the_timeline_splits_by_a_label(page: Page) -> None:
    page.get_by_label("Split by").select_option(label="Workload")
    legend = page.locator(".timeline .legend")
    for workload in ("checkout", "ledger", "suggest", "postgres"):
        expect(legend).to_contain_text(workload)
    assert "by=workload" in page.url


def test_comparison_of_two_windows(site: Site) -> None:
    page = site.open("?type=cpu&from=now-5m&to=now")
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("group", name="Baseline of the comparison")).to_be_visible()
    expect(page.get_by_role("columnheader", name="Change")).to_be_visible()
    settled(page)
    rows = {row[0]: row[3] for row in table_rows(page)}
    assert rows["regexp.(*machine).step"].startswith("+")
    assert rows["java.math.MutableBigInteger.divideKnuth"].startswith("-")
    expect(page.get_by_role("img", name=re.compile("blue is less"))).to_be_visible()
    assert re.search(r"\([+-][\d.]+ pp\)$", select_down(page, 2))
    picture(page, "diff-light")
    picture(site.open("?" + page.url.partition("/?")[2], dark=True), "diff-dark")
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("columnheader", name="Change")).to_have_count(0)


def test_comparison_of_two_filters(site: Site) -> None:
    link = "?type=cpu&match=pod%3Dcheckout-6c9f7d0&base_from=now-15m&base_to=now&base_match=pod%3Dledger-6c9f7d0"
    page = site.open(link)
    changes = {row[0]: row[3] for row in table_rows(page)}
    assert changes["encoding/json.unquoteBytes"].startswith("+")
    page.get_by_role("columnheader", name="Change").get_by_role("button").click()
    settled(page)
    assert any(row[3].startswith("-") for row in table_rows(page))


def test_a_link_shows_the_same_to_others(site: Site) -> None:
    page = site.open()
    page.get_by_role("button", name="Custom window").click()
    page.get_by_role("button", name="Show", exact=True).click()
    page.get_by_role("button", name="Flame", exact=True).click()
    page.get_by_role("button", name="Package", exact=True).click()
    page.get_by_role("searchbox").fill("json")
    select_down(page, 4)
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    page.keyboard.press("Enter")
    settled(page)
    page.mouse.move(3, 3)
    page.evaluate("document.activeElement.blur()")
    other = site.open("?" + page.url.partition("/?")[2])
    expect(other.get_by_role("searchbox")).to_have_value("json")
    expect(other.get_by_role("button", name="Package", exact=True)).to_have_attribute(
        "aria-pressed", "true"
    )
    assert table_rows(other) == table_rows(page)
    assert graph(other).get_attribute("aria-label") == graph(page).get_attribute("aria-label")
    assert other.url == page.url


def test_nothing_found_says_what_to_do(site: Site) -> None:
    page = site.open("?type=cpu&match=pod%3Dgone")
    expect(page.get_by_role("heading", name="No samples with these filters")).to_be_visible()
    picture(page, "empty-light")
    page.get_by_role("button", name="Remove the filters").click()
    expect(graph(page)).to_be_visible()
    long_ago = site.open("?type=cpu&from=1700000000000&to=1700000600000")
    expect(long_ago.get_by_role("heading", name="No samples in this window")).to_be_visible()
    long_ago.get_by_role("button", name="Show the newest samples").click()
    expect(graph(long_ago)).to_be_visible()


def test_errors_say_what_happened_and_the_page_recovers(site: Site) -> None:
    site.expected += ["status of 504", "status of 503", "ERR_"]
    page = site.open()
    slow = {"title": "The query took too long", "detail": "Choose a shorter window."}

    def answer(route: Route) -> None:
        failing(route, 504, slow)

    page.route("**/api/v1/flamegraph?*", answer)
    page.get_by_role("button", name="1 h", exact=True).click()
    expect(page.get_by_text("Choose a shorter window.")).to_be_visible()
    page.unroute("**/api/v1/flamegraph?*", answer)
    page.keyboard.press("r")
    expect(page.get_by_text("Choose a shorter window.")).to_have_count(0)
    page.route("**/api/v1/**", lambda route: route.abort())
    page.reload()
    expect(page.get_by_role("heading", name="The backend does not answer")).to_be_visible()
    page.unroute_all()
    expect(graph(page)).to_be_visible()


def test_functions_executables_and_traces(site: Site) -> None:
    functions = site.open("?type=cpu&view=functions")
    expect(functions.get_by_role("columnheader", name="Mapping")).to_be_visible()
    assert ["regexp.(*machine).step", "Go", "regexp/exec.go:250", "checkout"] in [
        row[:4] for row in table_rows(functions)
    ]
    picture(functions, "functions-light")
    executables = site.open("?type=cpu&view=executables")
    expect(executables.locator(".rows-body")).to_contain_text("postgres")
    picture(executables, "executables-light")
    executables.get_by_role("button", name="libjvm.so").click()
    expect(executables.locator(".rows-body")).to_contain_text("G1ParTask::work")
    traces = site.open("?type=cpu&view=traces")
    traces.get_by_role("button", name=re.compile("divideKnuth")).first.click()
    frames = traces.locator(".trace li")
    expect(frames.first).to_contain_text("java.math.MutableBigInteger.divideKnuth")
    expect(frames.last).to_contain_text("start_thread")
    expect(traces.locator(".trace header")).to_contain_text("workload=ledger")
    picture(traces, "traces-light")


def test_a_narrow_window(site: Site) -> None:
    page = site.open("?type=cpu", size=NARROW)
    expect(graph(page)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    picture(page, "narrow-light")
