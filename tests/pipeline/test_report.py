"""Stage report on the small study: its page, and its numbers against what they come from."""

import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from analysis.acceptance.judgement import Judgement
from analysis.acceptance.target import Target
from analysis.rules import Mars, StrictGreedy
from analysis.statistics.bootstrap import PromptBootstrap
from pipeline import cli
from pipeline.core.stage import Artifact
from pipeline.core.store import Store
from pipeline.stages.report.inputs import margins_of, read_content
from pipeline.stages.report.page import WEB, _headline
from pipeline.study import Study
from tests.pipeline.reading import page_links, page_text

LABELS = {"mini_large": "mini-large", "mini_small": "mini-small"}


@pytest.fixture(scope="module")
def study(small_study):
    return Study(*small_study.overrides)


def table(small_study, name):
    return pd.read_csv(small_study.outputs / f"report/mini/tables/{name}.csv")


def test_numbers_come_from_the_certificates(small_study, study):
    rows = table(small_study, "table2").set_index(["target", "rule", "statistic"]).sort_index()
    shown = rows.index.get_level_values("rule")
    for target, label in LABELS.items():
        for rule in (rule for rule in study.rules if rule.label in shown):
            lower = study.frame("certificates", target, rule.label)["lower"].to_numpy()
            row = rows.loc[(label, rule.label, "mean")]
            mean = np.where(np.isinf(lower), rule.ceiling, lower).mean()
            assert row["value"] == pytest.approx(mean, rel=1e-5)  # six digits are printed
            assert row["empty"] == pytest.approx(np.isinf(lower).mean(), rel=1e-5)


def test_probabilities_of_table_1(small_study, study):
    rows = table(small_study, "table1").set_index(["target", "k", "statistic"])
    for target, label in LABELS.items():
        steps = study.artifact("distributions", target).read().to_pandas()
        z = np.stack(steps["top_logits"]) - steps["logsumexp"].to_numpy()[:, None]
        mean = np.exp(z[:, :3]).sum(axis=1).mean()
        assert rows.loc[(label, 3, "mean"), "value"] == pytest.approx(mean, rel=1e-5)
    assert set(rows.index.get_level_values("k")) == {1, 3, 5, 10, 25}


def test_steps_at_which_mars_means_nothing_are_counted(study, monkeypatch):
    """As if it meant nothing below p0 = 0.5: these models always have a positive logit."""
    monkeypatch.setattr(Mars, "undefined", lambda _, dist: dist.top_probability < 0.5)
    [task] = study.tasks["report"]
    made = read_content(task, {name: study.store.find(of) for name, of in task.inputs.items()})
    for target in made.targets:
        count = int((target.top[1] < 0.5).sum())
        assert 0 < count < len(target.dist)
        assert set(target.undefined.values()) == {count}


def test_margins_are_certificates_less_kl():
    lower, accepted = np.array([0.3, np.inf, 0.05]), np.array([True, True, False])
    target = Target(
        *("T", {}, PromptBootstrap(np.zeros(3, int), 2, 0.9, 0), np.zeros(3, np.int32), ["p"]),
        kl=np.array([0.1, np.inf, 0.2]),
        judged={"greedy": Judgement(StrictGreedy(), lower, lower, accepted, accepted)},
    )
    bins = margins_of([target])["T"].set_index("low")
    found = bins[bins["steps"] > 0]
    assert found["accepted"].to_dict() == {-0.25: 0, 0.1: 1, 0.5: 1}


def test_the_page_is_small_whole_and_names_no_place(small_study):
    """Every token has its fate under every rule, and counts are those of the console."""
    place = small_study.outputs / "report/mini"
    text = (place / "index.html").read_text()
    assert len(text.encode()) < 1_500_000
    assert str(small_study.outputs) not in text
    assert page_links(place) == []
    assert "| temperature of the answers (0: greedy) | 0.5 | 0.5 |" in page_text(place)
    pictures = {path.stem for path in place.rglob("figures/*.png")}
    assert text.count('src="data:image/png;base64,') == len(pictures)
    counts = r"0 of [\d,]+ certified decisions rejected, over [\d,]+ steps"
    assert re.findall(counts, small_study.printed) == re.findall(counts, text)
    answers = re.findall(r'<div class="text" id="([\w-]+)".*?>(.*?)</div>', text, re.DOTALL)
    assert len(answers) == 2
    for name, tokens in answers:
        (rules,) = re.findall(rf'<select data-answer="{name}".*?>(.*?)</select>', text)
        fates = re.findall(r'<option value="(\d+)">', rules)
        assert len(fates) == rules.count("<option") > 30
        assert {len(one) for one in fates} == {tokens.count("<span>")}


def test_the_verdict_of_the_page_is_the_one_beside_it(small_study):
    """It is printed as well at the end of the command."""
    place = small_study.outputs / "report/mini"
    text = page_text(place).replace("\u00a0", " ")
    *blocks, rows = (place / "timings/verdict.md").read_text().split("\n\n")
    shown = rows.replace(r"\<", "<")  # without the escapes of Markdown
    assert shown in small_study.printed  # to paste: a row a target and drafter
    rows = [line.strip("|").split("|") for line in rows.splitlines()[2:]]
    assert {row[0].strip() for row in rows} == {*LABELS.values()}
    for row in rows:  # without the target, which is a heading on the page
        assert f"|{'|'.join(row[1:])}|" in text
    assert len(blocks) == 2
    for block in blocks:
        sentence = block.splitlines()[0]
        assert sentence in text
        assert sentence in small_study.printed


def test_a_study_that_relaxes_on_trees_asks_what_that_gives():
    """Any other study of trees asks what trees give."""
    content = SimpleNamespace(results=SimpleNamespace(drafter="D"))
    asked = [
        _headline(content, lossless and SimpleNamespace(data=pd.DataFrame({"lossless": lossless})))
        for lossless in (None, [True, True], [True, False])
    ]
    words = ["Should I draft", "draft tree", "relaxed rule"]
    assert all(word in text for word, text in zip(words, asked, strict=True))


def test_rules_for_narrow_screens_do_not_reach_paper():
    """A table that scrolls on a screen would be cut in print."""
    medias = re.findall(r"@media ([^{]*)", (WEB / "page.css").read_text())
    assert len(medias) > 2
    assert all(re.match("screen|print", media) for media in medias)


def test_a_file_in_the_place_of_the_report_stays(tmp_path, capsys):
    """The report is named where it is; so it is where nothing can be written."""
    report = Artifact(tmp_path / "artifacts/report/mini-0123", {})
    (report.directory / "timings").mkdir(parents=True)
    (report.directory / "timings/verdict.md").write_text("Draft.\n")
    place = tmp_path / "report" / "mini"
    place.parent.mkdir()
    place.write_text("the user's own")
    cli._show_report(report, place, Store(tmp_path / "artifacts"))
    assert place.read_text() == "the user's own"
    printed = capsys.readouterr().out
    assert f"report: {report.directory}/index.html ({place}: is no report" in printed


def test_the_page_of_embedded_models_says_what_they_are_for(small_study, study):
    """One's own model in the same study does not, and a note of one's own stands instead."""
    text = page_text(small_study.outputs / "report/mini")
    assert text.index("small models") < text.index("Not decided")
    assert "No relaxed rule was timed" not in text  # some were; nothing is decided
    [task] = study.tasks["report"]
    assert "small models" in task.settings["note"]
    own = Study(*small_study.overrides, "note=mine")
    assert own.tasks["report"][0].settings["note"] == "mine"
