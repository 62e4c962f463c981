"""The page of a report in a real browser: no request leaves it, and its numbers agree."""

from __future__ import annotations

import base64
import json
import math
import random
import re
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline import solve
from pipeline.execution.runner import ensure
from pipeline.loader import Study
from pipeline.stages.report import page
from pipeline.stages.report.page import deflated
from pipeline.store.artifacts import Store
from tests.conftest import SmallStudy
from tests.pipeline.studies import MadeUp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
BROKEN = "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 2'>"
RULES = [{"rule": "additive", "t": [0.1, 0.3]}, {"rule": "greedy"}]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's browser, or a reason to skip."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium on PATH")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield found
        found.close()


class Opened:
    """A page in the browser, with what it asked for and what it complained of."""

    def __init__(self, browser: Any, path: Path, address: str = "", **options: Any) -> None:
        self.page = browser.new_context(**options).new_page()
        self.asked: list[str] = []
        self.said: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda line: self.said.append(line.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.goto(path.as_uri() + address)
        self.page.wait_for_function(
            "PAGE && Object.keys(views).length === document.querySelectorAll('.chart').length"
        )

    def chart(self, name: str) -> str:
        """Return what a chart shows, once it has nothing left to draw."""
        self.page.evaluate("() => Promise.all(Object.values(drawing))")
        return str(self.page.inner_html(f"#chart-{name}"))

    def slide(self, selector: str, value: int) -> None:
        """Move a slider."""
        self.page.eval_on_selector(
            selector,
            "(range, value) => { range.value = value; range.dispatchEvent(new Event('input')) }",
            value,
        )


def page_of(study: SmallStudy) -> Path:
    return study.outputs / "report/mini/index.html"


@pytest.fixture(scope="module")
def opened(browser: Any, small_study: SmallStudy) -> Opened:
    return Opened(browser, page_of(small_study))


def held(text: str, name: str) -> Any:
    """What an element of the page holds."""
    found = re.search(rf'id="{name}">([^<]*)<', text)
    assert found is not None
    return json.loads(zlib.decompress(base64.b64decode(found[1])))


def test_the_page_is_small_whole_and_names_no_place(small_study: SmallStudy) -> None:
    text = page_of(small_study).read_text()
    assert len(text.encode()) < 2_500_000
    assert str(small_study.outputs) not in text
    assert "data:image" not in text
    near = {"", "data:,", "tables.html", "timings/tables.html"}
    assert set(re.findall(r'(?:href|src)="([^"#]*)', text)) == near
    for file in near - {"", "data:,"}:  # every table and figure is found where the page says
        there = (page_of(small_study).parent / file).read_text()
        for place in re.findall(rf'href="{file}#([^"]*)', text):
            assert f'id="{place}"' in there


def test_a_damaged_script_bundle_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "__file__", str(tmp_path / "page.py"))
    script = page.bundle()
    [file] = (tmp_path / "__pycache__").iterdir()
    whole, chance = file.read_bytes(), random.Random(0)
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda _: "made again")
    assert page.bundle() == script
    for _ in range(20):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        file.write_bytes(damaged)
        assert page.bundle() == "made again"
    file.write_bytes(whole[:-1])
    assert page.bundle() == page.bundle() == "made again"
    assert list(file.parent.iterdir()) == [file]


def test_no_decision_that_is_certified_for_this_drafter_is_rejected(
    small_study: SmallStudy,
) -> None:
    text = page_of(small_study).read_text()
    certified = 0
    for target in held(text, "page-data")["targets"]:
        for rule in target["rules"]:
            (accepted, own), (kept, promised) = rule["shares"][0], rule["calls"][0][-1]
            assert own <= accepted
            assert promised <= kept
            certified += own
    assert certified > 1000
    of_console = re.findall(
        r"0 of [\d,]+ certified decisions rejected, over [\d,]+ steps", small_study.printed
    )
    assert of_console
    assert all(counts in text for counts in of_console)


def test_the_verdict_of_the_page_is_the_one_beside_it(small_study: SmallStudy) -> None:
    """It is printed as well at the end of the command."""
    verdict = (page_of(small_study).parent / "timings/verdict.md").read_text()
    text = page_of(small_study).read_text().replace("\u00a0", " ")
    *blocks, table = verdict.split("\n\n")
    sentences = [block.splitlines()[0] for block in blocks]
    assert len(sentences) == 2
    assert table in small_study.printed  # to paste: a row a target and drafter
    rows = [line.strip("|").split("|") for line in table.splitlines()]
    assert {len(row) for row in rows} == {7}
    assert {row[0].strip() for row in rows[2:]} == {"mini-large", "mini-small"}
    for sentence in sentences:
        assert sentence in text
        assert sentence in small_study.printed


def test_no_request_leaves_the_page_and_nothing_complains(opened: Opened) -> None:
    assert [url for url in opened.asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert sum(url.startswith("file:") for url in opened.asked) == 1
    assert opened.said == []


def test_every_chart_is_drawn_and_follows_what_is_chosen(opened: Opened) -> None:
    names = opened.page.evaluate("Object.keys(CHARTS)")
    assert len(names) == 5
    for name in names:
        assert opened.chart(name).count("<path") > 5, name
    title = opened.page.evaluate("PAGE.rules.find((_, at) => !state.curves.includes(at)).title")
    assert title not in opened.chart("survival")
    opened.page.select_option("#curve-add", label=title)
    assert title in opened.chart("survival")
    opened.page.click(f"#curves-shown button:has-text('{title} ×')")
    assert title not in opened.chart("survival")


def test_colours_are_of_this_drafter_and_eps_only_outlines(opened: Opened) -> None:
    kinds = ("certified", "accepted", "rejected", "within")

    def counts(place: str) -> list[int]:
        spans = [opened.page.locator(f"{place} span.{kind}").count() for kind in kinds]
        return [int(found) for found in spans]

    expected = """() => { const { steps } = PAGE.answers[0].answers[state.answer];
        const count = (fate) => steps.filter((step) => step.fates[state.rule] === fate).length;
        return [count(3), count(2), count(1),
          steps.filter((step) => step.r[state.rule] === null ||
            step.r[state.rule] > PAGE.levels[state.level]).length]; }"""
    levels = opened.page.evaluate("PAGE.levels.length")
    found = []
    for level in (0, levels // 3, levels - 1):
        opened.slide("#calculator [data-eps]", level)
        found.append(counts("#answer-text"))
        assert found[-1] == opened.page.evaluate(expected)
        assert counts("#first-text") == found[-1]  # the answer in the middle is shown twice
    assert len({tuple(one[:3]) for one in found}) == 1
    assert found[0][3] > found[1][3] >= found[2][3]


def test_a_token_shows_its_candidates_with_the_keyboard(opened: Opened) -> None:
    page = opened.page
    page.locator("#answer-text span").first.focus()
    page.keyboard.press("ArrowRight")
    assert "2 of " in page.inner_text("#token-facts")
    assert page.locator("#token-candidates tr").count() == 5
    assert page.locator("#answer-text [aria-selected=true]").count() == 1
    assert re.search("accepted|rejected", page.inner_text("#token-facts"))


def test_the_calculator_agrees_with_solve(opened: Opened, small_study: SmallStudy) -> None:
    study = Study(*small_study.overrides, "solve.eps=0.1", "solve.draft_lengths=[2,5]")
    read = [solve.SolvedTarget(study, name) for name in study.targets]
    promised = solve.tables(study, read)["promised"]
    labels = opened.page.evaluate("PAGE.rules.map((rule) => rule.label)")
    targets = opened.page.evaluate("PAGE.targets.map((target) => target.label)")
    lengths = {"of 2": 2, "of 5": 5}
    found = opened.page.evaluate(
        """(lengths) => PAGE.targets.map((_, target) => PAGE.rules.map((_, rule) => lengths.map(
        (gamma) => evaluate(target, rule, PAGE.levels.indexOf(0.1), gamma))))""",
        list(lengths.values()),
    )
    promised = [row for row in promised if row["drafts"] in lengths]
    assert len(promised) == len(targets) * len(labels) * len(lengths) * 2
    for row in promised:
        shown = found[targets.index(row["target"])][labels.index(row["rule"])]
        mine = shown[list(lengths).index(row["drafts"])]
        one = mine["tokens" if row["kind"] == "certified" else "measured"]
        expected = [row["tokens"], row["tokens_ci_low"], row["tokens_ci_high"]]
        assert [one["value"], one["low"], one["high"]] == pytest.approx(expected, abs=0.0050001)
        assert mine["promised"]["value"] <= mine["measured"]["value"]


def test_the_strictest_setting_is_that_of_solve(opened: Opened, small_study: SmallStudy) -> None:
    study = Study(*small_study.overrides, "solve.eps=0.1", "solve.share=0.6")
    one = solve.SolvedTarget(study, study.targets[0])
    rows = [
        row
        for row in solve.tables(study, [one])["solved"]
        if row["kind"] == "certified" and row["wanted"] == "60 % of steps"
    ]
    opened.page.evaluate("choose({ level: PAGE.levels.indexOf(0.1) })")
    opened.page.fill("#wanted", "60")
    shown = opened.page.locator("#settings tr").all()
    assert len(shown) == len(rows) > 3
    for line, row in zip(shown, rows, strict=True):
        text = line.locator("td").nth(1).inner_text().replace("\u00a0", " ")
        if math.isnan(row["value"]):
            assert text.startswith("none up to")
            continue
        value = float(text.partition(" = ")[2])
        assert value == pytest.approx(row["value"], abs=0.004)
        line.locator("input").fill(str(row["value"]))
        share = float(line.locator("td").nth(4).inner_text().partition("\u00a0")[0])
        assert share == pytest.approx(100 * row["reached"], abs=1.5)


def test_any_value_is_interpolated_between_its_neighbours(opened: Opened) -> None:
    page = opened.page
    page.evaluate("choose({ rule: PAGE.rules.findIndex((one) => one.family === 'Additive') })")
    line = page.evaluate("lineOf(state.rule)")
    values = [value for value, _ in line]
    assert values[0] == 0  # strict greedy
    ends = [page.evaluate(f"evaluate(0, {rule}, state.level, 3).tokens.value") for _, rule in line]
    page.evaluate("choose({ gamma: 3 })")
    for at in range(len(line) - 1):
        page.fill("#exact-value", str((values[at] + values[at + 1]) / 2))
        middle = (ends[at] + ends[at + 1]) / 2
        assert page.inner_text("#found-tokens").startswith(f"≈ {middle:.2f}"[:5])
        assert "between" in page.inner_text("#calculator [data-setting-shown]")
    page.fill("#exact-value", str(values[-1]))
    assert page.inner_text("#found-tokens").startswith(f"{ends[-1]:.2f}")
    page.evaluate("choose({ rule: 0 })")


def test_a_row_of_the_first_screen_is_of_one_method(opened: Opened) -> None:
    rows = opened.page.locator("article:not([hidden]) table tbody tr").all()
    runs = opened.page.evaluate("TIMINGS.speed[0].filter((run) => run.lossless)")
    headline = opened.page.inner_text("article:not([hidden]) h2").replace("\u00a0", " ")
    assert rows
    for row in rows:
        name, answer, speed, tokens, _, length = row.locator("td").all_inner_texts()
        (run,) = (
            one
            for one in runs
            if f"{one['speedup']:.2f}×" == speed.partition(" ")[0].partition("\u00a0")[0]
            and str(one["gamma"]) == length.partition(",")[0]
        )
        assert tokens.startswith(f"{run['tokens']:.2f} [")
        assert f"{name}: {answer}, {run['speedup']:.2f} times as fast" in headline


def test_a_chart_becomes_an_image(browser: Any, small_study: SmallStudy) -> None:
    opened = Opened(browser, page_of(small_study), accept_downloads=True)
    opened.chart("margins")
    opened.page.click("[data-image=margins]")
    opened.page.wait_for_function(
        "document.querySelector('[data-image=margins] + span').textContent !== ''"
    )
    bars = opened.page.evaluate("PAGE.margins[0][0]")
    assert all(steps == accepted for steps, accepted in bars[6:])
    assert sum(steps for steps, _ in bars) == opened.page.evaluate("PAGE.targets[0].steps")


def test_the_address_holds_what_was_chosen(
    opened: Opened, browser: Any, small_study: SmallStudy
) -> None:
    labels = opened.page.evaluate("PAGE.rules.map((rule) => rule.label)")
    chosen = f"#target=1&rule={labels[1]}&beside={labels[0]}&eps=0.2&gamma=3&answer=2".replace(
        " ", "+"
    )
    other = Opened(browser, page_of(small_study), chosen)
    state = other.page.evaluate("state")
    assert [state[name] for name in ("target", "rule", "beside", "gamma", "answer")] == [
        1,
        1,
        0,
        3,
        2,
    ]
    assert other.page.evaluate("PAGE.levels[state.level]") == 0.2
    assert other.page.inner_text("#calculator [data-gamma-shown]") == "γ = 3"
    other.slide("#gamma", 7)
    assert "gamma=7" in other.page.evaluate("location.hash")
    wrong = Opened(browser, page_of(small_study), "#rule=none&eps=x&gamma=99&answer=-1")
    assert wrong.page.evaluate(
        "[state.rule, state.gamma - (TIMINGS.gamma[0] ?? 5), state.answer - middle()]"
    ) == [0, 0, 0]
    assert wrong.said == []


def test_engine_flags_are_of_the_rule_and_the_draft_length(opened: Opened) -> None:
    opened.page.evaluate("choose({ rule: 0, gamma: 4 })")
    text = opened.page.inner_text("#flags")
    assert '"num_speculative_tokens": 4' in text
    assert '"method": "draft_model"' in text
    assert "$" not in text
    opened.page.evaluate(
        "choose({ rule: PAGE.rules.findIndex((one) => one.family === 'Additive') })"
    )
    assert "no engine" in opened.page.inner_text("#flags")
    for place in ("#calculator", "article:not([hidden])"):  # the last one that was pressed says so
        opened.page.click(f"{place} [data-copy]")
        said = opened.page.locator("[data-copy] + span", has_text="copied")
        opened.page.locator(f"{place} [data-copy] + span", has_text="copied").wait_for()
        assert said.count() == 1


@pytest.mark.parametrize("width", [320, 390])
def test_nothing_is_wider_than_a_narrow_screen(
    browser: Any, small_study: SmallStudy, width: int
) -> None:
    size = {"width": width, "height": 800}
    narrow = Opened(browser, page_of(small_study), viewport=size)
    narrow.chart("plane")
    assert narrow.page.evaluate("document.documentElement.scrollWidth") <= width


def test_text_of_prompts_and_labels_is_never_markup(browser: Any, tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = MadeUp(store, RULES, lengths=(20, 30), texts=[BROKEN, "plain"])
    (report,) = ensure([made.report([BROKEN], [0])], store)
    opened = Opened(browser, report.directory / "index.html")
    assert opened.page.evaluate("window.broken") is None
    assert opened.said == []
    prompts = opened.page.locator("#answer-choice option").all_inner_texts()
    assert any("</script>" in prompt for prompt in prompts)
    assert f"Not measured for {BROKEN}" in opened.page.inner_text("#verdict").replace("\u00a0", " ")
    assert opened.page.locator("#rules").count() == 0  # a study without a drafter
    assert re.match(r"\d+\.\d", opened.page.inner_text("#found-share"))
    assert not set("<>&") & set(deflated(BROKEN))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible(browser: Any, small_study: SmallStudy, scheme: str) -> None:
    """By axe-core, with all parts open, on both grounds."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is missing")
    opened = Opened(browser, page_of(small_study), color_scheme=scheme, bypass_csp=True)
    ground = "getComputedStyle(document.body).backgroundColor"
    assert (opened.page.evaluate(ground) == "rgb(20, 23, 28)") == (scheme == "dark")
    opened.page.evaluate("document.querySelectorAll('details').forEach((one) => one.open = true)")
    opened.chart("survival")
    found = axe.Axe().run(opened.page)
    said = [
        f"{one['id']} ({one['impact']}): {node['target']} {node['html'][:120]}"
        for one in found.response["violations"]
        for node in one["nodes"][:3]
    ]
    assert said == []
    assert len(found.response["passes"]) > 20
    opened.page.click("#theme")
    assert (opened.page.evaluate(ground) == "rgb(20, 23, 28)") == (scheme == "light")
    opened.chart("plane")
    assert opened.said == []
