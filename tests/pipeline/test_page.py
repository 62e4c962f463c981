"""The page of a report: it is whole, and says what the console and the verdict beside it say."""

from __future__ import annotations

import re
from pathlib import Path

from pipeline.store import Store
from tests.conftest import SmallStudy
from tests.pipeline.reading import page_links, page_text
from tests.pipeline.studies import MadeUp

BROKEN = "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 2'>"
NAMED = "a <script>window.broken = 1 <img src=x onerror='window.broken = 2'>"  # names have no "/"
RULES = [{"rule": "additive", "t": [0.1, 0.3]}, {"rule": "greedy"}]


def page_of(study: SmallStudy) -> Path:
    return study.outputs / "report/mini/index.html"


def test_the_page_is_small_whole_and_names_no_place(small_study: SmallStudy) -> None:
    text = page_of(small_study).read_text()
    assert len(text.encode()) < 1_500_000
    assert str(small_study.outputs) not in text
    assert page_links(page_of(small_study).parent) == []
    pictures = {path.stem for path in page_of(small_study).parent.rglob("figures/*.png")}
    assert text.count('src="data:image/png;base64,') == len(pictures)


def test_no_certified_decision_is_rejected_as_the_console_says(small_study: SmallStudy) -> None:
    of_console = re.findall(
        r"0 of [\d,]+ certified decisions rejected, over [\d,]+ steps", small_study.printed
    )
    assert of_console
    assert all(counts in page_of(small_study).read_text() for counts in of_console)


def test_the_verdict_of_the_page_is_the_one_beside_it(small_study: SmallStudy) -> None:
    """It is printed as well at the end of the command."""
    verdict = (page_of(small_study).parent / "timings/verdict.md").read_text()
    text = page_text(page_of(small_study).parent).replace("\u00a0", " ")
    *blocks, table = verdict.split("\n\n")
    sentences = [block.splitlines()[0] for block in blocks]
    assert len(sentences) == 2
    assert table in small_study.printed  # to paste: a row a target and drafter
    rows = [line.strip("|").split("|") for line in table.splitlines()]
    assert {len(row) for row in rows} == {7}
    assert [cell.strip() for cell in rows[0]] == [
        *("target", "method", "engine that runs it", "faster?", "speed"),
        *("tokens per call", "accepted"),
    ]
    assert {row[0].strip() for row in rows[2:]} == {"mini-large", "mini-small"}
    for row in rows[2:]:  # without the target, which is a heading on the page
        assert f"|{'|'.join(row[1:])}|" in text
    for sentence in sentences:
        assert sentence in text
        assert sentence in small_study.printed


def test_every_token_has_its_fate_under_every_rule(small_study: SmallStudy) -> None:
    text = page_of(small_study).read_text()
    shown = re.findall(r'<div class="text" id="([\w-]+)".*?>(.*?)</div>', text, re.DOTALL)
    assert len(shown) == 2
    for name, tokens in shown:
        (rules,) = re.findall(rf'<select data-answer="{name}".*?>(.*?)</select>', text)
        fates = re.findall(r'<option value="(\d+)">', rules)
        assert len(fates) == rules.count("<option") > 30
        assert {len(one) for one in fates} == {tokens.count("<span>")}


def test_text_of_prompts_and_labels_is_never_markup(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = MadeUp(store, RULES, lengths=(20, 30), texts=[BROKEN, BROKEN])
    report = store.get(made.report([NAMED], [0]))
    text = (report.directory / "index.html").read_text()
    assert text.count("<script") == text.count("</script") == 1
    assert text.count("<img") == text.count('<img src="data:image/png')
    said = page_text(report.directory).replace("\u00a0", " ")
    assert f"Not measured for {NAMED}" in said
    assert f"Its prompt: {BROKEN}" in said
