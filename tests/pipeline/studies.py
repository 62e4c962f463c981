"""A study without models: published artifacts of made-up distributions, for the later stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.rules import expand
from analysis.statistics.bootstrap import Resampling
from conf.schema import Prompts
from pipeline.execution.runner import ensure
from pipeline.hub import Identity
from pipeline.plan.specs import (
    CertificatesSpec,
    DistributionsSpec,
    ReportSpec,
    RunLengthsSpec,
    SampledPrompts,
    model_at,
)
from pipeline.store import columns
from pipeline.store.artifacts import Artifact, Store
from pipeline.store.node import Node
from tests.analysis.cases import stored_columns

EPS = (0.01, 0.1, 0.69)
COMMITS = {name: 20 * digits for name, digits in (("prompts", "0a"), ("model", "1b"))}
STATISTICS = Resampling(50, 0.95, 0)


class MadeUp:
    """Publishes made-up distributions of targets into `store`, and certifies them."""

    def __init__(
        self,
        store: Store,
        rules: Sequence[dict[str, Any]],
        vocab_size: int = 40,
        k: int = 12,
        lengths: Sequence[int] = (128, 128, 70, 128, 9, 128),
        texts: Sequence[str] = (),
    ) -> None:
        self.store = store
        self.rules = expand(rules)
        self.vocab_size, self.k, self.lengths = vocab_size, k, lengths
        names = [f"prompt-{at}" for at in range(len(lengths))]
        self.prompt_id = np.repeat(names, lengths)
        self.position = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])
        settings = Prompts(
            source="owner/chats", revision=None, split="train_sft", count=6, min_tokens=64,
            max_tokens=384, seed=0, template="chat", enable_thinking=False,
        )  # fmt: skip
        source = Identity(hub="owner/chats", commit=COMMITS["prompts"])
        target = model_at("owner/model", "made-up").settings
        self.prompts = Node(
            "prompts", "made-up", SampledPrompts(Identity(), source, settings, target)
        )
        self._publish(
            self.prompts,
            {
                "prompt_id": names,
                "source": ["made-up.jsonl"] * len(names),
                "source_row": range(len(names)),
                "text": texts or names,
                "token_ids": [[1, 2]] * len(names),
                "n_tokens": [2] * len(names),
            },
            {"excluded": {"too short": {"rows": 3, "first": []}}},
        )

    def target(self, label: str, seed: int) -> tuple[Node, list[Node]]:
        """Publish a target's dump and certify it; return the nodes."""
        rng = np.random.default_rng(seed)
        size = len(self.position)
        logits = rng.gumbel(size=(size, self.vocab_size)) * rng.gamma(2, 1.5, size=(size, 1)) + 5
        logits[: size // 9] -= 100  # the same distributions, and a ratio that means nothing
        ranked = -np.sort(-logits.astype(np.float32), axis=1)
        dump = stored_columns(ranked, self.k)
        commit = f"{COMMITS['model'][:-1]}{seed:x}"
        identity = Identity(hub="owner/model", commit=commit)
        model = replace(model_at("owner/model", label), identity=identity)
        spec = DistributionsSpec(model, steps=128, k=self.k, temperature=0.0, seed=0)
        node = Node("distributions", label, spec, {"prompts": (self.prompts,)})
        steps = {"prompt_id": self.prompt_id, "position": self.position}
        top, surprisal = dump["top_logits"][:, 0].astype(np.float64), dump["top_surprisal"]
        self._publish(
            node,
            {**steps, "token_id": np.zeros(size), "logsumexp": top + surprisal, **dump},
            {"vocab_size": self.vocab_size, "k": self.k, "certified_temperature": 1.0},
        )
        nodes = [
            Node(
                "certificates",
                rule.label,
                CertificatesSpec(rule, STATISTICS),
                {"distributions": (node,)},
            )
            for rule in self.rules
        ]
        ensure(nodes, self.store)
        return node, nodes

    def run_lengths(self, label: str, certificates: Sequence[Node]) -> Node:
        """Return the node of a target's run lengths."""
        return Node(
            "run_lengths",
            label,
            RunLengthsSpec(EPS, STATISTICS),
            {"certificates": tuple(certificates)},
        )

    def report(self, labels: Sequence[str], seeds: Sequence[int]) -> Node:
        """Publish all targets; return the report's node, whose run lengths are not made yet."""
        made = [self.target(label, seed) for label, seed in zip(labels, seeds, strict=True)]
        return Node(
            "report",
            "made-up",
            ReportSpec("made-up", tuple(labels), None, tuple(self.rules), STATISTICS),
            {
                "prompts": (self.prompts,) * len(labels),
                "distributions": tuple(dump for dump, _ in made),
                "certificates": tuple(node for _, nodes in made for node in nodes),
                "run_lengths": tuple(
                    self.run_lengths(label, nodes)
                    for label, (_, nodes) in zip(labels, made, strict=True)
                ),
            },
        )

    def _publish(self, node: Node, values: dict[str, Any], facts: dict[str, Any]) -> Artifact:
        pending = self.store.pending(node)
        pending.facts = facts
        schema = columns.schema(node.stage, k=facts.get("k"))
        arrays = [_array(values[field.name], field.type) for field in schema]
        pending.write("data", pa.Table.from_arrays(arrays, schema=schema))
        return self.store.publish(node, pending)


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(
            pa.array(values.ravel(), kind.value_type), kind.list_size
        )
    return pa.array(list(values), kind)
