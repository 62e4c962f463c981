"""Every configuration composes; wrong values fail before any work and say what is allowed."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from analysis.fields import FieldError, check
from analysis.rules.rule import REGISTRY, Rule, register
from conf import schema
from pipeline import cli
from pipeline.errors import PipelineError
from pipeline.paths import CONF, ROOT
from pipeline.plan.composition import (
    EXPECTED_ERRORS,
    check_groups,
    explain,
    given,
    quoted,
    report_name,
    settings_of,
)
from pipeline.plan.slices import build_dials, build_rules, check_stored_tokens
from tests.pipeline import tiny

GROUPS = ("study", "target", "drafter", "prompts", "criteria", "decoding", "accuracy", "device")
OPTIONS = [(group, path.stem) for group in GROUPS for path in sorted((CONF / group).glob("*.yaml"))]


@pytest.fixture(autouse=True)
def hydra() -> Iterator[None]:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield
    GlobalHydra.instance().clear()


def settings(*overrides: str) -> schema.Config:
    found = OmegaConf.to_object(compose("config", list(overrides)))
    assert isinstance(found, schema.Config)
    return found


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_composes(group: str, option: str) -> None:
    added = "+target" if group == "target" else group
    extra = {
        ("target", "local"): ["targets.local.path=x"],
        ("target", "log"): ["targets.log.path=x"],
        ("study", "log"): ["targets.log.path=x"],
        ("drafter", "local"): ["drafter.path=x"],
        ("drafter", "log"): ["drafter.path=x"],
        ("drafter", "local_head"): ["drafter.path=x"],
        ("drafter", "eagle3"): ["drafter.path=x"],
        ("prompts", "default"): ["prompts.source=x"],
    }
    found = settings(f"{added}={option}", *extra.get((group, option), []))
    check(found)
    assert build_rules(found.criteria)


def test_studies() -> None:
    mini, paper = settings(), settings("study=paper")
    assert (mini.study, paper.study) == ("mini", "paper")
    assert [target.label for target in mini.targets.values()] == ["mini-large", "mini-small"]
    paths = [target.path for target in paper.targets.values()]
    assert paths == ["Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B"]
    assert (paper.prompts.count, paper.prompts.min_tokens) == (500, 64)
    assert paper.distributions.steps == 128
    assert (mini.device.name, paper.device.name) == ("cpu", "cuda")
    assert (mini.distributions.temperature > 0, paper.distributions.temperature) == (True, 0)
    assert paper.prompts.source == "HuggingFaceH4/ultrachat_200k"
    assert len(build_rules(mini.criteria)) == len(build_rules(paper.criteria)) == 40


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("distributions.k=0", "distributions.k=0 is not allowed: give an integer of at least 1"),
        ("distributions.temperature=-1", "distributions.temperature=-1.0 is not allowed"),
        ("distributions.temperature=inf", "distributions.temperature=inf is not allowed"),
        ("run_lengths.eps=[0.1,nan]", "run_lengths.eps=[0.1, nan] is not allowed"),
        ("prompts.count=0", "prompts.count=0"),
        ("run_lengths.eps=[0.1,0.1]", "run_lengths.eps=[0.1, 0.1] is not allowed"),
        ("targets.mini_large.label=../x", "label=../x is not allowed: give a name that begins"),
        ("certificates.temperature=1e-320", "give a number of at least 0.01"),
        ("targets.mini_large.dtype=int8", "targets.mini_large.dtype=int8 is not allowed: give one"),
        (
            "targets.mini_large.label='a\nb'",
            r"label='a\nb' is not allowed: give a name that begins",
        ),
        ("drafter.label='a\x07b'", r"drafter.label='a\x07b' is not allowed"),
        (f"drafter.label='{'ä' * 51}'", "and of at most 100 bytes"),
        ("study_name=a/b", "study_name=a/b is not allowed: give null or a name"),
        ("outputs=", "outputs= is not allowed: give a directory"),
        ("outputs=' '", "outputs=  is not allowed: give a directory"),
        ("prompts.source=", "prompts.source= is not allowed: give a file, a directory or a hub id"),
        ("run_lengths.eps=[]", "run_lengths.eps"),
        ("distributions.temperatures=[0.5,0.5]", "[0.5, 0.5] is not allowed: give a list of diff"),
        ("distributions.temperatures=[0]", "temperatures=[0.0] is not allowed"),
        ("execution.engine=dask", "execution.engine=dask is not allowed: give one of inline, ray"),
        ("execution.workers=0", "execution.workers=0 is not allowed: give null or an integer"),
        ("execution.address=here", "execution.address=here is not allowed: give null, auto or H"),
        ("device.name=tpu", "device.name=tpu is not allowed: give auto, cpu, cuda"),
        ("stage=nothing", "stage=nothing is not allowed: give one of prompts"),
    ],
)
def test_out_of_range_values_name_key_value_and_range(override: str, message: str) -> None:
    with pytest.raises(FieldError) as error:
        check(settings(override))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("distributions.kk=3", "'distributions.kk': .*: known there are k, log, seed, source, st"),
        ("+distributions.kk=3", "distributions.kk is not known: known there are k, log, seed"),
        ("~distributions", "distributions must be given"),
        (
            "distributions.k=many",
            "distributions.k=many: Value 'many' .*Integer at .*: give an integer of at",
        ),
        ("targets.mini_large.dtype=null", "targets.mini_large.dtype.*: give one of float32"),
        ("run_lengths.eps=0.1", "run_lengths.eps=0.1: .*: give a non-empty list of differ"),
        ("prompts=none", "'prompts/none': give one of default, mini, smollm2, ultrachat"),
        ("distributions.k=[", r"'distributions.k=\[' can't be read as an override"),
        ("outputs=o'brien", "can't be read as an override.*is quoted: \"key='VALUE'\""),
        ("criteria.t=0.1", r"'criteria.t'.*; add criteria=additive \(or topm_additive\)"),
        ("criteria.eps0=0.1", "'criteria.eps0'.*; add criteria=typical$"),
    ],
)
def test_typos_are_named_in_one_line_with_what_is_known(override: str, message: str) -> None:
    with pytest.raises(EXPECTED_ERRORS) as error:
        settings_of(compose("config", [override]))
    assert re.search(message, explain(error.value))
    assert "\n" not in explain(error.value)


def test_missing_values_are_named() -> None:
    with pytest.raises(PipelineError, match=r"^targets\.local\.path must be given"):
        cli.prepare(compose("config", ["+target=local"]))


@pytest.mark.thorough
def test_the_report_of_a_changed_configuration_has_a_place_of_its_own() -> None:
    def name(*overrides: str) -> str:
        return report_name(compose("config", list(overrides)))

    plain = ["outputs=x", "stage=acceptance", "device.threads=3", "criteria=paper"]
    assert name() == name(*plain) == "mini"
    assert name("study=paper") == "paper"
    changed = {
        name(*overrides)
        for overrides in (
            ["prompts.count=5"],
            ["prompts.count=6"],
            ["criteria=additive"],
            ["criteria=additive", "criteria.t=0.2"],
            ["drafter=none"],
            ["~targets.mini_small"],
            ["targets.mini_small.label=x"],
            ["study=paper", "prompts.count=5"],
            ["targets.mini_small.path=/a/b"],
            ["targets.mini_small.path=/a_b"],
        )
    }
    assert len(changed) == 10
    assert not {"mini", "paper"} & changed
    assert all(
        re.fullmatch(r"(mini|paper)-[\w.=-]+-[0-9a-f]{8}|mini-[0-9a-f]{8}", n) for n in changed
    )
    assert name("prompts.count=5").startswith("mini-prompts.count=5-")
    both = ["prompts.count=5", "prompts.seed=1"]
    assert name(*both) == name(*reversed(both))
    assert name("prompts.count=5", "study_name=five") == "five"
    every = [f"prompts.{key}=77" for key in ("count", "min_tokens", "max_tokens", "seed")]
    assert len(name(*every, "distributions.k=77", "distributions.steps=77")) < 100


def test_keys_of_targets_are_names() -> None:
    config = settings()
    config.targets["a\nb"] = config.targets.pop("mini_small")
    with pytest.raises(FieldError, match=r"targets: 'a\\nb' is not allowed: give a name"):
        check(config)


def test_a_study_is_named_as_its_file() -> None:
    config = compose("config")
    config.study = "another"
    with pytest.raises(PipelineError, match=r"name the file another\.yaml, or .*study_name=NAME"):
        report_name(config)


@pytest.mark.parametrize(
    "text", ["/a b", "/o'b", '/a"b', "/a\\b", "/a\\'b", "/${x}/y", "/\\${x}", "/a\\", "/x,y=[z]{w}"]
)
def test_any_path_survives_as_an_override(text: str) -> None:
    override = f"outputs={quoted(text)}"
    assert given([override], "outputs") == text
    assert compose("config", [override]).outputs == text


def test_what_is_given_on_the_command_line() -> None:
    assert given(["a=1", "outputs=x", "outputs=y"], "outputs") == "y"
    assert given(["outputs="], "outputs") == ""
    assert given(["outputs=${root:}/x"], "outputs") == f"{ROOT}/x"
    for arguments in (["a=1"], ["outputs=x,y"], ["outputs=null"]):
        assert given(arguments, "outputs") is None


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["mini-large", "mini-large"], "label=mini-large is given to two targets"),
        (["mini-large", "mini_large"], "'mini-large, greedy' and 'mini_large, greedy' have the sa"),
        (["日本", "中国"], "have the same letters"),
    ],
)
def test_a_report_can_tell_targets_apart(labels: list[str], message: str, tmp_path: Path) -> None:
    keys = ("mini_large", "mini_small")
    named = [f"targets.{key}.label='{label}'" for key, label in zip(keys, labels, strict=True)]
    with pytest.raises(PipelineError, match=message):
        cli.prepare(compose("config", [*named, f"outputs={tmp_path}"]))
    assert cli.prepare(compose("config", [*named, f"outputs={tmp_path}", "stage=acceptance"]))


def test_dials_are_refused_before_any_work() -> None:
    with pytest.raises(PipelineError, match="3 is no dial: give a mapping"):
        build_dials([3])
    dial = {"rule": "additive", "t": [0.1, 0.2]}
    with pytest.raises(PipelineError, match="additive, t is given twice"):
        build_dials([dial, {**dial, "t": [0.3, 0.4]}])


def test_names_of_presets_and_rules_stand_on_one_line() -> None:
    with pytest.raises(PipelineError, match=r"'acceptance.presets.a\\nb' is not allowed"):
        build_rules({"rule": "greedy"}, "acceptance.presets.a\nb")
    with pytest.raises(PipelineError, match=r"convention='a.*' is not allowed"):
        build_rules({"rule": "topm_additive", "m": 2, "t": 0.1, "convention": "a\nb"})
    for name in ("_hidden", "two\nlines", "", "1"):
        with pytest.raises(ValueError, match="begins with a letter"):
            register(name)(Rule)


@pytest.mark.parametrize(
    ("criteria", "message"),
    [
        ({}, "give one rule"),
        ({"rule": "additve", "t": 0.1}, "additve"),
        ({"rule": "additive", "t": 2.0}, "t"),
        ({"rule": "additive", "s": 0.1}, "s"),
        ({"rules": [{"rule": "greedy"}, {"rule": "greedy"}]}, "twice"),
        ({"rules": []}, r"criteria.rules=\[\] is not allowed: give at least one rule"),
        ({"rules": None}, "criteria.rules=None is not allowed"),
        ({"rule": "additive", "t": []}, r"additive: t=\[\] is not allowed: give at least one"),
    ],
)
def test_bad_rules_are_refused(criteria: dict[str, object], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        build_rules(criteria)


def test_k_too_small_for_a_rule_is_refused_before_any_work(tmp_path: Path) -> None:
    config = compose("config", ["distributions.k=8", f"outputs={tmp_path}"])
    with pytest.raises(PipelineError, match=r"distributions\.k=8 is too small for .* m=8"):
        cli.prepare(config)
    assert not list(tmp_path.iterdir())
    rule: Any = SimpleNamespace(label="needy", minimum_k="three")
    with pytest.raises(PipelineError, match="rule 'needy': minimum_k='three' must be an integer"):
        check_stored_tokens([rule], 8)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["prompts.min_tokens=99", "prompts.max_tokens=98"], "min_tokens=99 exceeds .*=98"),
        pytest.param(
            ["device.name=cuda:0"],
            "device.name=cuda:0: torch finds no CUDA device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_what_cannot_succeed_is_refused_before_any_work(
    overrides: list[str], message: str, tmp_path: Path
) -> None:
    config = compose("config", [*overrides, f"outputs={tmp_path}"])
    with pytest.raises(PipelineError, match=message):
        cli.run(config)
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize(("count", "decoded"), [(2, 2), (30, 30), (31, 30)])
def test_decoding_takes_all_prompts_of_a_small_study(
    count: int, decoded: int, tmp_path: Path
) -> None:
    wanted = [f"prompts.count={count}", "stage=decoding", f"outputs={tmp_path}"]
    _, nodes, _ = cli.prepare(compose("config", wanted))
    assert {node.config["prompts"] for node in nodes["decoding"]} == {decoded}


def test_a_draft_length_for_all_methods_has_an_artifact_of_its_own(tmp_path: Path) -> None:
    def planned(*overrides: str) -> Any:
        wanted = ["study=mini", "stage=decoding", f"outputs={tmp_path}", *overrides]
        return cli.prepare(compose("config", wanted))[1]["decoding"][0]

    default, one, three = (planned(f"decoding.draft_length={at}") for at in ("null", 1, 3))
    assert len({node.fingerprint for node in (default, one, three)}) == 3
    assert {method["draft_length"] for method in three.config["methods"]} == {3}
    with pytest.raises(FieldError, match=r"decoding\.draft_length=0 is not allowed"):
        planned("decoding.draft_length=0")


def test_a_temperature_on_the_list_needs_no_new_distributions(tmp_path: Path) -> None:
    def planned(*overrides: str) -> tuple[Any, Any]:
        found = cli.prepare(compose("config", [f"outputs={tmp_path}", *overrides]))[1]
        return found["distributions"][0], found["certificates"][0]

    listed = "distributions.temperatures=[0.5,1,0.7]"
    plain, certified = planned(listed)
    assert plain.config["temperatures"] == [0.5, 0.7]
    for temperature, same in (("0.7", True), ("1.0", True), ("0.6", False)):
        dump, certificates = planned(listed, f"certificates.temperature={temperature}")
        assert (dump.fingerprint == plain.fingerprint) == same
        assert (certificates.fingerprint == certified.fingerprint) == (temperature == "1.0")
    assert dump.config["temperatures"] == [0.5, 0.6, 0.7]
    assert planned("distributions.temperatures=[]")[0].config["temperatures"] == []


def test_certificates_of_another_divergence_are_artifacts_of_their_own(tmp_path: Path) -> None:
    def planned(*overrides: str) -> dict[str, Any]:
        wanted = [f"outputs={tmp_path}", "stage=run_lengths", *overrides]
        return cli.prepare(compose("config", wanted))[1]

    def of(name: str) -> Any:
        return planned(f"certificates.divergence={name}")["certificates"][0]

    plain = planned()["certificates"][0]
    assert set(plain.config) == {"rule", "temperature"}  # as before there were others
    assert of("kl").fingerprint == of("renyi:1").fingerprint == plain.fingerprint
    assert of("renyi:0.50").fingerprint == of("renyi:0.5").fingerprint
    names = ("kl", "tv", "hellinger", "reverse_kl", "renyi:0.5", "renyi:2")
    assert len({of(name).fingerprint for name in names}) == len(names)
    for wrong in ("js", "renyi:0", "renyi:-1", "renyi", "TV"):
        with pytest.raises(PipelineError, match=r"^certificates\.divergence='.*give kl, tv, hell"):
            of(wrong)
    with pytest.raises(PipelineError, match=r"divergence=tv is not for stage=report"):
        planned("certificates.divergence=tv", "stage=report")


@pytest.mark.parametrize("count", [0, 10**12])
def test_resamples_that_no_machine_holds_are_refused(count: int) -> None:
    with pytest.raises(FieldError, match=r"statistics\.resamples=.*an integer from 1 to 100000"):
        check(settings(f"statistics.resamples={count}"))


@pytest.mark.parametrize("names", ["[]", "[tv,tv]", "[js]"])
def test_divergences_that_are_not_measured_are_refused(names: str) -> None:
    with pytest.raises(FieldError, match=r"acceptance\.divergences=.*different ones of kl, tv"):
        check(settings(f"acceptance.divergences={names}"))


@pytest.mark.parametrize(
    "override", ["share=0", "share=1.1", "tokens=0.9", "eps=-0.1", "draft_lengths=[0]"]
)
def test_impossible_questions_are_refused(override: str) -> None:
    key, value = override.split("=")
    with pytest.raises(FieldError, match=rf"^solve\.{key}=.* is not allowed: give a"):
        check(settings(f"solve.{key}={value}"))


@pytest.mark.thorough
def test_a_foreign_tokenizer_is_refused_only_where_a_drafter_is_needed(tmp_path: Path) -> None:
    model = tiny.write_model(tmp_path / "model")
    wanted = ["target=local", f"targets.local.path={model}", f"outputs={tmp_path}"]
    for stage in ("prompts", "distributions", "certificates", "run_lengths"):
        assert cli.prepare(compose("config", [*wanted, f"stage={stage}"]))[1][stage]
    message = r"^targets.local.path=.* and drafter.path=.*: their tokenizers .*drafter=none$"
    for stage in ("drafts", "acceptance", "decoding", "accuracy", "report"):
        with pytest.raises(PipelineError, match=message):
            cli.prepare(compose("config", [*wanted, f"stage={stage}"]))
    assert cli.prepare(compose("config", [*wanted, "stage=report", "drafter=none"]))[1]["report"]


def test_models_are_looked_at_before_any_work(tmp_path: Path) -> None:
    model = tiny.write_model(tmp_path / "model")
    wanted = ["target=local", f"targets.local.path={model}", f"outputs={tmp_path}", "drafter=none",
              "prompts.count=2"]  # fmt: skip
    (model / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(
        PipelineError, match=r"^targets.local.path=.*: MambaForCausalLM takes no key"
    ):
        cli.run(compose("config", [*wanted, "stage=certificates"]))
    with pytest.raises(PipelineError, match=r"^device.threads=1000000 exceeds the \d+ processors"):
        cli.run(compose("config", [*wanted, "device.threads=1000000"]))
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize("override", ["device=null", "drafter=null", "+prompts=null"])
def test_a_group_is_not_null(override: str) -> None:
    with pytest.raises(
        PipelineError, match=rf"^{re.escape(override)} is not allowed: give one of "
    ):
        check_groups([override])
    check_groups(["device=auto", "targets.a.revision=null", "device.threads=null", "-m"])


def test_fewer_prompts_than_decoding_wants_are_enough_for_other_stages(tmp_path: Path) -> None:
    wanted = ["prompts.count=2", "stage=acceptance", f"outputs={tmp_path}"]
    assert cli.prepare(compose("config", wanted))[1]["acceptance"]


OWN_RULE = """import sys
from dataclasses import dataclass
from analysis.rules import Cut, Rule, register
@register("leaver")
@dataclass(frozen=True)
class Leaver(Rule):
    a: float
    {where}
        {what}
"""
OWN = ["criteria=additive", "criteria.rule=leaver", "~criteria.t", "+criteria.a=0.1"]


@pytest.mark.parametrize(
    ("arguments", "file", "content", "message"),
    [
        (["criteria=x"], "criteria/x.yaml", b"rule: [a\nt: 1\n", "x.yaml, line 2: no YAML"),
        (["criteria=x"], "criteria/x.yaml", b"rule: \xfc\n", "x.yaml: not in UTF-8 "),
        (["criteria=x"], "criteria/x.yaml", b"rule: !tag x\n", "x.yaml, line 1: no YAML"),
        (["study=[1]"], "", b"", "study=[1] is not allowed: give one of log, mini, paper, smollm2"),
        (["criteria=[7]"], "", b"", "criteria=[7] is not allowed: give one of absolute, additive"),
        (OWN, "own_rule_a.py", b"def f(:\n", "module='own_rule_a' cannot be imported: SyntaxError"),
        (OWN, "own_rule_b.py", OWN_RULE.format(
            where="def __post_init__(self):", what="sys.exit(0)").encode(),
            "own_rule_b.py, line 9: a rule raised SystemExit: 0"),
        (OWN, "own_rule_c.py", OWN_RULE.format(
            where="@property\n    def minimum_k(self):", what="sys.exit(0)").encode(),
            "own_rule_c.py, line 10: a rule raised SystemExit: 0"),
        (OWN, "own_rule_d.py", OWN_RULE.format(
            where="@property\n    def label(self):", what="return {}['x']").encode(),
            "own_rule_d.py, line 10: a rule raised KeyError: 'x'"),
    ],
)  # fmt: skip
def test_a_wrong_file_value_or_rule_is_one_line(
    arguments: list[str], file: str, content: bytes, message: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "criteria").mkdir()
    (tmp_path / (file or "none")).write_bytes(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    module = [f"+criteria.module={file[:-3]}"] if file.endswith(".py") else []
    given = ["--config-dir", str(tmp_path), *arguments, *module, f"outputs={tmp_path}/outputs"]
    monkeypatch.setattr(sys, "argv", ["pipeline", *given])
    GlobalHydra.instance().clear()
    try:
        with pytest.raises(SystemExit) as end:
            cli.main()
    finally:
        REGISTRY.pop("leaver", None)
    assert str(end.value).startswith("error: ")
    assert message in str(end.value)
    assert "\n" not in str(end.value)


@pytest.mark.parametrize(
    "name", ["solve", "fetch", "engine_metrics", "verify", "training.drafter", "training.text"]
)
def test_every_command_says_how_it_is_used(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    for module in (f"pipeline.{name}", f"pipeline.{name}.__main__"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(SystemExit) as end:
        runpy.run_module(f"pipeline.{name}", run_name="__main__", alter_sys=True)
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: python -m pipeline.{name} ")
