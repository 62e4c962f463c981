"""Solved settings as engines take them: every file can be read as what it is."""

from __future__ import annotations

import ast
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from analysis.rules import AbsoluteThreshold, Rule, StrictGreedy, TopMAdditive, Typical
from analysis.rules.build import build
from analysis.topk import TopK
from conf import schema
from pipeline import solve
from pipeline.engines import settings as engine_settings
from pipeline.engines.settings import ENGINES, setting_text
from pipeline.paths import CONF
from tests.conftest import SmallStudy

RULES: dict[str, Rule] = {
    "vllm": StrictGreedy(),
    "sglang": AbsoluteThreshold(0.25),
    "tensorrt_llm": TopMAdditive(10, 0.6),
    "medusa": Typical(0.09, 0.3),
    "llama_cpp": StrictGreedy(),
}


def written(
    engine: str, drafter: str | None = "a/drafter", head: bool = False, rule: Rule | None = None,
    target: str = "a/target",
) -> str:  # fmt: skip
    return setting_text(
        engine, ["96 prompts."], rule=rule or RULES[engine], strictest=STRICTEST.get(engine),
        draft_length=3, target=target, drafter=drafter, head=head, temperature=0.7,
    )  # fmt: skip


RANGES = yaml.safe_load((CONF / "rules/default.yaml").read_text())["ranges"]
STRICTEST = {
    name: build({"rule": found["rule"], found["parameter"]: found["ends"][0], **found["fixed"]})
    for name, found in ((name, {"fixed": {}} | RANGES[name]) for name in ENGINES if name in RANGES)
}


def words(text: str) -> list[str]:
    return shlex.split(text.replace("\\\n", " "), comments=True)


def read_yaml(text: str) -> Any:
    return OmegaConf.to_container(OmegaConf.create(text))


def value(text: str, flag: str) -> str:
    found = words(text)
    return found[found.index(flag) + 1]


def test_every_engine_of_the_configuration_is_written_with_a_range_of_its_rule() -> None:
    assert tuple(ENGINES) == schema.ENGINE_NAMES
    for name, engine in ENGINES.items():
        text = written(name)
        assert text.startswith("# 96 prompts.\n# Differs: ")
        assert text.endswith("\n")
        if engine["rule"] is not None:
            assert STRICTEST[name].name == engine["rule"] == RULES[name].name


def test_flags_of_the_shell() -> None:
    for head, method in ((True, "eagle3"), (False, "draft_model")):
        config = json.loads(value(written("vllm", head=head), "--speculative-config"))
        assert config == {"method": method, "model": "a/drafter", "num_speculative_tokens": 3}
    text = written("sglang", head=True)
    assert value(text, "--speculative-algorithm") == "EAGLE3"
    assert value(written("sglang"), "--speculative-algorithm") == "STANDALONE"
    assert value(text, "--speculative-num-steps") == "3"
    assert value(text, "--speculative-num-draft-tokens") == "4"  # with the target's own
    assert float(value(text, "--speculative-accept-threshold-single")) == 0.25
    text = written("llama_cpp", drafter=None)
    assert (value(text, "-md"), value(text, "--spec-draft-n-max")) == ("DRAFTER", "3")
    assert (value(text, "--temp"), value(text, "--spec-draft-p-min")) == ("0", "0")


PACKAGE = "package:a==1.0/b.gguf#sha256=" + 64 * "0" + "&model=owner/name"


def test_paths_are_words_of_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A space, a quote, # and & stay inside one word; a package is the directory made from it."""
    odd = '/models/o\'brien & co #1/"q"'
    for engine, flag in (("sglang", "--speculative-draft-model-path"), ("llama_cpp", "-md")):
        text = written(engine, target=odd, drafter=odd)
        assert odd in words(text)
        assert value(text, flag) == odd
    text = written("vllm", target=odd, drafter=odd)
    assert words(text)[:3] == ["vllm", "serve", odd]
    assert json.loads(value(text, "--speculative-config"))["model"] == odd
    monkeypatch.setattr(engine_settings, "converted", {PACKAGE: tmp_path}.get)
    text = written("vllm", target=PACKAGE, drafter=PACKAGE)
    assert words(text)[2] == str(tmp_path)
    assert json.loads(value(text, "--speculative-config"))["model"] == str(tmp_path)
    monkeypatch.setattr(engine_settings, "converted", {}.get)  # not made yet
    assert words(written("vllm", target=PACKAGE))[2] == PACKAGE


def test_files() -> None:
    assert read_yaml(written("tensorrt_llm")) == {
        "speculative_config": {
            "decoding_type": "MTP",
            "num_nextn_predict_layers": 3,
            "use_relaxed_acceptance_for_thinking": True,
            "relaxed_topk": 10,
            "relaxed_delta": 0.6,
            "begin_thinking_phase_token": "TOKEN_ID",  # refused until it is replaced
            "end_thinking_phase_token": "TOKEN_ID",
        }
    }
    call: Any = ast.parse(written("medusa")).body[0]
    given = {one.arg: ast.literal_eval(one.value) for one in call.value.keywords}
    assert given == {
        "sampling": "typical",
        "temperature": 0.7,
        "posterior_threshold": 0.09,
        "posterior_alpha": 0.3,
    }


def test_a_relaxation_of_nothing_is_said() -> None:
    """At eps0 = 0.9999 Medusa's threshold is 0.3 exp(-H), below p of the second token here."""
    for engine, strict, relaxed in (
        ("tensorrt_llm", TopMAdditive(10, 0.0), TopMAdditive(10, 1e-9)),
        ("sglang", AbsoluteThreshold(0.9999), AbsoluteThreshold(0.9998)),
    ):
        assert "strict greedy decoding suffices" in written(engine, rule=strict)
        assert "suffices" not in written(engine, rule=relaxed)
    rule, dist = Typical(0.9999, 0.3), TopK.from_probabilities([0.5, 0.4, 0.1])
    assert rule.accepted_count(dist)[0] == 2
    assert "suffices" not in written("medusa", rule=rule)


@pytest.mark.thorough
def test_solve_writes_the_answers_as_settings(
    small_study: SmallStudy, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*small_study.overrides, "target=mini_large", "criteria=greedy", "solve.eps=0.05"]
    wanted = ["solve.share=0.8", "solve.tokens=1.5", "solve.draft_lengths=[3]"]
    solve.main([*given, *wanted, "solve.engine=tensorrt_llm"])
    folder = small_study.outputs / "engine_settings"
    text = (folder / "tensorrt_llm-mini-large-3.yaml").read_text()
    delta = read_yaml(text)["speculative_config"]["relaxed_delta"]
    assert f"t = {delta:g}" in text
    assert "Wanted: certified 1.5 tokens, drafts of 3." in text
    assert text in capsys.readouterr().out
    solve.main([*given, *wanted, "solve.engine=vllm"])
    assert "topm_additive" not in capsys.readouterr().out  # nothing to turn
    assert "--speculative-config" in (folder / "vllm-mini-large-3.sh").read_text()
    solve.main([*given, "solve.share=1.0", "solve.tokens=9", "solve.draft_lengths=[9]",
                "solve.engine=sglang", "solve.eps=0.6"])  # fmt: skip
    assert "mini-large, drafts of 9: no setting reaches" in capsys.readouterr().out
    assert not Path(folder / "sglang-mini-large-9.sh").exists()
    with pytest.raises(SystemExit, match=r"error: solve\.engine=x is not allowed: give null or"):
        solve.main([*given, "solve.engine=x"])
