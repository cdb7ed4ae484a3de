"""Every view against a plain computation over what was sent, for one who sees all and for two tenants."""

import gzip
import io
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from flameherd_agent.pipeline.otlp import encode
from flameherd_backend.api.endpoints import ENDPOINTS, PREFIX
from flameherd_backend.api.labels import bucket_ms
from prometheus_client.parser import text_string_to_metric_families

from tests.backend import truth as truths
from tests.backend.running import RunningBackend, request
from tests.backend.truth import Truth, frame_names, ids, read_tree

AGENT, ADMIN, SHOP, BANK = (
    f"{name}-token-0123456789" for name in ("agent", "admin", "shop", "bank")
)
TOKENS = f"""\
agent {AGENT} *    -
admin {ADMIN} -    *
shop  {SHOP}  shop shop
bank  {BANK}  bank bank
"""
SEES = {ADMIN: {"shop", "bank"}, SHOP: {"shop"}, BANK: {"bank"}}


class Site:
    """A backend with profiles of two tenants, and what they say."""

    def __init__(self, backend: RunningBackend, truth: Truth) -> None:
        self.backend = backend
        self.truth = truth

    def seen(self, token: str) -> Truth:
        return self.truth.where(lambda labels: labels["namespace"] in SEES[token])

    def get(self, view: str, token: str = ADMIN, /, **parameters: Any) -> Any:
        given = {"from": "now-1h", "type": "cpu", **parameters}
        given = {name: value for name, value in given.items() if value is not None}
        answer = self.backend.get(view, token, **given)
        assert answer.status == 200, answer.body
        assert answer.headers["cache-control"] == "no-store"
        return answer.json()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("api")
    (folder / "tokens").write_text(TOKENS)
    made, truth = truths.make(1, ["shop", "bank"])
    with RunningBackend(folder / "store", ["--tokens", str(folder / "tokens")]) as backend:
        answer = backend.post(encode(made).SerializeToString(), Authorization=f"Bearer {AGENT}")
        assert (answer.status, answer.body) == (200, b"")
        yield Site(backend, truth)
        assert "ERROR" not in backend.said()


@pytest.mark.parametrize("token", SEES)
def test_the_flame_graph_is_the_tree_of_what_may_be_seen(site: Site, token: str) -> None:
    seen = site.seen(token)
    answer = site.get("flamegraph", token, max_nodes=50_000)
    assert read_tree(answer, answer["nodes"]) == seen.tree()
    assert answer["pruned"] == {"nodes": 0, "value": 0}
    assert (answer["total"], answer["unit"]) == (seen.total(), "nanoseconds")


def test_a_pruned_flame_graph_keeps_the_largest_nodes_and_says_what_is_missing(site: Site) -> None:
    whole, tree = site.truth.tree(), site.get("flamegraph", max_nodes=100)
    kept = read_tree(tree, tree["nodes"])
    assert len(kept) == 100
    assert all(whole[path] == sizes for path, sizes in kept.items())
    smallest = min(value for value, _ in kept.values())
    assert all(value <= smallest for path, (value, _) in whole.items() if path not in kept)
    assert tree["pruned"]["nodes"] == len(whole) - 100
    assert tree["pruned"]["value"] == site.truth.total() - sum(own for _, own in kept.values())


@pytest.mark.parametrize("token", SEES)
@pytest.mark.parametrize("sort", ["self", "total", "name"])
def test_functions_have_their_self_and_total(site: Site, token: str, sort: str) -> None:
    expected = site.seen(token).functions()
    answer = site.get("functions", token, sort=sort)
    frames = frame_names(answer)
    rows = [
        (frames[frame], own, total)
        for frame, own, total in zip(
            *(answer["rows"][key] for key in ("frame", "self", "total")), strict=True
        )
    ]
    assert {name: (own, total) for name, own, total in rows} == expected
    assert (answer["count"], answer["more"]) == (len(expected), False)
    keys = {
        "self": lambda row: -row[1],
        "total": lambda row: -row[2],
        "name": lambda row: row[0][0],
    }
    assert rows == sorted(rows, key=keys[sort])
    few = site.get("functions", token, sort=sort, limit=3)
    assert (len(few["rows"]["self"]), few["more"], few["count"]) == (3, True, len(expected))


def test_functions_are_searched_in_name_file_and_mapping(site: Site) -> None:
    for text in ("FN1", "/src/2", "m3", "+0x"):
        expected = {
            n for n in site.truth.functions() if any(text.lower() in part.lower() for part in n)
        }
        answer = site.get("functions", search=text)
        assert set(frame_names(answer)[1:]) == expected
        assert expected


@pytest.mark.parametrize("token", [ADMIN, SHOP])
def test_sandwich(site: Site, token: str) -> None:
    seen = site.seen(token)
    known = ids(site.get("functions", token))
    for name in sorted(seen.functions())[::5]:
        answer = site.get("sandwich", token, frame=known[name], max_nodes=50_000)
        callers, callees = seen.sandwich(name)
        assert frame_names(answer)[answer["frame"]] == name
        assert read_tree(answer, answer["callers"]) == callers.tree()
        assert read_tree(answer, answer["callees"]) == callees.tree()
        assert answer["total"] == seen.total()


def test_focus_on_a_subtree_selects_the_stacks_below_it(site: Site) -> None:
    known = ids(site.get("functions"))
    paths = sorted((path for path in site.truth.tree() if len(path) in (1, 2, 3)), key=len)
    for path in [*paths[:5], *paths[-5:]]:
        below = site.truth.under(path)
        given = ".".join(known[name] for name in path)
        answer = site.get("flamegraph", path=given, max_nodes=50_000)
        assert read_tree(answer, answer["nodes"]) == below.tree()
        assert site.get("timeline", path=given)["total"] == below.total()
        assert site.get("functions", path=given)["total"] == below.total()


@pytest.mark.parametrize("token", SEES)
def test_executables(site: Site, token: str) -> None:
    expected = site.seen(token).mappings()
    answer = site.get("executables", token)
    text = answer["strings"]
    rows = answer["rows"]
    found = {
        text[path]: (own, total, functions, unnamed)
        for path, own, total, functions, unnamed in zip(
            *(rows[key] for key in ("path", "self", "total", "functions", "unnamed")), strict=True
        )
    }
    assert found == expected
    assert rows["self"] == sorted(rows["self"], reverse=True)
    for name, path, build_id in zip(
        *(rows[key] for key in ("name", "path", "build_id")), strict=True
    ):
        assert text[path] == f"/usr/bin/{text[name]}"
        assert text[build_id] == f"{int(text[name][1:]):040x}"


@pytest.mark.parametrize("token", SEES)
def test_traces_are_the_distinct_stacks(site: Site, token: str) -> None:
    expected: Counter[tuple[Any, ...]] = Counter()
    for sample in site.seen(token).samples:
        expected[sample.stack] += sample.value
    answer = site.get("traces", token, limit=1000)
    frames = frame_names(answer)
    table = answer["traces"]
    found = {
        tuple(frames[place] for place in reversed(stack)): value
        for stack, value in zip(table["stack"], table["value"], strict=True)
    }
    assert found == dict(expected)
    assert table["value"] == sorted(table["value"], reverse=True)
    assert answer["count"] == len(expected)
    namespaces = {labels.get("namespace") for labels in table["labels"]}
    assert namespaces <= SEES[token] | {None}
    recent = site.get("traces", token, sort="recent", limit=1000)["traces"]
    assert recent["last"] == sorted(recent["last"], reverse=True)
    hit = site.get("traces", token, search="FN7", limit=1000)
    assert hit["count"] == sum(any("fn7" in name[0] for name in stack) for stack in expected)


MATCHES = [
    (["namespace=shop"], lambda labels: labels["namespace"] == "shop"),
    (["pod=shop-0", "pod=bank-1"], lambda labels: labels["pod"] in ("shop-0", "bank-1")),
    (["pod!=shop-0"], lambda labels: labels["pod"] != "shop-0"),
    (
        ["pod!=shop-0", "pod!=shop-1", "thread=w7"],
        lambda labels: labels["namespace"] == "bank" and labels["thread"] == "w7",
    ),
    (["team=t0"], lambda labels: labels["team"] == "t0"),
    (["team!=t0"], lambda labels: labels["team"] != "t0"),
    (["process.pid=7"], lambda labels: labels["process.pid"] == "7"),
    (["process.pid="], lambda labels: False),
    (["cluster="], lambda labels: True),
    (["nothing="], lambda labels: True),
    (["nothing=x"], lambda labels: False),
    (["service=it's \\'odd\\ \n\t\0ü"], lambda labels: False),
]


@pytest.mark.parametrize(("matches", "keep"), MATCHES)
def test_filters(site: Site, matches: list[str], keep: Any) -> None:
    expected = site.truth.where(keep)
    answer = site.get("flamegraph", match=matches, max_nodes=50_000)
    assert answer["total"] == expected.total()
    if expected.samples:
        assert read_tree(answer, answer["nodes"]) == expected.tree()
    else:
        assert answer["nodes"]["value"] == [0]
    assert site.get("timeline", match=matches)["total"] == expected.total()


@pytest.mark.parametrize("token", SEES)
@pytest.mark.parametrize(
    "label",
    [
        "namespace",
        "pod",
        "node",
        "service",
        "instance",
        "executable",
        "thread",
        "process.pid",
        "team",
    ],
)
@pytest.mark.parametrize("window", ["now-1h", "now-1d"])
def test_label_values(site: Site, token: str, label: str, window: str) -> None:
    expected = site.seen(token).by(label)
    answer = site.get(f"labels/{label}/values", token, **{"from": window})
    assert {row["value"]: row["total"] for row in answer["values"]} == expected
    one = sorted(expected)[0]
    again = site.get(f"labels/{label}/values", token, match=f"{label}={one}", **{"from": window})
    assert again["values"] == answer["values"]
    searched = site.get(f"labels/{label}/values", token, search=one.upper(), **{"from": window})
    assert [row["value"] for row in searched["values"]] == [
        row["value"] for row in answer["values"] if one.lower() in row["value"].lower()
    ]
    counted = {
        row["name"]: row["values"]
        for row in site.get("labels", token, **{"from": window})["labels"]
    }
    if window == "now-1h" or label not in ("thread", "process.pid"):
        assert counted[label] == len(expected)


@pytest.mark.parametrize("by", [None, "namespace", "team", "thread"])
@pytest.mark.parametrize("points", [150, 240, 1000])
def test_the_timeline_spreads_values_over_their_span(
    site: Site, by: str | None, points: int
) -> None:
    answer = site.get("timeline", points=points, by=by)
    start, step = answer["start"] * 10**6, answer["step"] * 10**6
    assert answer["step"] % 60_000, "in buckets of whole minutes a value counts where it begins"
    expected: dict[str, Counter[int]] = {}
    for sample in site.truth.samples:
        series = expected.setdefault(sample.labels[by] if by else "", Counter())
        done = 0
        edge = (sample.ts - start) // step
        while done < sample.value:
            end = min(1.0, ((edge + 1) * step + start - sample.ts) / 1e10)
            came = round(sample.value * end)
            series[edge] += came - done
            done = came
            edge += 1
    found = {series["label"]: series for series in answer["series"]}
    assert set(found) == set(expected)
    for label, series in found.items():
        assert len(series["values"]) <= points + 1
        assert series["total"] == sum(series["values"]) == sum(expected[label].values())
        for bucket, value in enumerate(series["values"]):
            # Halves may round either way on each edge of each sample.
            assert abs(value - expected[label][bucket]) <= 2 * len(site.truth.samples)
    assert answer["total"] == site.truth.total()
    assert answer["rest"] is None


def test_the_timeline_puts_small_series_together(site: Site) -> None:
    whole = site.get("timeline", by="pod")
    few = site.get("timeline", by="pod", limit=1)
    assert few["series"] == whole["series"][:1]
    rest = [
        sum(values)
        for values in zip(*(series["values"] for series in whole["series"][1:]), strict=True)
    ]
    assert few["rest"] == rest


@pytest.mark.parametrize("by", [None, "namespace", "thread"])
@pytest.mark.parametrize("step", [60_000, 240_000, 3_600_000])
@pytest.mark.parametrize("cut_ms", [(0, 0), (1, 1), (17_003, 0), (59_999, 30_000)])
def test_in_buckets_of_minutes_a_value_counts_where_it_begins(
    site: Site, by: str | None, step: int, cut_ms: tuple[int, int]
) -> None:
    """Whole minutes come from their sums, the rest of a window that is not aligned from its samples."""
    oldest, newest = (pick(s.ts for s in site.truth.samples) // 10**6 for pick in (min, max))
    begin, end = oldest // 60_000 * 60_000 + cut_ms[0], newest // 60_000 * 60_000 + cut_ms[1]
    answer = site.get("timeline", points=1000, step=step, by=by, **{"from": begin, "to": end})
    assert (answer["start"], answer["step"]) == (begin // step * step, step)
    expected: Counter[tuple[str, int]] = Counter()
    for sample in site.truth.samples:
        if begin <= sample.ts // 10**6 < end:
            label = sample.labels[by] if by else ""
            expected[label, (sample.ts // 10**6 - answer["start"]) // step] += sample.value
    found = {
        (series["label"], bucket): value
        for series in answer["series"]
        for bucket, value in enumerate(series["values"])
        if value
    }
    assert found == expected
    assert answer["total"] == sum(expected.values())


@pytest.mark.parametrize(("points", "step"), [(10, 0), (240, 0), (1000, 5), (240, 3_600_000)])
@pytest.mark.parametrize("window", [1, 1000, 900_000, 3_600_001, 31 * 86_400_000])
def test_buckets_are_at_most_as_many_as_points(points: int, step: int, window: int) -> None:
    width = bucket_ms(0, window, points, step)
    assert width >= max(1, step)
    assert -(-window // width) <= points


def test_a_comparison_has_both_sides(site: Site) -> None:
    shop = site.truth.where(lambda labels: labels["namespace"] == "shop")
    bank = site.truth.where(lambda labels: labels["namespace"] == "bank")
    both = {"match": "namespace=shop", "base_match": "namespace=bank"}
    answer = site.get("flamegraph", max_nodes=50_000, **both)
    assert (answer["total"], answer["base_total"]) == (shop.total(), bank.total())
    of_shop, of_bank = shop.tree(), bank.tree()
    left = read_tree(answer, answer["nodes"])
    right = read_tree(answer, answer["nodes"], "base_value", "base_self")
    assert left == {path: of_shop.get(path, (0, 0)) for path in {*of_shop, *of_bank}}
    assert right == {path: of_bank.get(path, (0, 0)) for path in {*of_shop, *of_bank}}

    rows = site.get("functions", sort="diff", **both)
    frames = frame_names(rows)
    columns = (rows["rows"][key] for key in ("frame", "self", "total", "base_self", "base_total"))
    found = {frames[place]: tuple(rest) for place, *rest in zip(*columns, strict=True)}
    expected = {
        name: shop.functions().get(name, (0, 0)) + bank.functions().get(name, (0, 0))
        for name in {*shop.functions(), *bank.functions()}
    }
    assert found == expected
    changes = [abs(row[0] / shop.total() - row[2] / bank.total()) for row in found.values()]
    assert changes == sorted(changes, reverse=True)

    name = next(iter(shop.functions()))
    sandwich = site.get("sandwich", frame=ids(rows)[name], max_nodes=50_000, **both)
    callers, callees = bank.sandwich(name)
    for half, truth in (("callers", callers), ("callees", callees)):
        found_half = read_tree(sandwich, sandwich[half], "base_value", "base_self")
        assert {path: sizes for path, sizes in found_half.items() if sizes[0]} == {
            path: sizes for path, sizes in truth.tree().items() if sizes[0]
        }


def test_collapsed_is_the_truth(site: Site) -> None:
    answer = site.backend.get("export", ADMIN, type="cpu", format="collapsed", **{"from": "now-1h"})
    assert re.fullmatch(
        r'attachment; filename="flameherd-cpu-\S+\.collapsed\.txt"',
        answer.headers["content-disposition"],
    )
    expected: Counter[str] = Counter()
    for sample in site.truth.samples:
        expected[";".join(name[0] for name in sample.stack)] += sample.value
    lines = (line.rpartition(" ") for line in answer.body.decode().splitlines())
    assert {stack: int(value) for stack, _, value in lines} == dict(expected)


def test_go_tool_pprof_reads_the_same_top_ten(site: Site, tmp_path: Path) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("go is not installed")
    body = site.backend.get("export", ADMIN, type="cpu", format="pprof", **{"from": "now-1h"}).body
    assert gzip.GzipFile(fileobj=io.BytesIO(body)).read(1)
    path = tmp_path / "x.pb.gz"
    path.write_bytes(body)
    done = subprocess.run(
        [go, "tool", "pprof", "-raw", str(path)],
        capture_output=True, text=True, timeout=600, env={**os.environ, "GOFLAGS": "-mod=mod"},
    )  # fmt: skip
    if done.returncode and "no such tool" in done.stderr:
        pytest.skip("this go has no pprof tool")
    assert done.returncode == 0, done.stderr
    top = subprocess.run(
        [go, "tool", "pprof", "-top", "-unit=ns", "-nodecount=10", "-functions", str(path)],
        capture_output=True, text=True, timeout=600, check=True,
    ).stdout  # fmt: skip
    flat: Counter[str] = Counter()
    for name, (own, _) in site.truth.functions().items():
        flat[name[0]] += own
    rows = [
        line.split()
        for line in top.splitlines()
        if line.strip().endswith(tuple(flat)) and "%" in line
    ]
    found = [(row[-1], int(float(row[0].removesuffix("ns")))) for row in rows]
    assert len(found) == 10
    assert found == [(name, flat[name]) for name, _ in found]
    assert (
        sorted((value for _, value in found), reverse=True)
        == sorted(flat.values(), reverse=True)[:10]
    )


def test_speedscope_has_its_shape_and_the_total(site: Site) -> None:
    body = site.backend.get(
        "export", ADMIN, type="cpu", format="speedscope", **{"from": "now-1h"}
    ).json()
    (profile,) = body["profiles"]
    assert body["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert (profile["type"], profile["unit"]) == ("sampled", "nanoseconds")
    assert sum(profile["weights"]) == profile["endValue"] == site.truth.total()
    frames = body["shared"]["frames"]
    expected: Counter[tuple[str, ...]] = Counter()
    for sample in site.truth.samples:
        expected[tuple(name[0] for name in sample.stack)] += sample.value
    found: Counter[tuple[str, ...]] = Counter()
    for stack, weight in zip(profile["samples"], profile["weights"], strict=True):
        found[tuple(frames[place]["name"] for place in stack)] += weight
    assert found == expected


def test_svg_is_xml_without_a_script(site: Site) -> None:
    body = site.backend.get("export", ADMIN, type="cpu", format="svg", **{"from": "now-1h"}).body
    root = ElementTree.fromstring(body)
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert tags == {"svg", "title", "g", "rect", "text"}


TENANT_WORDS = {SHOP: b"bank", BANK: b"shop"}


def _all_requests(site: Site, frame: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every endpoint, in every form that could tell something."""
    for endpoint in ENDPOINTS:
        path = endpoint.path.strip("/")
        base: dict[str, Any] = {"type": "cpu"} if "type" in endpoint.parameters else {}
        if "from" in endpoint.parameters:
            base["from"] = "now-1d"
        if path == "sandwich":
            base["frame"] = frame
        if path == "traces":
            base["limit"] = 1000
        if "{name}" in path:
            for label in (
                "namespace",
                "pod",
                "instance",
                "service",
                "team",
                "thread",
                "k8s.namespace.name",
                "process.pid",
            ):
                yield path.replace("{name}", label), base
                yield path.replace("{name}", label), {**base, "match": "pod!=x"}
        elif path == "export":
            for kind in ("pprof", "speedscope", "collapsed", "svg"):
                yield path, {**base, "format": kind}
        else:
            yield path, base
            if "by" in endpoint.parameters:
                for label in ("namespace", "pod", "team", "k8s.pod.name"):
                    yield path, {**base, "by": label}
            if "base_match" in endpoint.parameters:
                yield path, {**base, "base_match": ""}
                yield path, {**base, "base_from": "now-2d", "base_to": "now"}
            if "sort" in endpoint.parameters:
                yield path, {**base, "sort": endpoint.schemas["sort"]["enum"][1]}
            if "match" in endpoint.parameters:
                yield path, {**base, "match": "namespace!=x"}


@pytest.mark.parametrize("token", TENANT_WORDS)
def test_no_endpoint_shows_another_tenants_frame_label_or_count(tmp_path: Path, token: str) -> None:
    """Two backends: one with both tenants, one with this tenant alone. All answers are the same, byte for byte
    but for times and ids of frames, and nowhere is a word of the other tenant's.
    """
    mine = next(iter(SEES[token]))
    (tmp_path / "tokens").write_text(TOKENS)
    made, _ = truths.make(2, ["shop", "bank"])
    made = [
        each if dict(each.attributes)["k8s.namespace.name"] == mine else _secret(each)
        for each in made
    ]
    answers = []
    for name, sent in (
        ("both", made),
        ("alone", [r for r in made if dict(r.attributes)["k8s.namespace.name"] == mine]),
    ):
        with RunningBackend(tmp_path / name, ["--tokens", str(tmp_path / "tokens")]) as backend:
            assert (
                backend.post(
                    encode(sent).SerializeToString(), Authorization=f"Bearer {AGENT}"
                ).status
                == 200
            )
            site = Site(backend, Truth())
            known = ids(site.get("functions", token))
            frame = known[sorted(known)[0]]
            places = {
                identity: str(place)
                for place, identity in enumerate(known[key] for key in sorted(known))
            }
            found = {}
            for path, parameters in _all_requests(site, frame):
                answer = backend.get(path, token, **parameters)
                text = (
                    gzip.decompress(answer.body) if answer.body[:2] == b"\x1f\x8b" else answer.body
                )
                assert b"secret" not in text, (path, parameters)
                assert TENANT_WORDS[token] not in text.replace(b"flameherd", b""), (
                    path,
                    parameters,
                )
                key = json.dumps([path, {k: v for k, v in parameters.items() if k != "frame"}])
                found[key] = (
                    answer.status,
                    _without_ids(text, places)
                    if path != "export" or parameters["format"] != "pprof"
                    else b"",
                )
            answers.append(found)
    assert answers[0] == answers[1]
    assert len(answers[0]) > 40


def _secret(resource: Any) -> Any:
    """The other tenant's: the same functions under names that must not be seen, and some that both have, which begin
    elsewhere there.
    """
    from dataclasses import replace

    for profile in resource.profiles:
        for number, sample in enumerate(profile.samples):
            prefix = "secret_" if number % 2 else ""
            stack = tuple(
                replace(
                    location,
                    lines=tuple(
                        replace(line, function=prefix + line.function, line=max(1, line.line - 2))
                        for line in location.lines
                    ),
                )
                for location in sample.stack
            )
            profile.samples[number] = replace(sample, stack=stack)
    return replace(resource, attributes=(*resource.attributes, ("secret.key", "secret value")))


def _without_ids(text: bytes, places: dict[str, str]) -> Any:
    if text.startswith(b"<svg"):
        return sorted(re.findall(rb"<title>.*?</title>", text, re.DOTALL))
    try:
        answer = json.loads(text)
    except ValueError:
        return text
    return _canonical(answer, places)


def _canonical(value: Any, places: dict[str, str]) -> Any:
    """Without times, and with frames and nodes in an order that does not depend on ids."""
    if isinstance(value, dict):
        out = {
            k: _canonical(v, places)
            for k, v in value.items()
            if k not in ("window", "base_window", "now", "start", "id")
        }
        if "strings" in out and "frames" in out:
            names = frame_names(value)
            for half in ("nodes", "callers", "callees"):
                if half in value:
                    tree = read_tree(value, value[half])
                    out[half] = sorted(tree.items())
            if "rows" in out and "frame" in value["rows"]:
                columns = {k: v for k, v in value["rows"].items() if k != "frame"}
                rows = [names[place] for place in value["rows"]["frame"]]
                out["rows"] = sorted(zip(rows, *columns.values(), strict=True))
            if "traces" in out:
                traces = value["traces"]
                stacks = [tuple(names[place] for place in stack) for stack in traces["stack"]]
                out["traces"] = sorted(
                    zip(
                        stacks,
                        traces["value"],
                        traces["samples"],
                        map(str, traces["labels"]),
                        strict=True,
                    )
                )
            lines = value["frames"]["line"]
            out["frames"] = sorted(
                (name, line) for name, line in zip(names, lines, strict=True) if name is not None
            )
            out["strings"] = sorted(value["strings"])
            out.pop("frame", None)
        if "profiles" in out and "shared" in out:
            frames = [frame["name"] for frame in value["shared"]["frames"]]
            (profile,) = value["profiles"]
            named = [tuple(frames[place] for place in stack) for stack in profile["samples"]]
            return sorted(zip(named, profile["weights"], strict=True))
        for key in ("series", "values", "labels"):
            if isinstance(out.get(key), list):
                out[key] = sorted(map(str, out[key]))
        out.pop("rest", None)
        return out
    if isinstance(value, list):
        return [_canonical(item, places) for item in value]
    return value


@pytest.mark.parametrize(
    ("path", "parameters", "status", "says"),
    [
        ("flamegraph", {"type": None}, 400, "type"),
        ("flamegraph", {"from": "yesterday"}, 400, "now-15m"),
        ("flamegraph", {"from": "now", "to": "now"}, 400, "not before"),
        ("flamegraph", {"from": "now-32d"}, 400, "31 days"),
        ("flamegraph", {"match": "pod"}, 400, "label=value"),
        ("flamegraph", {"match": ["pod=x"] * 65}, 400, "64"),
        ("flamegraph", {"match": "pod=" + "x" * 1025}, 400, "1024"),
        ("flamegraph", {"path": "12"}, 400, "16 hexadecimal"),
        ("flamegraph", {"path": ".".join(["0" * 16] * 513)}, 400, "512"),
        ("flamegraph", {"max_nodes": "99"}, 400, "from 100 to 50000"),
        ("flamegraph", {"max_nodes": "1e3"}, 400, "whole number"),
        ("flamegraph", {"type": ["cpu", "cpu"]}, 400, "more than once"),
        ("flamegraph", {"typo": "1"}, 400, "unknown parameter 'typo'"),
        ("flamegraph", {"type": "nothing"}, 404, "no profile type"),
        ("functions", {"sort": "diff"}, 400, "none of self, total, name"),
        ("timeline", {"base_from": "now-2h"}, 400, "base_from"),
        ("timeline", {"limit": "21"}, 400, "20"),
        ("sandwich", {}, 400, "frame"),
        ("sandwich", {"frame": "0" * 16}, 404, "no stack"),
        ("labels/nothing/values", {}, 404, "no label"),
        ("export", {"format": "pdf"}, 400, "pprof, speedscope"),
        ("export", {}, 400, "format"),
        ("nothing", {}, 404, "nothing at"),
    ],
)
def test_errors_are_problem_documents(
    site: Site, path: str, parameters: dict[str, Any], status: int, says: str
) -> None:
    given = {"type": "cpu", **parameters}
    answer = site.backend.get(path, ADMIN, **{k: v for k, v in given.items() if v is not None})
    assert answer.status == status
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["status"], problem["type"]) == (status, "about:blank")
    assert says in problem["detail"]
    if status == 400:
        assert problem["parameter"]


def test_nothing_found_is_no_error(site: Site) -> None:
    window = {"from": "now-3h", "to": "now-2h"}
    for path in ("flamegraph", "functions", "executables", "traces", "timeline", "labels"):
        answer = site.get(path, **window)
        assert answer.get("total", 0) == 0
    assert site.get("flamegraph", **window)["nodes"]["value"] == [0]
    assert site.get("flamegraph", type="off_cpu")["total"] == 0


def test_tokens_are_needed_and_namespaces_by_name_are_refused(site: Site) -> None:
    for token in ("", "wrong"):
        answer = site.backend.get("status", token)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    refused = site.backend.get("flamegraph", SHOP, type="cpu", match="namespace=bank")
    assert refused.status == 403
    assert site.backend.get("flamegraph", SHOP, type="cpu", match="namespace!=bank").status == 200
    nothing = site.backend.get("profile-types", AGENT)
    assert nothing.json()["types"] == []
    assert site.backend.get("status", AGENT).json()["samples"] == 0


def test_every_answer_keeps_the_browser_strict(site: Site) -> None:
    page = f"http://127.0.0.1:{site.backend.ports['page']}"
    for path in (
        "/",
        "/api/v1/status",
        "/api/v1/nothing",
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
    ):
        answer = request(page + path)
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'")
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert b"root:" not in answer.body


def test_openapi_describes_what_answers_hold(site: Site) -> None:
    described = request(
        f"http://127.0.0.1:{site.backend.ports['page']}{PREFIX}/openapi.json"
    ).json()
    kinds = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "boolean": bool,
        "null": type(None),
    }
    frame = next(iter(ids(site.get("functions")).values()))
    own: dict[str, dict[str, Any]] = {
        "/sandwich": {"frame": frame},
        "/status": {"type": None, "from": None},
        "/profile-types": {"type": None},
    }
    for path, item in described["paths"].items():
        short = path.removeprefix(PREFIX)
        if short == "/export":
            continue
        schema = item["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        answer = site.get(short.replace("{name}", "pod").strip("/"), **own.get(short, {}))
        assert set(schema["required"]) == set(schema["properties"]) <= set(answer), short
        for name, member in schema["properties"].items():
            types = member["type"] if isinstance(member["type"], list) else [member["type"]]
            assert isinstance(answer[name], tuple(kinds[kind] for kind in types)), (short, name)


def test_big_answers_are_compressed_when_the_client_takes_it(site: Site) -> None:
    url = f"http://127.0.0.1:{site.backend.ports['page']}{PREFIX}/flamegraph?type=cpu&from=now-1h"
    authorization = {"Authorization": f"Bearer {ADMIN}"}
    packed = request(url, None, {**authorization, "Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(packed.body))["type"] == "cpu"
    assert "content-encoding" not in request(url, None, authorization).headers


def test_health_is_for_all_and_metrics_for_who_sees_all(site: Site) -> None:
    page = f"http://127.0.0.1:{site.backend.ports['page']}"
    assert request(f"{page}/healthz").body == b"ok\n"
    for token, status in (("", 401), (SHOP, 403), (AGENT, 403)):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        assert request(f"{page}/metrics", None, headers).status == status
    answer = request(f"{page}/metrics", None, {"Authorization": f"Bearer {ADMIN}"})
    families = {f.name: f for f in text_string_to_metric_families(answer.body.decode())}
    (rows,) = families["flameherd_backend_rows"].samples
    assert rows.value == site.get("status", type=None, **{"from": None})["samples"]
    outcomes = {
        s.labels["outcome"]: s.value for s in families["flameherd_backend_messages"].samples
    }
    assert outcomes == {"stored": 1, "refused": 0, "sent_away": 0, "store_error": 0}
