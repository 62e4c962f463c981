"""A solved setting in an inference engine's form, flags or a file, with its measurements.

``python -m pipeline.solve solve.engine=sglang`` writes one for each draft length. docs/engines.md
names the sources.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from string import Template
from typing import Any

from analysis.decoding.lookup import shortest_match
from analysis.rules import Rule
from pipeline.execution.runner import shown
from pipeline.store.node import slug

Setting = Callable[[int], dict[str, Any] | None]  # at a draft length, as `setting_text` takes it

NAMES = {  # as an engine names itself
    "vllm": "vLLM",
    "sglang": "SGLang",
    "tensorrt_llm": "TensorRT-LLM",
    "medusa": "Medusa",
    "llama_cpp": "llama.cpp",
}
# rule: whose parameter it has, with a range in `ranges` of the configuration; None: strict greedy.
# strict: the parameter at whose strict end nothing is relaxed; of Medusa, alpha relaxes still.
# drafters: what the engine calls a drafter that is a language model, and a head.
# text: what is written, into a file with this suffix; lookup: where prompt look-up drafts.
# differs: from the rule here.
ENGINES: dict[str, dict[str, Any]] = {
    "vllm": {
        "rule": None,
        "drafters": ("draft_model", "eagle3"),
        "suffix": "sh",
        "text": "vllm serve $target --speculative-config $config",
        "lookup": "vllm serve $target --speculative-config $ngram",
        "differs": (
            "vLLM has no rule with a threshold: at temperature 0 it is strict greedy, above it is "
            "lossless sampling. Only the draft length is set.",
            "rejection_sample_method stays standard. block is lossless as well; synthetic accepts "
            "at given rates, whatever the models say; fly (proposed in #53987) accepts by what "
            "follows in the draft. None of them has a certificate here.",
        ),
    },
    "sglang": {
        "rule": "absolute",
        "strict": "theta",
        "drafters": ("STANDALONE", "EAGLE3"),
        "suffix": "sh",
        "text": """python -m sglang.launch_server --model-path $target \\
  --speculative-algorithm $kind \\
  --speculative-draft-model-path $drafter \\
  --speculative-num-steps $length --speculative-eagle-topk 1 \\
  --speculative-num-draft-tokens $length_and_own \\
  --speculative-accept-threshold-single $theta \\
  --speculative-accept-threshold-acc 1.0""",
        "differs": (
            "At temperature 0 SGLang verifies greedily, and its thresholds do nothing. Above it, p "
            "is taken after temperature, top-k and top-p: certify that temperature, and send "
            "neither.",
            "SGLang accepts p >= threshold, and gives a token that fails a second, stochastic "
            "test: it accepts more than was certified. An argmax below the threshold is always "
            "accepted here, and not there.",
            "num-draft-tokens counts the target's own token as well.",
        ),
    },
    "tensorrt_llm": {
        "rule": "topm_additive",
        "strict": "t",
        "drafters": ("", ""),
        "suffix": "yaml",
        "text": """speculative_config:
  decoding_type: MTP
  num_nextn_predict_layers: $length
  use_relaxed_acceptance_for_thinking: true
  relaxed_topk: $m
  relaxed_delta: $t
  begin_thinking_phase_token: TOKEN_ID  # of your model's <think>; the default is DeepSeek-R1's
  end_thinking_phase_token: TOKEN_ID  # of its </think>""",
        "differs": (
            "TensorRT-LLM accepts p >= p0 - delta, and only inside the thinking phase; elsewhere "
            "it is strict greedy. The drafts are those of MTP layers: the draft length is theirs.",
            "delta is a gap of probabilities, as here: what the kernel gets is a softmax, though "
            "its variables are called gen_logprobs.",
        ),
    },
    "medusa": {
        "rule": "typical",
        "drafters": ("", ""),
        "suffix": "py",
        "text": """model.medusa_generate(input_ids, sampling="typical", temperature=$temperature,
                      posterior_threshold=$eps0, posterior_alpha=$delta0)""",
        "differs": (
            "Medusa's entropy is -sum p log(p + 1e-5). The heads decide the draft length, and the "
            "temperature is the one that was certified.",
        ),
    },
    "llama_cpp": {
        "rule": None,
        "drafters": ("", ""),
        "suffix": "sh",
        "text": "llama-server -m $target -md $drafter --spec-draft-n-max $length "
        "--spec-draft-p-min 0 --temp 0",
        "lookup": "llama-server -m $target --spec-type ngram-simple "
        "--spec-ngram-simple-size-n $lookup --spec-ngram-simple-size-m $length "
        "--spec-draft-n-max $length --temp 0",
        "differs": (
            "llama.cpp accepts what its own sampler draws: strict greedy at temperature 0. Only "
            "the draft length is set.",
            "--spec-draft-p-min above 0 ends a draft where the drafter is less sure than that: "
            "drafts are then shorter than these.",
            "Model files are GGUF: put theirs in the place of these paths. Older versions call the "
            "flags --draft-max and --draft-p-min.",
        ),
    },
}


def write_settings(
    settings: Any, engine: str, lengths: Sequence[int], label: str, setting: Setting
) -> None:
    """Write and print a file for each draft length.

    Args:
        settings: the configuration.
        engine: a key of `ENGINES`.
        lengths: draft lengths.
        label: printed name of the target.
        setting: what the engine is to run; None where nothing reaches the goal.
    """
    directory = Path(settings.outputs) / "engine_settings"
    directory.mkdir(parents=True, exist_ok=True)
    for length in lengths:
        description = setting(length)
        if description is None:
            print(f"{label}, drafts of {length}: no setting reaches what is wanted")
            continue
        path = directory / slug(f"{engine}-{label}-{length}.{ENGINES[engine]['suffix']}")
        text = setting_text(engine, **description)
        path.write_text(text, encoding="utf-8")
        print(f"{shown(path)}:\n{text}")


def setting_text(
    engine: str,
    measured: list[str],
    *,
    rule: Rule,
    strictest: Rule | None,
    draft_length: int,
    target: str,
    drafter: str | None,
    head: bool,
    temperature: float,
    lookup: int | None = None,
) -> str:
    """Return the lines of a file: measurements and differences as comments, then the setting.

    Args:
        engine: a key of `ENGINES`.
        measured: sentences.
        rule: solved, of the engine's range.
        strictest: the strict end of that range; None where the engine has none.
        draft_length: drafted tokens a call.
        target: a directory or a hub id.
        drafter: likewise; None where the study has none: DRAFTER is to be replaced.
        head: whether the drafter is a head on the target's hidden states.
        temperature: of the certified distribution.
        lookup: tokens that prompt look-up matches, where it drafts in the drafter's place.
    """
    about = ENGINES[engine]
    comments = [*measured, *(f"Differs: {text}" for text in about["differs"])]
    name = about.get("strict")
    if name is not None and strictest and rule.parameters[name] == strictest.parameters[name]:
        comments.append(
            f"{name} = {rule.parameters[name]:g} is the strict end and relaxes nothing, ties "
            "apart: strict greedy decoding suffices, without this rule."
        )
    values = setting_values(
        engine,
        rule,
        target=target,
        drafter=drafter or "DRAFTER",
        head=head,
        temperature=temperature,
        draft_length=draft_length,
    )
    text = about["text"]
    if lookup is not None:
        ngram = {
            "method": "ngram",
            "num_speculative_tokens": draft_length,
            "prompt_lookup_min": shortest_match(lookup),
            "prompt_lookup_max": lookup,
        }
        values |= {"ngram": shlex.quote(json.dumps(ngram)), "lookup": str(lookup)}
        text = about.get("lookup", text)
    lines = [f"# {line}" for line in comments]
    return "\n".join([*lines, Template(text).substitute(values)]) + "\n"


def setting_values(
    engine: str,
    rule: Rule,
    *,
    target: str,
    drafter: str,
    head: bool,
    temperature: float,
    draft_length: int | None,
) -> dict[str, str]:
    """Return the values for the text of an engine, quoted for a shell; args of `setting_text`.

    Without a draft length the placeholders $length and $length_and_own stay.
    """
    model, kind = drafter, ENGINES[engine]["drafters"][head]
    length = "$length" if draft_length is None else str(draft_length)
    config = f'"method": "{kind}", "model": {json.dumps(model)}, "num_speculative_tokens": {length}'
    given = rule.parameters.items()
    values = {name: f"{value:g}" for name, value in given if isinstance(value, int | float)} | {
        "target": shlex.quote(target),
        "drafter": shlex.quote(model),
        "kind": kind,
        "config": shlex.quote(f"{{{config}}}"),
        "temperature": f"{temperature:g}",
        "length": length,
    }
    return values if draft_length is None else values | {"length_and_own": str(draft_length + 1)}
