"""Every configuration composes; wrong values fail before any work and say what is allowed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from transformers import AutoTokenizer

from analysis.fields import FieldError, check_fields
from analysis.rules.rule import Rule, register
from conf import schema
from pipeline import cli, harness
from pipeline.errors import PipelineError
from pipeline.models.prompt_tokens import encode, file_tokenizer
from pipeline.paths import CONF, ROOT
from pipeline.plan.composition import (
    check_overrides,
    composed,
    files_and_overrides,
    given,
    quoted,
    report_name,
    unset,
)
from pipeline.plan.explain import EXPECTED_ERRORS, explain
from pipeline.plan.rules import build_rules
from pipeline.stages.prompts.compute import SLACK
from pipeline.study import Study
from tests.pipeline import tiny

GROUPS = ("study", "target", "drafter", "prompts", "criteria", "decoding", "accuracy", "device")
OPTIONS = [(group, path.stem) for group in GROUPS for path in sorted((CONF / group).glob("*.yaml"))]


@pytest.fixture(autouse=True)
def hydra() -> Iterator[None]:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield
    GlobalHydra.instance().clear()


def mini(*overrides: str) -> DictConfig:
    return compose("config", ["study=mini", *overrides])


def settings(*overrides: str) -> schema.Config:
    found = OmegaConf.to_object(mini(*overrides))
    assert isinstance(found, schema.Config)
    return found


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_composes(group: str, option: str) -> None:
    added = "+target" if group == "target" else group
    config = mini(f"{added}={option}")
    for key in list(unset(config)):
        assert key.endswith((".path", ".source")), key
        OmegaConf.update(config, key, "x")
    found = OmegaConf.to_object(config)
    check_fields(found)
    assert build_rules(found.criteria)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("distributions.k=0", r"distributions.k=0 is not allowed: give an integer of at least 1"),
        ("run_lengths.eps=[0.1,nan]", r"run_lengths.eps=\[0.1, nan\] is not allowed"),
        ("certificates.temperature=1e-320", "give a number of at least 0.01"),
        ("targets.mini_large.label=../x", r"label=../x is not allowed: give a name that begins"),
        ("drafter.label='a\x07b'", r"drafter.label='a\\x07b' is not allowed"),
        (f"drafter.label='{'ä' * 51}'", "and of at most 100 bytes"),
        ("study_name=a/b", "study_name=a/b is not allowed: give null or a name"),
        ("outputs=' '", "outputs=  ?is not allowed: give a directory"),
        ("device.name=tpu", "device.name=tpu is not allowed: give auto, cpu, cuda"),
        ("distributions.kk=3", r"'distributions.kk': .*\(did you mean k\?\): give one of k"),
        ("+distributions.kk=3", r"distributions.kk is not known \(did you mean k\?\): give one of"),
        ("~distributions", "distributions must be given"),
        ("distributions.k=many", "Value 'many' .*Integer at .*: give an integer of at"),
        ("targets.mini_large.dtype=null", "targets.mini_large.dtype.*: give one of float32"),
        ("prompts=none", "'prompts/none': give one of default, mini"),
        ("drafter=/models/mine", "drafter=local drafter.path=PATH takes a model of your own"),
        ("outputs=o'brien", "can't be read as an override.*is quoted: \"key='VALUE'\""),
        ("criteria.t=0.1", r"'criteria.t'.*; add criteria=additive \(or topm_additive\)"),
        ("+target=local", r"^targets\.local\.path must be given"),
        ("execution.workers=2", "means nothing with execution.engine=inline"),
        ("distributions.k=8", r"m=8 .* needs the 9 most .* set distributions\.k to 9"),
        ("prompts.max_tokens=63", "min_tokens=64 exceeds .*=63"),
        ("device.threads=1000000", r"^device.threads=1000000 exceeds the \d+ processors"),
        ("targets.mini_large.label=mini-small", "label=mini-small is given to two targets"),
        ("stage=certificate", r"^stage=certificate is not allowed: give one of prompts, "),
    ],
)
def test_what_cannot_succeed_is_one_line_before_any_work(
    override: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(EXPECTED_ERRORS) as error:
        cli.run(mini(f"outputs={tmp_path}", override))
    said = explain(error.value)
    assert re.search(message, said.split("\n")[0])
    assert "\n" not in said or override.startswith("distributions.k=")  # and for the presets, too
    assert not list(tmp_path.rglob("*.parquet"))


def test_the_report_of_a_changed_configuration_has_a_place_of_its_own() -> None:
    def name(*overrides: str) -> str:
        return report_name(mini(*overrides))

    assert name() == name("outputs=x", "stage=acceptance", "device.threads=3") == "mini"
    assert name("study=paper") == "paper"
    changed = {
        name(*overrides)
        for overrides in (
            ["prompts.count=5"],
            ["criteria=additive"],
            ["criteria=additive", "criteria.t=0.2"],
            ["~targets.mini_small"],
            ["study=paper", "prompts.count=5"],
            ["targets.mini_small.path=/a/b"],
            ["targets.mini_small.path=/a_b"],
        )
    }
    assert len(changed) == 7
    assert all(re.fullmatch(r"(mini|paper)-[0-9a-f]{8}", n) for n in changed)
    both = ["prompts.count=5", "prompts.seed=1"]
    assert name(*both) == name(*reversed(both))
    assert name("prompts.count=5", "study_name=five") == "five"


def test_names_can_stand_in_files_and_on_one_line() -> None:
    config = settings()
    config.targets["a\nb"] = config.targets.pop("mini_small")
    with pytest.raises(FieldError, match=r"targets: 'a\\nb' is not allowed: give a name"):
        check_fields(config)
    other = mini()
    other.study = "another"
    with pytest.raises(PipelineError, match=r"the file to another\.yaml, or .*study_name=NAME"):
        report_name(other)
    with pytest.raises(PipelineError, match=r"'rules.a\\nb' is not allowed"):
        build_rules({"rule": "greedy"}, "rules.a\nb")
    for name in ("_hidden", "two\nlines", "", "1"):
        with pytest.raises(ValueError, match="begins with a letter"):
            register(name)(Rule)


@pytest.mark.parametrize(
    "text", ["/a b", "/o'b", '/a"b', "/a\\b", "/a\\'b", "/${x}/y", "/\\${x}", "/a\\", "/x,y=[z]{w}"]
)
def test_any_path_survives_as_an_override(text: str) -> None:
    override = f"outputs={quoted(text)}"
    assert given([override], "outputs") == text
    assert mini(override).outputs == text


def test_what_is_given_on_the_command_line() -> None:
    assert given(["a=1", "outputs=x", "outputs=y"], "outputs") == "y"
    assert given(["outputs="], "outputs") == ""
    assert given(["outputs=${root:}/x"], "outputs") == f"{ROOT}/x"
    for arguments in (["a=1"], ["outputs=x,y"], ["outputs=null"]):
        assert given(arguments, "outputs") is None


@pytest.mark.parametrize(
    ("criteria", "message"),
    [
        ({}, "give one rule"),
        ({"rule": "additve", "t": 0.1}, "additve"),
        ({"rules": [{"rule": "greedy"}, {"rule": "greedy"}]}, "twice"),
        ({"rules": []}, r"criteria.rules=\[\] is not allowed: give at least one rule"),
        ({"rule": "additive", "t": []}, r"additive: t=\[\] is not allowed: give a value, or"),
        ({"rule": "topm_additive", "m": 2, "t": 0.1, "convention": "a\nb"}, "convention='a.*' is"),
    ],
)
def test_bad_rules_are_refused(criteria: dict[str, object], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        build_rules(criteria)


def planned(tmp_path: Path, *overrides: str) -> dict[str, Any]:
    return Study(config=mini(f"outputs={tmp_path}", *overrides)).tasks


def test_all_that_is_wrong_is_said_at_once_before_torch_is_imported(tmp_path: Path) -> None:
    """A model of one's own without a template, a prompt a line in a .txt file, a key mistyped."""
    model, source = tmp_path / "my-model", tmp_path / "questions.txt"
    shutil.copytree(ROOT / "assets/mini/large", model)
    (model / "chat_template.jinja").unlink()
    source.write_text("one\ntwo words here\nthree\n")
    own = ["target=local", f"targets.local.path={model}", f"prompts.source={source}"]
    wrong = [
        "drafter.path=/nowhere",
        "statistics.resamples=0",
        "prompts.cuont=1",
        "statistcs.seed=1",
    ]
    code = (
        "import sys\nfrom pipeline import cli\ntry: cli.main()\n"
        "except SystemExit as end: print(end); print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, "study=mini", *own, *wrong, f"outputs={tmp_path}"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    said = ended.stdout
    *lines, torch = said.splitlines()
    assert torch == "False"
    for line, begin in zip(
        lines,
        ["error: Could not override 'prompts.cuont'", "error: Could not override 'statistcs.seed'",
         "error: statistics.resamples=0 is not allowed",
         f"error: {model}: its tokenizer has no chat template", "error: prompts.count=96: ",
         "error: drafter.path=/nowhere does not exist"],
        strict=True,
    ):  # fmt: skip
        assert line.startswith(begin), said
    assert "(did you mean count?)" in lines[0]
    assert "(did you mean statistics?)" in lines[1]
    assert "has only 0 prompts of 64 to 384 tokens (all that it has: 12 to 12)" in lines[4]
    assert "a .txt file is one prompt, all of its text (questions.txt: 3 lines)" in lines[4]
    assert settings(*own).targets["local"].label == "my-model"


@pytest.mark.parametrize(("excess", "refused"), [(SLACK, False), (SLACK + 1, True)])
def test_lengths_are_refused_early_only_where_they_are_surely_too_short(
    tmp_path: Path, excess: int, refused: bool
) -> None:
    """Of the file's tokenizer as of transformers': exactly, here, and with some room."""
    source = tmp_path / "one.jsonl"
    text = "What does the function len return for a dictionary?"
    source.write_text(json.dumps({"text": text}))
    folder = ROOT / "assets/mini/large"
    tokens = len(encode(file_tokenizer(str(folder)), text, "chat", enable_thinking=False))
    loaded = AutoTokenizer.from_pretrained(folder)
    assert tokens == len(encode(loaded, text, "chat", enable_thinking=False))
    wanted = [
        "prompts.count=1",
        f"prompts.source={source}",
        f"prompts.min_tokens={tokens + excess}",
    ]
    if refused:
        with pytest.raises(PipelineError, match=rf"all that it has: {tokens} to {tokens}\)"):
            planned(tmp_path, *wanted)
    else:
        assert planned(tmp_path, *wanted)


def test_a_draft_length_for_all_methods_has_an_artifact_of_its_own(tmp_path: Path) -> None:
    default, one, three = (
        planned(tmp_path, "stage=decoding", f"decoding.draft_length={at}")["decoding"][0]
        for at in ("null", 1, 3)
    )
    assert len({task.key for task in (default, one, three)}) == 3
    assert {method.draft_length for method in three.spec.methods} == {3}


@pytest.mark.parametrize("option", [option for group, option in OPTIONS if group == "decoding"])
def test_every_choice_of_methods_can_be_scored(option: str, tmp_path: Path) -> None:
    """A rule that becomes several must leave the presets alone, which are of one rule each."""
    if option != "settings":  # which has no methods of its own
        nodes = planned(tmp_path, f"decoding={option}", "stage=accuracy")
        assert nodes["accuracy"][0].spec.methods


def test_distributions_know_the_temperature_of_the_certificates(tmp_path: Path) -> None:
    def found(*overrides: str) -> tuple[Any, Any]:
        nodes = planned(tmp_path, *overrides)
        return nodes["distributions"][0], nodes["certificates"][0]

    plain, certified = found()
    for temperature, same in (("1.0", True), ("0.6", False)):
        dump, certificates = found(f"certificates.temperature={temperature}")
        assert dump.spec.certified_temperature == float(temperature)
        assert (dump.key == plain.key) == same
        assert (certificates.key == certified.key) == same


@pytest.mark.thorough
def test_a_foreign_model_or_tokenizer_is_refused_only_where_it_is_needed(tmp_path: Path) -> None:
    model = tiny.write_model(tmp_path / "model")
    wanted = ["target=local", f"targets.local.path={model}", "prompts.max_tokens=2000"]
    for stage in ("prompts", "distributions", "certificates", "run_lengths"):
        assert planned(tmp_path, *wanted, f"stage={stage}")[stage]
    message = r"^targets.local.path=.* and drafter.path=.*: their tokenizers .*drafter=none$"
    for stage in ("drafts", "acceptance", "decoding", "report"):
        with pytest.raises(PipelineError, match=message):
            planned(tmp_path, *wanted, f"stage={stage}")
    assert planned(tmp_path, *wanted, "stage=report", "drafter=none")["report"]
    (model / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(PipelineError, match=r"^targets.local.path=.*: MambaForCausalLM takes no k"):
        cli.run(mini(*wanted, "drafter=none", "stage=certificates", f"outputs={tmp_path}"))
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize(
    "override",
    ["device=null", "drafter=null", "+prompts=null", "study=[1]", "criteria=7", "criteria=paper,7",
     "target=true", "criteria=1e3", "target=[mini_large,7]"],
)  # fmt: skip
def test_a_group_takes_a_name(override: str) -> None:
    with pytest.raises(
        PipelineError, match=rf"^{re.escape(override)} is not allowed: give one of "
    ):
        check_overrides([override])
    check_overrides(["device=auto", "targets.a.revision=null", "device.threads=null", "-m"])
    check_overrides(["criteria=paper,'log'", "criteria=glob(*)", "target=[mini_large,mini_small]"])


@pytest.mark.parametrize(
    "value",
    ["{rule: additive, t: 0.1, t: 0.2}", "{t:1,rule:x,t:1}", "[{a: 1}, {t: 1, b: [1, 2], t: 2}]",
     "{a: {b: 1}, t: ':,', t: 0}"],
)  # fmt: skip
def test_a_key_is_given_once(value: str) -> None:
    with pytest.raises(PipelineError, match=f"^{re.escape(f'+x={value}')} gives t twice: give it"):
        composed([f"+x={value}"])


@pytest.mark.parametrize(
    "value",
    ["[{t: 1}, {t: 2}]", "{a: {t: 1}, t: 2}", "{a: 't: 1, t: 2', t: 3}", "[t:1, t:2]",
     "${oc.env:t, t:1, t:2}", "{}"],
)  # fmt: skip
def test_a_key_of_another_mapping_is_another(value: str) -> None:
    check_overrides([f"+x={value}"])


OWN = ["criteria=additive", "criteria.rule=leaver", "~criteria.t", "+criteria.a=0.1"]


@pytest.mark.parametrize(
    ("arguments", "file", "content", "message"),
    [
        (["criteria=x"], "criteria/x.yaml", b"rule: [a\nt: 1\n", "x.yaml, line 2: no YAML"),
        (["criteria=x"], "criteria/x.yaml", b"rule: \xfc\n", "criteria/x.yaml is not in UTF-8 "),
        (OWN, "own_rule_a.py", b"def f(:\n", "module='own_rule_a' cannot be imported: SyntaxError"),
    ],
)  # fmt: skip
def test_a_wrong_file_or_rule_is_one_line(
    arguments: list[str], file: str, content: bytes, message: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "criteria").mkdir()
    (tmp_path / file).write_bytes(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    module = [f"+criteria.module={file[:-3]}"] if file.endswith(".py") else []
    given = [
        "--config-dir",
        str(tmp_path),
        "study=mini",
        *arguments,
        *module,
        f"outputs={tmp_path}",
    ]
    monkeypatch.setattr(sys, "argv", ["pipeline", *given])
    GlobalHydra.instance().clear()
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert str(end.value).startswith("error: ")
    assert message in str(end.value)
    assert "\n" not in str(end.value)


def test_files_of_a_command_line_are_no_overrides(tmp_path: Path) -> None:
    """Nor are an address with a query, or an existing file whose name is like an override."""
    answers = tmp_path / "k=5.jsonl"
    answers.touch()
    long = f"solve.ranges=[{','.join(['additive'] * 100)}]"
    words = [str(answers), "http://h/?a=b", "study=mini", "+a.b=1", "~drafter", long, "x-1/k=5"]
    assert files_and_overrides([*words, "--config-dir", "own"]) == (
        [str(answers), "http://h/?a=b", "x-1/k=5"],
        ["study=mini", "+a.b=1", "~drafter", long, "--config-dir=own"],
    )


def test_own_files_reach_every_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study of one's own, found by the range that its value leaves."""
    (tmp_path / "study").mkdir()
    (tmp_path / "study/mine.yaml").write_text(
        "# @package _global_\ndefaults: [mini, _self_]\nprompts: {count: 0}\n"
    )
    given = [f"--config-dir={tmp_path}", "study=mine", f"outputs={tmp_path}"]
    GlobalHydra.instance().clear()
    for name, first in {
        "solve": [], "ask": ["http://127.0.0.1:1"], "check_engine": ["a.jsonl"],
    }.items():  # fmt: skip
        for words in ([*first, *given], [*first, "--config-dir", str(tmp_path), *given[1:]]):
            with pytest.raises(SystemExit, match=r"prompts\.count=0 is not allowed"):
                import_module(f"pipeline.{name}").main(words)
    words_of = list[Any]()
    monkeypatch.setattr(harness, "evaluate", lambda *words, **_: words_of.extend(words) or [])
    harness.main(["--config-dir", "own", "facts", "study=mine"])
    assert words_of == [["facts"], None, None, ["--config-dir=own", "study=mine"]]
    with pytest.raises(PipelineError, match=r"--config-dir .*nothing is no directory"):
        composed(["--config-dir", f"{tmp_path}/nothing", "study=mini"])
