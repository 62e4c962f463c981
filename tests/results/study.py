"""A study small enough to commit what it computes: models of 48 tokens, and fixed arrays.

Prompts, distributions, drafts, decoding and the report are computed by two models whose weights
are the integers of a frozen generator, so they are the same everywhere. Certificates, run lengths
and acceptance begin from the numbers in inputs.json, which no model computed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from analysis.acceptance import divergences
from pipeline.execution import runner
from pipeline.loader import Study
from pipeline.plan.graph import VERSIONS
from pipeline.store import columns
from pipeline.store.artifacts import Artifact, Store
from pipeline.store.node import Node
from tests.analysis.cases import stored_columns
from tests.results.models import write_model, write_prompts

INPUTS = json.loads(Path(__file__).with_name("inputs.json").read_text())
TARGET, DRAFT = (np.array(INPUTS[name], dtype=np.float32) for name in ("target", "draft"))
V, K = TARGET.shape[1], 8
SAMPLED = 0.5  # temperature at which the fixed text is taken to be sampled
STORED = {"top": K, "but_one": V - 1, "all": V}  # how many tokens of the fixed logits are stored
STEPS = {
    "prompt_id": np.repeat([f"prompt-{at}" for at in range(5)], INPUTS["lengths"]),
    "position": np.concatenate([np.arange(n) for n in INPUTS["lengths"]]),
}
RULES = [
    "{rule: greedy}",
    "{rule: additive, t: [0.02, 0.2]}",
    "{rule: multiplicative, alpha: 0.4}",
    "{rule: topm_additive, m: 2, t: 0.2, convention: rank}",
    "{rule: topm_multiplicative, m: 3, alpha: 0.1, convention: rank}",
    "{rule: typical, eps0: 0.1, delta0: 0.09}",
    "{rule: absolute, theta: 0.15}",
    "{rule: mars, theta: 0.9}",
    "{rule: tree, m: [2, 4]}",
]
METHODS = [
    "{drafter: model, rule: greedy, draft_length: [1, 3], temperature: 0}",
    "{drafter: prompt_lookup, rule: greedy, draft_length: 3, temperature: 0}",
    "{drafter: model, rule: additive, t: 0.2, draft_length: 3, temperature: 0}",
    "{drafter: model, rule: mars, theta: 0.9, draft_length: 3, temperature: [0, 0.7]}",
    "{drafter: model, sampling: speculative, draft_length: 3, temperature: 0.7}",
    "{drafter: model, sampling: races, draft_length: 3, temperature: 0.7}",
]
OVERRIDES = [
    "study=mini",
    "target=local",
    "targets.local.label=wide",
    "targets.local.dtype=float32",
    "drafter=local",
    "drafter.label=narrow",
    "drafter.dtype=float32",
    "prompts.count=6",
    "prompts.min_tokens=4",
    "prompts.max_tokens=12",
    f"criteria={{rules: [{', '.join(RULES)}]}}",
    "distributions.steps=10",
    "distributions.k=8",
    "~acceptance.presets.tensorrt_llm",  # needs more stored tokens
    "acceptance.dials=[{rule: additive, t: [0.0, 0.1, 0.5]}, {rule: tree, m: [1, 2, 4]}]",
    f"decoding.methods=[{', '.join(METHODS)}]",
    "decoding.prompts=3",
    "decoding.steps=10",
    "accuracy.tasks=[facts, reading]",
    "accuracy.items=2",
    f"accuracy.methods=[{METHODS[1]}, {METHODS[2]}, {METHODS[5]}]",
    "run_lengths.eps=[0.02, 0.2, 0.5]",
    "run_lengths.window=4",
    "statistics.resamples=200",
    "device={name: cpu, threads: 1, batch: 3}",
]
CONTENT = re.compile(
    "content [0-9a-f]{12}"
)  # of the model's files, which name transformers' version
FILES = {"report": ("*.md", "*.tex", "tables/*.csv")}  # figures change with the font renderer


class FixedStudy:
    """The study in a directory, which computes each stage once."""

    def __init__(self, folder: Path) -> None:
        """Write the models and prompts of the study below `folder`."""
        self.folder = folder
        places = {
            "targets.local.path": write_model(folder / "wide"),
            "drafter.path": write_model(folder / "narrow", noise=0.06),
            "prompts.source": write_prompts(folder / "prompts.jsonl"),
        }
        given = [f"{key}='{place}'" for key, place in places.items()]
        self.nodes = Study(*OVERRIDES, *given, f"outputs='{folder}'").nodes

    def versions(self, stage: str) -> dict[str, int]:
        """Return the versions that identify a stage's artifacts: its own and those above it."""
        todo, found = list(self.nodes[stage]), {stage}
        while todo:
            above = todo.pop().upstream_nodes
            todo += above
            found |= {node.stage for node in above}
        return {name: version for name, version in VERSIONS.items() if name in found}

    def results(self, stage: str) -> dict[str, Any]:
        """Compute a stage; return its tables by file and column, and its texts by lines."""
        cases = {
            "certificates": ["all", "but_one", "top"],
            "acceptance": ["top"],
            "run_lengths": ["top"],
        }
        return {
            f"{case}/{name}" if case else name: content
            for case in cases.get(stage, [""])
            for artifact in self._artifacts(stage, case)
            for name, content in contents(artifact)
        }

    def _artifacts(self, stage: str, case: str) -> list[Artifact]:
        store = Store(self.folder / (f"{stage}-{case}" if case else "artifacts"))
        if case:
            for node in self.nodes[stage]:
                for above in node.upstream_nodes:
                    publish(store, above, STORED[case])
        with (
            patch("analysis.report.style.render", return_value=b""),  # slow, and not compared
            redirect_stdout(StringIO()),
        ):
            return runner.ensure(self.nodes[stage], store)


def publish(store: Store, node: Node, k: int) -> None:
    """Publish the fixed arrays as the artifact of `node`, and what it would be made from."""
    if store.find(node) is not None:
        return
    for above in node.upstream_nodes:
        publish(store, above, k)
    pending = store.pending(node)
    pending.facts |= {"vocab_size": V, "temperature": 1.0, "k": k, "sampled_temperature": SAMPLED}
    pending.facts["temperatures"] = []
    values = {
        "prompts": {name: [] for name in columns.schema("prompts").names},
        "distributions": STEPS | stored(k),
        "drafts": STEPS | stored(k) | compared(),
        "certificates": STEPS | ends(node.label),
    }[node.stage]
    schema = columns.schema(node.stage, k=k, draft_k=V, depths=2)
    arrays = [pa.array(list(values[field.name]), field.type) for field in schema]
    pending.write("data", pa.Table.from_arrays(arrays, schema=schema))
    store.publish(node, pending, {})


def stored(k: int) -> dict[str, Any]:
    """Return what a dump stores of the fixed logits, by the plain formulas."""
    zeros = np.zeros(len(TARGET))  # of a column that nothing is computed from
    none: dict[str, Any] = dict.fromkeys(columns.TEMPERED, [[]] * len(TARGET))
    plain = {"token_id": TARGET.argmax(axis=1), "logsumexp": zeros}
    return plain | none | stored_columns(TARGET, k)


def compared() -> dict[str, Any]:
    """Return what is stored of the pair of fixed logits."""
    own = asdict(divergences.compare_logits(TARGET, DRAFT))
    law = asdict(divergences.compare_logits(TARGET / SAMPLED, DRAFT / SAMPLED))
    names = ("kl", "tv", "erss_acceptance", "harmonic_mean")
    laws = {f"sampled_{name}": law[name] for name in names}
    moments = stored_columns(TARGET, K, SAMPLED)
    laws |= {f"sampled_{name}": moments[name] for name in ("top_surprisal", "log_tail", "entropy")}
    laws["sampled_draft_prob"] = np.exp(law["draft_log_prob"])
    drafted = {f"draft_{name}": values for name, values in stored_columns(DRAFT, V).items()}
    depths = [own, asdict(divergences.compare_logits(TARGET, (TARGET + DRAFT) / 2))]
    names = [name for name in columns.schema("drafts").names if name.startswith("depth_")]
    deep = {
        name: np.stack([one[name.removeprefix("depth_")] for one in depths], axis=1).tolist()
        for name in names
    }
    return drafted | own | laws | deep


def ends(label: str) -> dict[str, Any]:
    """Return the fixed ends of certificates, for every rule in another order."""
    shift = 5 * len(label) % len(INPUTS["lower"])
    lower, upper = (np.roll(INPUTS[name], shift) for name in ("lower", "upper"))
    ones = np.ones(len(lower), dtype=np.int32)
    return {"lower": lower, "upper": upper, "active_size": ones, "accepted_count": ones}


def contents(artifact: Artifact) -> Iterator[tuple[str, Any]]:
    """Yield the files of an artifact that do not depend on the machine, and what they hold."""
    stage, label = artifact.record["stage"], artifact.record["label"]
    prefix = f"{label}/" if stage == "certificates" else ""
    for path in sorted(artifact.directory.glob("*.parquet")):
        yield f"{prefix}{path.stem}", artifact.read(path.stem).to_pydict()
    for pattern in FILES.get(stage, ()):
        for path in sorted(artifact.directory.glob(pattern)):
            text = CONTENT.sub("content ...", path.read_text())
            yield path.relative_to(artifact.directory).as_posix(), text.splitlines()
    if stage == "prompts":
        yield "facts", {"excluded": artifact.record["facts"]["excluded"]}
