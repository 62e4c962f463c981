"""Describes, from the records of artifacts, how the numbers of a report were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.acceptance.target import Target
from analysis.decoding.metrics import Decoded
from analysis.report.published import PAPER_MODELS
from analysis.statistics.bootstrap import Resampling
from pipeline.core.stage import Artifact, Json
from pipeline.core.timings import distinct, in_words, machines
from pipeline.stages.report.inputs import Source

WORDS = {  # shown on the page, by stage and key of the record; the rest is in record.json
    "distributions.model.hub": "model",
    "distributions.model.commit": "its commit",
    "distributions.model.content": "model, digest of its files",
    "distributions.model.dtype": "weights",
    "distributions.model.head_dtype": "final projection",
    "distributions.log": "log of the target",
    "distributions.values": "values of the log",
    "distributions.log_prob_error": "largest error of its log-probabilities, nats",
    "prompts.source.hub": "source of the prompts",
    "prompts.source.commit": "commit of that source",
    "prompts.source.content": "source of the prompts, digest of its files",
    "prompts.split": "split of that source",
    "prompts.seed": "seed of the draw",
    "prompts.min_tokens": "tokens of a prompt, at least",
    "prompts.max_tokens": "tokens of a prompt, at most",
    "prompts.template": "template of the prompts",
    "prompts.enable_thinking": "thinking enabled",
    "distributions.steps": "tokens of an answer, at most",
    "distributions.temperature": "temperature of the answers (0: greedy)",
    "distributions.certified_temperature": "temperature of the certified distributions",
    "distributions.k": "stored tokens a step, the most probable",
    "distributions.vocab_size": "tokens of the vocabulary",
    "drafts.drafter.hub": "drafter",
    "drafts.drafter.commit": "commit of the drafter",
    "drafts.drafter.content": "drafter, digest of its files",
    "drafts.drafter.dtype": "weights of the drafter",
    "drafts.drafter.head_dtype": "final projection of the drafter",
}
MESSAGE = "prompt of a conversation"
OPEN = (  # settings that the paper does not state
    *("prompts.split", "prompts.max_tokens", "prompts.seed", "prompts.template"),
    *("prompts.enable_thinking", "distributions.temperature"),
    *("distributions.model.dtype", "distributions.model.head_dtype"),
)


def introduction(setups: Mapping[str, Mapping[str, str]], statistics: Resampling) -> list[str]:
    """Return the paragraphs that introduce the tables; `setups` has the `setup` of each target."""
    texts = [
        "The certificate R of a step is the least KL(p‖q), in nats, at which the rule can reject "
        "the drafter's most probable token; a step is certified at ε when R > ε. Where R is an "
        "interval, its lower end counts; in the CSV files inf means that nothing can be rejected.",
        f"Statistics are over decoding steps, with {100 * statistics.confidence:g} % bootstrap "
        f"intervals over prompts ({statistics.resamples} resamples): docs/method.md.",
    ]
    of_paper = next((facts for name, facts in setups.items() if name in PAPER_MODELS), None)
    if of_paper is None:
        return texts
    names = [MESSAGE, *(WORDS[key] for key in OPEN)]
    ours = "; ".join(f"{name}: {of_paper[name]}" for name in names if name in of_paper)
    return [
        *texts,
        "Published values are those that the paper prints (arXiv 2606.30265v1), of its own prompts "
        "and set-up. No number here is tuned to them.",
        f"The paper does not state these settings, which are ours: {ours}.",
    ]


def setup(target: Target, source: Source) -> dict[str, str]:
    """Return the settings behind a target's numbers, in words."""
    facts = {"decoding steps": str(len(target.tokens)), "prompts": str(target.bootstrap.count)}
    for key, words in WORDS.items():
        value = _value(source, key)
        if value is not None:
            facts[words] = _as_text(value)
    is_log = "log" in source.tasks["prompts"].settings
    if not is_log:
        facts[MESSAGE] = "its first user message"
    excluded = source.artifacts["prompts"].metadata["excluded"]
    rows = [f"{of if is_log else of['rows']} {why}" for why, of in excluded.items()]
    if rows:
        facts["excluded rows"] = ", ".join(rows)
    return facts


def _value(source: Source, name: str) -> Any:
    """Look up a dotted name in the metadata of a stage's artifact, then in its settings."""
    stage, *path = name.split(".")
    if stage not in source.tasks:
        return None
    for entries in (source.artifacts[stage].metadata, source.tasks[stage].settings):
        found: Any = entries
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        if found is not None:
            return found
    return None


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    digest = len(text) == 64 and set(text) <= set("0123456789abcdef")  # a commit is printed whole
    return text[:12] if digest else text


def timed_machines(sources: Sequence[Source]) -> list[Json]:
    """Return the machines on which the methods of a report were timed."""
    decoded = [of.artifacts["decoding"] for of in sources if "decoding" in of.artifacts]
    return distinct([machine for made in decoded for machine in machines(made.record)])


def machine_lines(sources: Sequence[Source]) -> list[str]:
    """Return a line for each machine that methods were timed on, or else distributions made."""
    lines = []
    for source in sources:
        made = source.artifacts
        lines.append(f"Machine: {machine(made.get('decoding', made['distributions']))}")
        if "accuracy" in made:
            lines.append(f"Machine of the right answers: {machine(made['accuracy'])}")
    return list(dict.fromkeys(lines))


def machine(artifact: Artifact) -> str:
    """Say when and on what machine an artifact was made, and with which versions."""
    record = artifact.record
    metadata = artifact.metadata
    timed = machines(record)
    where: list[str | None] = [in_words(timed)]
    if not timed:
        threads = (
            f"{metadata['torch_threads']} CPU thread(s)" if "torch_threads" in metadata else None
        )
        device = metadata.get("device") if metadata.get("device") != "cpu" else None
        torch = f"torch {record['versions']['torch']}"
        where = [record.get("date"), record.get("processor"), device, threads, torch]
    workers = metadata.get("workers", 1)
    parts = [
        *where,
        f"{workers} workers at once" if workers > 1 else None,
        record["platform"],
        *(f"{name} {record['versions'][name]}" for name in ("python", "transformers")),
        record["git"] and f"commit {record['git'][:10]}",
    ]
    return ", ".join(filter(None, parts))


def extent(decoded: Sequence[Decoded], sources: Sequence[Source]) -> list[str]:
    """Say how many prompts and tokens each method's numbers are from, a line for each target."""
    lines = []
    for pair, source in zip(decoded, sources, strict=True):
        tokens = pair.answers.groupby("run")["n_tokens"].sum()
        least = f"{tokens.min():,}"
        most = f"{tokens.max():,}"
        tokens_text = least if least == most else f"{least} to {most}"
        failed = source.artifacts["decoding"].metadata["failed_prompts"]
        failed_text = f" ({failed} more failed)" if failed else ""
        lines.append(
            f"{pair.target} with {pair.drafter}: {pair.n_prompts} prompts{failed_text} for every "
            f"method, up to {source.tasks['decoding'].settings['steps']} tokens each, batch size "
            f"1: {tokens_text} tokens for each method and setting."
        )
    return lines
