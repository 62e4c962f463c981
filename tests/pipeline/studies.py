"""A study without models: published artifacts of made-up distributions, for the later stages."""

from dataclasses import replace

import numpy as np
import pyarrow as pa

from analysis.rule_config import expand, to_mapping
from analysis.statistics.bootstrap import Resampling
from pipeline.criteria import rule_entries
from pipeline.hub import Identity
from pipeline.stage import Runtime, Task, statistics_entries
from pipeline.stages.certificates import STAGE as CERTIFICATES
from pipeline.stages.distributions import STAGE as DISTRIBUTIONS
from pipeline.stages.prompts import STAGE as PROMPTS
from pipeline.stages.report import STAGE as REPORT
from pipeline.stages.run_lengths import STAGE as RUN_LENGTHS
from tests.analysis.cases import stored_columns
from tests.pipeline.tiny import RUNTIME, publish, used

EPS = (0.01, 0.1, 0.69)
VOCABULARY, K = 40, 12
COMMITS = {name: 20 * digits for name, digits in (("prompts", "0a"), ("model", "1b"))}
STATISTICS = Resampling(50, 0.95, 0)


class MadeUp:
    """Publishes made-up distributions of targets into `store`, and certifies them."""

    def __init__(self, store, rules, lengths=(128, 128, 70, 128, 9, 128), texts=()):
        self.store = store
        self.rules = expand(rules)
        self.lengths = lengths
        names = [f"prompt-{at}" for at in range(len(lengths))]
        self.prompt_id = np.repeat(names, lengths)
        self.position = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])
        self.runtime = Runtime("made-up", STATISTICS, rules=tuple(self.rules))
        settings = {
            "tokenizer": {}, "source": {"hub": "owner/chats", "commit": COMMITS["prompts"]},
            "split": "train_sft", "count": 6, "min_tokens": 64, "max_tokens": 384, "seed": 0,
            "template": "chat", "enable_thinking": False,
        }  # fmt: skip
        self.prompts = Task(PROMPTS, "made-up", settings, {}, self.runtime)
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

    def target(self, label, seed):
        """Publish a target's dump and certify it; return the two tasks."""
        rng = np.random.default_rng(seed)
        size = len(self.position)
        logits = rng.gumbel(size=(size, VOCABULARY)) * rng.gamma(2, 1.5, size=(size, 1)) + 5
        logits[: size // 9] -= 100  # the same distributions, and a ratio that means nothing
        ranked = -np.sort(-logits.astype(np.float32), axis=1)
        dump = stored_columns(ranked, K)
        commit = f"{COMMITS['model'][:-1]}{seed:x}"
        identity = Identity(hub="owner/model", commit=commit)
        model = used("owner/model", label=label, identity=identity)
        settings = {"model": model.entries, "steps": 128, "k": K, "temperature": 0.0}
        settings |= {"seed": 0, "certified_temperature": 1.0}
        runtime = replace(self.runtime, label=label, models=(model,))
        task = Task(DISTRIBUTIONS, label, settings, {"prompts": self.prompts}, runtime)
        steps = {"prompt_id": self.prompt_id, "position": self.position}
        top, surprisal = dump["top_logits"][:, 0].astype(np.float64), dump["top_surprisal"]
        self._publish(
            task,
            {**steps, "token_id": np.zeros(size), "logsumexp": top + surprisal, **dump},
            {"vocab_size": VOCABULARY, "k": K, "certified_temperature": 1.0},
        )
        settings = {"rules": [rule_entries(rule) for rule in self.rules]}
        certificates = Task(CERTIFICATES, label, settings, {"distributions": task}, runtime)
        self.store.get(certificates)
        return task, certificates

    def report(self, labels, seeds):
        """Publish all targets; return the report's task, whose run lengths are not made yet."""
        inputs = {}
        for label, seed in zip(labels, seeds, strict=True):
            dump, certificates = self.target(label, seed)
            settings = {"eps": [*EPS], **statistics_entries(STATISTICS)}
            above = {"certificates": certificates}
            run_lengths = Task(RUN_LENGTHS, label, settings, above, dump.runtime)
            for task in (self.prompts, dump, certificates, run_lengths):
                inputs[f"{task.stage.name}/{seed}"] = task
        settings = {"study": "made-up", "targets": [*labels], "drafter": None, "note": None}
        settings |= {"margin": None, "rules": [to_mapping(rule) for rule in self.rules]}
        settings |= statistics_entries(STATISTICS)
        return Task(REPORT, "made-up", settings, inputs, self.runtime)

    def _publish(self, task, values, facts):
        schema = task.stage.schema()

        def write(out):
            out.facts |= facts
            arrays = [pa.array([*values[field.name]], field.type) for field in schema]
            out.write(pa.Table.from_arrays(arrays, schema=schema))

        publish(task, self.store, write)


def planned(stage, label, settings, /, **inputs):
    """A task of one model's artifacts without anything else."""
    return Task(stage, label, settings, inputs, RUNTIME)
