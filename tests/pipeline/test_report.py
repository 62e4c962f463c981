"""Stage report: its files and page, their numbers, and that its inputs alone determine them."""

import math
import re

import numpy as np
import pandas as pd
import pytest

from analysis.acceptance.judgement import Judgement
from analysis.certificates.certify import certify
from analysis.report import style
from analysis.report.results import Target
from analysis.rules import StrictGreedy
from analysis.statistics.bootstrap import PromptBootstrap
from pipeline.stages.report import page
from pipeline.stages.report.inputs import margins_of
from pipeline.store import Store
from pipeline.stored import read_distributions
from tests.pipeline.reading import page_links, page_text, unnamed
from tests.pipeline.studies import COMMITS, MadeUp

RULES = [
    {"rule": "greedy"},
    {"rule": "additive", "t": [0.1, 0.3]},
    {"rule": "multiplicative", "alpha": [0.5]},
    {"rule": "topm_additive", "m": [2, 4], "t": [0.1]},
    {"rule": "typical", "eps0": 0.1, "delta0": 0.09},
    {"rule": "mars", "theta": 0.9},
    {"rule": "tree", "m": [2]},
]
LABELS = ["Qwen3-4B", "mini-small"]
BROKEN = "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 2'>"
NAMED = "a <script>window.broken = 1 <img src=x onerror='window.broken = 2'>"  # names have no "/"


def build(root, labels=LABELS, rules=RULES, **made):
    """A study and its report without pictures: to draw them takes most of a report's time."""
    store = Store(root)
    study = MadeUp(store, rules, **made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "render", lambda *_: b"")
        patch.setattr(page, "embedded", lambda _: "data:image/png,")
        return study, store.get(study.report(labels, range(len(labels))))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(tmp_path_factory.mktemp("report"))


def dump(made, at):
    """The distributions of a target, by its number."""
    return made.store.find(made.target(LABELS[at], at)[0])


def test_every_file_is_shown_on_the_page_which_links_nothing(built):
    _, report = built
    assert {"bounds", "parts", "published", "table7"} <= set(report.facts["tables"])
    assert unnamed(report.directory) == page_links(report.directory) == []


def test_the_page_gives_the_set_up(built):
    made, report = built
    said, steps = page_text(report.directory), sum(made.lengths)
    for row in (
        f"| decoding steps | {steps} | {steps} |",
        "| temperature of the answers (0: greedy) | 0 | 0 |",
        "| thinking enabled | no | no |",
        f"| its commit | {COMMITS['model'][:-1]}0 | {COMMITS['model'][:-1]}1 |",
        f"| commit of that source | {COMMITS['prompts']} | {COMMITS['prompts']} |",
    ):
        assert row in said
    assert "tokens of a prompt, at most: 384" in said  # what the paper does not state


def test_numbers_come_from_the_certificates(built):
    made, report = built
    table = pd.read_csv(report.directory / "tables/table2.csv")
    for at, label in enumerate(LABELS):
        found = made.store.find(made.target(label, at)[1])  # the same artifact again
        for rule in made.rules:
            lower = found.read(columns=["lower"], rule=rule.label)["lower"].to_numpy()
            rows = table[(table["target"] == label) & (table["rule"] == rule.label)]
            if rows.empty:
                continue
            printed = rows.set_index("statistic")["value"]
            mean = np.where(np.isinf(lower), rule.ceiling, lower).mean()
            assert printed["mean"] == pytest.approx(mean, rel=1e-5)  # six digits are printed
            assert rows["empty"].iloc[0] == pytest.approx(np.isinf(lower).mean(), rel=1e-5)


def test_only_a_target_of_the_paper_is_beside_the_published(built):
    made, report = built
    table = pd.read_csv(report.directory / "tables/published.csv")
    greedy = table[(table["row"] == "greedy") & (table["statistic"] == "mean")]
    (line,) = greedy.to_dict("records")
    distributions = read_distributions(dump(made, LABELS.index(line["target"])))
    exact = certify(distributions, StrictGreedy()).lower.mean()
    assert line["value"] == pytest.approx(exact, rel=1e-5)


def test_steps_at_which_mars_means_nothing_are_counted(built):
    made, report = built
    logits = [dump(made, at).read()["top_logits"].to_pylist() for at in (0, 1)]
    counts = [sum(row[0] <= 0 for row in rows) for rows in logits]
    assert min(counts) > 0
    table = pd.read_csv(report.directory / "tables/table7.csv")
    mars = table["rule"] == "mars theta=0.9"
    assert sorted(table.loc[mars, "undefined"].unique()) == sorted(set(counts))
    assert table.loc[~mars, "undefined"].isna().all()


def test_probabilities_of_table_1(built):
    made, report = built
    rows = dump(made, 1).read().to_pylist()
    top3 = [sum(math.exp(z - row["logsumexp"]) for z in row["top_logits"][:3]) for row in rows]
    table = pd.read_csv(report.directory / "tables/table1.csv")
    row = table[(table["target"] == LABELS[1]) & (table["k"] == 3)].set_index("statistic")
    assert row.loc["mean", "value"] == pytest.approx(np.mean(top3), rel=1e-5)
    assert set(table["k"]) == {1, 3, 5, 10}  # 12 tokens are stored


@pytest.mark.thorough
def test_two_builds_are_equal_byte_for_byte_and_name_no_place(built, tmp_path):
    _, first = built
    _, second = build(tmp_path)
    files, again = (dict(report.record["files"]) for report in (first, second))
    assert files.pop("index.html")  # which has the date
    assert again.pop("index.html")
    assert files == again
    assert str(first.directory.parent.parent) not in (first.directory / "index.html").read_text()
    for name in files:
        if name.endswith(("csv", "tex", "md")):
            text = (first.directory / name).read_text()
            assert not re.search(r"\b20\d\d-\d\d-\d\d", text), name


def test_names_and_prompts_are_text_whatever_their_characters(tmp_path):
    """Never markup or formulas; every row keeps its cells, and what was escaped reads as given."""
    label = r"9|$x$_<b>&amp;%#{a}\^~ *e* [k](u) `c`"
    rules = [{"rule": "greedy"}, {"rule": "tree", "m": 2}]
    _, report = build(tmp_path, [label, NAMED], rules, lengths=(20, 30), texts=2 * [BROKEN])
    markup, said = (report.directory / "index.html").read_text(), page_text(report.directory)
    assert markup.count("<script") == markup.count("</script") == 1
    assert markup.count("<img") == markup.count('<img src="data:image/png')
    assert f"Its prompt: {BROKEN}" in said.replace("\u00a0", " ")
    assert said.count(label) > 10
    for path in report.directory.glob("tables/*.tex"):
        for line in [line for line in path.read_text().splitlines() if line.endswith(r"\\")]:
            bare = re.sub(r"\\([&%$#_{}])", "", line)
            assert bare.count("$") % 2 == bare.count("{") - bare.count("}") == 0, line
            assert not set("|#_~") & set(re.sub(r"\$[^$]*\$", "", bare)), line


def test_a_study_of_one_rule_has_a_report(tmp_path):
    """A rule without a closed form leaves tables out, and nothing else."""
    _, report = build(tmp_path, ["one"], [{"rule": "mars", "theta": 0.9}], lengths=(20, 30))
    assert unnamed(report.directory) == []
    assert (report.directory / "tables/table2.csv").is_file()


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
    *blocks, table = (place / "timings/verdict.md").read_text().split("\n\n")
    assert table in small_study.printed  # to paste: a row a target and drafter
    rows = [line.strip("|").split("|") for line in table.splitlines()[2:]]
    assert {row[0].strip() for row in rows} == {"mini-large", "mini-small"}
    for row in rows:  # without the target, which is a heading on the page
        assert f"|{'|'.join(row[1:])}|" in text
    assert len(blocks) == 2
    for block in blocks:
        sentence = block.splitlines()[0]
        assert sentence in text
        assert sentence in small_study.printed
