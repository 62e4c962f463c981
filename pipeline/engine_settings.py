"""A solved setting as inference engines take it: flags, or a file, with what was measured.

``python -m pipeline.solve solve.engine=sglang`` writes one for each draft length. docs/engines.md
says where each engine differs from the rule here, and names the sources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from analysis.rules import Rule

Written = Callable[["Setting"], list[str]]


@dataclass(frozen=True)
class Setting:
    """What an engine is to run.

    Attributes:
        rule: solved.
        draft_length: drafted tokens a call.
        target: a directory or a hub id.
        drafter: likewise; None where the study has none.
        head: whether the drafter is a head on the target's hidden states.
        temperature: of the certified distribution.
    """

    rule: Rule
    draft_length: int
    target: str
    drafter: str | None
    head: bool
    temperature: float

    @property
    def drafter_path(self) -> str:
        """The drafter, or a word to be replaced by it."""
        return self.drafter or "DRAFTER"


@dataclass(frozen=True)
class Engine:
    """An engine: its rule, how its settings are written, and what it does differently.

    Attributes:
        dial: its rule and the range of the parameter; of strict greedy there is nothing to turn.
        suffix: of the file.
        write: gives the lines.
        differs: from the rule here.
    """

    dial: Mapping[str, Any] | None
    suffix: str
    write: Written
    differs: tuple[str, ...]


def _vllm(setting: Setting) -> list[str]:
    method = "eagle3" if setting.head else "draft_model"
    config = (
        f'{{"method": "{method}", "model": "{setting.drafter_path}", '
        f'"num_speculative_tokens": {setting.draft_length}}}'
    )
    return [f"vllm serve {setting.target} --speculative-config '{config}'"]


def _sglang(setting: Setting) -> list[str]:
    algorithm = "EAGLE3" if setting.head else "STANDALONE"
    theta = setting.rule.parameters["theta"]
    return [
        f"python -m sglang.launch_server --model-path {setting.target} \\",
        f"  --speculative-algorithm {algorithm} \\",
        f"  --speculative-draft-model-path {setting.drafter_path} \\",
        f"  --speculative-num-steps {setting.draft_length} --speculative-eagle-topk 1 \\",
        f"  --speculative-num-draft-tokens {setting.draft_length + 1} \\",
        f"  --speculative-accept-threshold-single {theta:g} \\",
        "  --speculative-accept-threshold-acc 1.0",
    ]


def _tensorrt_llm(setting: Setting) -> list[str]:
    m, t = (setting.rule.parameters[name] for name in ("m", "t"))
    return [
        "speculative_config:",
        "  decoding_type: MTP",
        f"  num_nextn_predict_layers: {setting.draft_length}",
        "  use_relaxed_acceptance_for_thinking: true",
        f"  relaxed_topk: {m}",
        f"  relaxed_delta: {t:g}",
    ]


def _medusa(setting: Setting) -> list[str]:
    eps0, delta0 = (setting.rule.parameters[name] for name in ("eps0", "delta0"))
    return [
        'model.medusa_generate(input_ids, sampling="typical", '
        f"temperature={setting.temperature:g},",
        f"                      posterior_threshold={eps0:g}, posterior_alpha={delta0:g})",
    ]


def _llama_cpp(setting: Setting) -> list[str]:
    return [
        f"llama-server -m {setting.target} -md {setting.drafter_path} "
        f"--spec-draft-n-max {setting.draft_length} --temp 0"
    ]


ENGINES = {
    "vllm": Engine(
        None,
        "sh",
        _vllm,
        (
            "vLLM has no relaxed rule: at temperature 0 it is strict greedy, above it is lossless "
            "sampling. Only the draft length is set.",
        ),
    ),
    "sglang": Engine(
        {"rule": "absolute", "theta": [0.9999, 0.0001]},
        "sh",
        _sglang,
        (
            "SGLang accepts p >= threshold, and gives a token that fails a second, stochastic "
            "test: it accepts more than was certified. An argmax below the threshold is always "
            "accepted here, and not there.",
            "num-draft-tokens counts the target's own token as well.",
        ),
    ),
    "tensorrt_llm": Engine(
        {"rule": "topm_additive", "m": 10, "t": [0.0, 1.0], "convention": "rank"},
        "yaml",
        _tensorrt_llm,
        (
            "TensorRT-LLM accepts p >= p0 - delta, and only inside the thinking phase; elsewhere "
            "it is strict greedy. The drafts are those of MTP layers: the draft length is theirs.",
        ),
    ),
    "medusa": Engine(
        {"rule": "typical", "eps0": [0.9999, 0.0001], "delta0": 0.3},
        "py",
        _medusa,
        (
            "Medusa's entropy is -sum p log(p + 1e-5). The heads decide the draft length, and the "
            "temperature is the one that was certified.",
        ),
    ),
    "llama_cpp": Engine(
        None,
        "sh",
        _llama_cpp,
        (
            "llama.cpp accepts what its own sampler draws: strict greedy at temperature 0. Only "
            "the draft length is set.",
            "Model files are GGUF: put theirs in the place of these paths. Older versions call the "
            "draft length --draft-max.",
        ),
    ),
}


def setting_text(engine: str, setting: Setting, measured: list[str]) -> str:
    """Return the lines of a file: what was measured and what differs as comments, and the setting.

    Args:
        engine: a key of `ENGINES`.
        setting: of it.
        measured: sentences.
    """
    said = [*measured, *(f"Differs: {text}" for text in ENGINES[engine].differs)]
    lines = [f"# {line}" for line in said] + ENGINES[engine].write(setting)
    return "\n".join(lines) + "\n"
