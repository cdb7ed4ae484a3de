"""Exports of the backend, and files that are dropped on the page: read there, sent nowhere."""

import base64
import json
from pathlib import Path

import pytest
from playwright.sync_api import Download, Page, Route, expect

from tests.browser.watched import Site, graph, picture, select_down, table_rows


def _download(page: Page, name: str, folder: Path) -> Path:
    page.get_by_role("button", name="Export").click()
    with page.expect_download() as waiting:
        page.get_by_role("link", name=name).click()
    download: Download = waiting.value
    path = folder / download.suggested_filename
    download.save_as(path)
    return path


@pytest.mark.parametrize(
    ("name", "series"), [("pprof", "cpu"), ("speedscope", "cpu")], ids=["pprof", "speedscope"]
)
def test_what_was_exported_can_be_opened_again(
    site: Site, tmp_path: Path, name: str, series: str
) -> None:
    page = site.open("?type=cpu")
    exact = table_rows(page)
    path = _download(page, name, tmp_path)
    site.requests.clear()
    page.locator("input[type=file]").set_input_files(path)
    expect(page.get_by_text("Read in this browser; nothing was uploaded.")).to_be_visible()
    expect(page.get_by_role("button", name="Close file")).to_be_visible()
    expect(page.get_by_text(path.name, exact=True)).to_be_visible()
    assert table_rows(page)[: len(exact)] == exact
    assert select_down(page, 4) == "main.(*server).checkout"
    page.keyboard.press("s")
    expect(page.get_by_role("heading", name="Callees")).to_be_visible()
    picture(page, f"file-{name}")
    page.get_by_role("button", name="Reset view").click()
    select_down(page, 4)
    page.keyboard.press("f")
    expect(page.locator(".trail")).to_contain_text("net/http.HandlerFunc.ServeHTTP")
    # The worker that reads it is a part of the page. The browser itself may ask for the icon again when the address changes.
    parts = (f"{site.origin}/assets/", f"{site.origin}/favicon.svg")
    asked = [one for one in site.requests if not one[1].startswith(parts)]
    assert asked == [], "a file is looked at without asking anybody"
    page.get_by_role("button", name="Close file").click()
    expect(page.locator(".timeline")).to_be_visible()


@pytest.mark.parametrize(
    ("name", "begins"), [("Collapsed stacks", b""), ("SVG", b"<")], ids=["collapsed", "svg"]
)
def test_other_exports_have_the_same_content(
    page: Page, tmp_path: Path, name: str, begins: bytes
) -> None:
    content = _download(page, name, tmp_path).read_bytes()
    assert content.startswith(begins)
    assert b"main.(*server).checkout" in content


def _drop(page: Page, name: str, content: bytes) -> None:
    """Drops a file on the page as a file manager does."""
    data = page.evaluate_handle(
        """([name, text]) => {
             const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
             const data = new DataTransfer();
             data.items.add(new File([bytes], name));
             return data;
           }""",
        [name, base64.b64encode(content).decode()],
    )
    page.dispatch_event("body", "dragover", {"dataTransfer": data})
    expect(page.get_by_text("Drop a pprof or speedscope file")).to_be_visible()
    page.dispatch_event("body", "drop", {"dataTransfer": data})
    expect(page.get_by_text("Drop a pprof or speedscope file")).to_have_count(0)


SPEEDSCOPE = {
    "$schema": "https://www.speedscope.app/file-format-schema.json",
    "shared": {"frames": [{"name": "main"}, {"name": "<b onclick=alert(1)>work"}]},
    "profiles": [
        {"type": "sampled", "name": "one", "unit": "seconds", "startValue": 0, "endValue": 3, "samples": [[0], [0, 1]], "weights": [1, 2]}
    ],
}  # fmt: skip


def test_a_dropped_file_is_shown(page: Page) -> None:
    _drop(page, "x.speedscope.json", json.dumps(SPEEDSCOPE).encode())
    # The name alone is shown while the file is being read, too.
    expect(page.get_by_role("button", name="Close file")).to_be_visible()
    assert table_rows(page) == [
        ["<b onclick=alert(1)>work", "2.00 seconds", "2.00 seconds"],
        ["main", "1.00 seconds", "3.00 seconds"],
    ]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.txt", b"these are no stacks", "cannot be shown"),
        ("a.json", b'{"shared": 3}', "no object"),
        ("a.pb.gz", b"\x1f\x8b\x08\x00broken", "damaged"),
        ("empty", b"", "empty"),
    ],
    ids=["text", "json", "gzip", "empty"],
)
def test_a_file_that_cannot_be_read_says_why(
    page: Page, name: str, content: bytes, reason: str
) -> None:
    _drop(page, name, content)
    expect(page.locator(".toast")).to_contain_text(f"{name} cannot be shown")
    expect(page.locator(".toast")).to_contain_text(reason)
    expect(graph(page)).to_be_visible()


def test_a_large_file_is_read_beside_the_page_and_can_be_given_up(
    site: Site, tmp_path: Path
) -> None:
    """Its worker is held back until the page was seen to go on without it."""
    path = tmp_path / "large.speedscope.json"
    stacks = 60_000
    frames = [{"name": f"function_{number}", "file": f"{number % 50}.c"} for number in range(3000)]
    samples = [[n % 7, 7 + n % 311, 400 + n % 2600] for n in range(stacks)]
    profile = {
        "type": "sampled",
        "name": "large",
        "unit": "milliseconds",
        "startValue": 0,
        "endValue": 1,
    }
    profiles = [{**profile, "samples": samples, "weights": [1] * stacks}]
    path.write_text(json.dumps({"shared": {"frames": frames}, "profiles": profiles}))
    page = site.open("?type=cpu")
    held: list[Route] = []
    page.route("**/assets/read_file-*.js", lambda route: held.append(route))
    bar = page.locator(".opening")
    page.locator("input[type=file]").set_input_files(path)
    expect(bar).to_contain_text("large.speedscope.json")
    expect(bar).to_contain_text("Reading: 0 %")
    picture(page, "opening-light")
    assert select_down(page, 4) == "main.(*server).checkout"
    bar.get_by_role("button", name="Cancel").click()
    expect(bar).to_have_count(0)
    expect(page.locator(".query-bar.file")).to_have_count(0)
    page.unroute("**/assets/read_file-*.js")
    page.locator("input[type=file]").set_input_files(path)
    expect(page.get_by_text("Read in this browser; nothing was uploaded.")).to_be_visible()
    expect(bar).to_have_count(0)
    total = page.locator(".query-bar.file option").first
    expect(total).to_have_text("large: 60.00 seconds")
