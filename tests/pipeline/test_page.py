"""The page of a report in a real browser: no request leaves it, and its numbers agree."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure as Drawing

from analysis.acceptance.solve import Goal
from analysis.acceptance.solve import solve as solved
from analysis.report.records import Figure, Part
from analysis.rules.build import build_dial
from analysis.statistics.bootstrap import PromptBootstrap
from analysis.statistics.trajectories import Trajectories
from pipeline import solve
from pipeline.execution.runner import ensure
from pipeline.loader import Study
from pipeline.stages.report.page.build import appendices, picture, plain_json
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

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.page = browser.new_context(**options).new_page()
        self.asked: list[str] = []
        self.said: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda line: line.type == "error" and self.said.append(line.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.goto(path.as_uri())
        self.page.wait_for_function(
            "Object.keys(views).length === document.querySelectorAll('.chart').length"
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


@pytest.fixture(scope="module")
def opened(browser: Any, small_study: SmallStudy) -> Opened:
    return Opened(browser, small_study.outputs / "report/mini/index.html")


def test_no_request_leaves_the_page_and_nothing_complains(opened: Opened) -> None:
    assert [url for url in opened.asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert sum(url.startswith("file:") for url in opened.asked) == 1
    assert opened.said == []


def test_every_chart_is_drawn(opened: Opened) -> None:
    names = opened.page.evaluate("Object.keys(PAGE.charts)")
    assert len(names) == 9
    for name in names:
        drawn = opened.chart(name)
        assert drawn.count("<path") > 5, name


def test_a_rule_that_is_chosen_changes_the_chart(opened: Opened) -> None:
    before = opened.chart("survival")
    place = opened.page.locator("#curve-choices input:not(:checked)").first.get_attribute("value")
    box = opened.page.locator(f"#curve-choices input[value='{place}']")
    title = box.evaluate("box => box.parentElement.textContent.trim()")
    assert title not in before
    box.check()
    assert title in opened.chart("survival")
    box.uncheck()
    assert title not in opened.chart("survival")


def test_the_colours_of_the_explorer_change_with_eps(opened: Opened) -> None:
    def certified() -> int:
        return int(opened.page.locator("#answer-text .certified").count())

    tokens = opened.page.locator("#answer-text span").count()
    levels = opened.page.evaluate("PAGE.levels.length")
    counts = []
    for level in (0, levels // 3, levels - 1):
        opened.slide("#calculator [data-eps]", level)
        counts.append(certified())
        expected = opened.page.evaluate(
            """() => { const [answer, rule] = [PAGE.answers[0].answers[state.answer], state.rule];
            return answer.steps.filter((step) => step.r[rule] === null ||
              step.r[rule] > PAGE.levels[state.level]).length; }"""
        )
        assert counts[-1] == expected
    assert tokens >= counts[0] > counts[1] >= counts[2]
    opened.slide("#calculator [data-eps]", levels // 3)


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
    read = list(solve.solved_targets(study.config, study.nodes, study._store, []))
    _, promised, _ = solve.tables(study.config, study.nodes, read)
    labels = opened.page.evaluate("PAGE.rules.map((rule) => rule.label)")
    targets = opened.page.evaluate("PAGE.steps.map((target) => target.label)")
    lengths = {"of any length": 0, "of 2": 2, "of 5": 5}
    found = opened.page.evaluate(
        """(lengths) => PAGE.steps.map((target) => PAGE.rules.map((_, rule) => lengths.map(
        (gamma) => evaluate(target, rule, PAGE.levels.indexOf(0.1), gamma))))""",
        list(lengths.values()),
    )
    assert len(promised) == len(targets) * len(labels) * len(lengths) * 2
    for row in promised:
        shown = found[targets.index(row["target"])][labels.index(row["rule"])]
        mine = shown[list(lengths).index(row["drafts"])]
        one = mine["tokens" if row["kind"] == "certified" else "realised"]
        expected = [row["tokens"], row["tokens_ci_low"], row["tokens_ci_high"]]
        assert [one["value"], one["low"], one["high"]] == pytest.approx(expected, rel=1e-12)


def test_the_setting_that_solve_finds_lies_behind_the_next_stricter_one(
    opened: Opened, small_study: SmallStudy
) -> None:
    study = Study(*small_study.overrides)
    position = study.frame("distributions", study.targets[0], columns=["position"])["position"]
    steps = Trajectories.from_positions(position.to_numpy())
    dist = study.distributions(study.targets[0])
    dial = build_dial({"rule": "additive", "t": [0.0, 1.0]})
    found = solved(
        dist, dial, 0.1, Goal(share=0.7), PromptBootstrap(steps.prompts, 5, 0.9, 0), steps
    )
    shown = opened.page.evaluate(
        """() => families()["Additive"].map((rule) => [Number(PAGE.rules[rule].label.split("=")[1]),
        certifiedShare(PAGE.steps[0], rule, PAGE.levels.indexOf(0.1))])"""
    )
    reached = next(at for at, (_, share) in enumerate(shown) if share >= 0.7)
    assert reached > 0
    assert shown[reached - 1][0] < found.value <= shown[reached][0]


def test_a_drafter_pays_where_the_literature_says(opened: Opened) -> None:
    """A call that costs as 3.69 tokens pays from an acceptance rate of 0.8 at gamma 5."""
    cost = sum(0.8**power for power in range(6))
    assert opened.page.evaluate(f"breakEven({cost}, 5)") == pytest.approx(0.8, abs=1e-9)
    assert opened.page.evaluate("breakEven(6, 5)") == pytest.approx(1)
    assert opened.page.evaluate("breakEven(6.001, 5)") is None


@pytest.mark.parametrize("width", [320, 390])
def test_nothing_is_wider_than_a_narrow_screen(
    browser: Any, small_study: SmallStudy, width: int
) -> None:
    path = small_study.outputs / "report/mini/index.html"
    narrow = Opened(browser, path, viewport={"width": width, "height": 800})
    narrow.chart("plane")
    assert narrow.page.evaluate("document.documentElement.scrollWidth") <= width


def test_dark_ground(browser: Any, small_study: SmallStudy) -> None:
    path = small_study.outputs / "report/mini/index.html"
    dark = Opened(browser, path, color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert dark.page.evaluate(ground) == "rgb(20, 23, 28)"
    dark.page.click("#theme")
    assert dark.page.evaluate(ground) == "rgb(255, 255, 255)"
    dark.chart("plane")
    assert dark.said == []


def test_the_page_is_small_and_names_no_place(small_study: SmallStudy) -> None:
    text = (small_study.outputs / "report/mini/index.html").read_text()
    assert len(text.encode()) < 6_000_000
    assert str(small_study.outputs) not in text


@pytest.mark.parametrize(
    ("pictures", "missing", "held"), [(2, 0, 2), (2, 1, 1), (1, 0, 1), (1, 1, 0), (0, 0, 0)]
)
def test_pictures_are_held_as_long_as_there_is_room(pictures: int, missing: int, held: int) -> None:
    """With room for as many pictures, less so many bytes."""
    data = pd.DataFrame()
    shown = [Figure(f"f{at}", "title", "Why?", "caption", data, Drawing()) for at in range(2)]
    content = b"\x89PNG" * 30
    files = {f"figures/f{at}.png": content for at in range(2)} | {"figures/f0.pdf": b"pdf"}
    found: Any = SimpleNamespace(parts=[Part("part", shown)], files=files)
    (part,) = appendices(found, pictures * len(picture(content)) - missing)
    beside = ["figures/f0.png", "figures/f1.png"]
    assert [item["image"] for item in part["items"]] == [picture(content)] * held + beside[held:]
    assert [item["links"] for item in part["items"]] == [[("PDF", "figures/f0.pdf")], []]


def test_json_in_a_script_holds_no_markup() -> None:
    text = plain_json({"a": BROKEN + "<!-- \u2028"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text)["a"] == BROKEN + "<!-- \u2028"


def test_text_of_prompts_and_labels_is_never_markup(browser: Any, tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = MadeUp(store, RULES, lengths=(20, 30), texts=[BROKEN, "plain"])
    (report,) = ensure([made.report([BROKEN], [0])], store)
    opened = Opened(browser, report.directory / "index.html")
    assert opened.page.evaluate("window.broken") is None
    assert opened.said == []
    prompts = opened.page.locator("#answer-choice option").all_inner_texts()
    assert any("</script>" in prompt for prompt in prompts)
    assert BROKEN in opened.page.inner_text("#answer h2")
    assert opened.page.locator("#drafter").count() == 0  # a study without a drafter
    assert re.match(r"\d+\.\d", opened.page.inner_text("#found-share"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible(browser: Any, small_study: SmallStudy, scheme: str) -> None:
    """By axe-core, with every table and figure of the appendix open."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is missing")
    path = small_study.outputs / "report/mini/index.html"
    opened = Opened(browser, path, color_scheme=scheme, bypass_csp=True)
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
