"""What the precision of the final projection changes: ``python -m benchmarks.head_precision``.

The large embedded model with bfloat16 weights decodes embedded prompts with a float32 head. Then
the same tokens are read again, prompt by prompt without padding, and each hidden state is
projected by a float32 and by a bfloat16 head: two dumps of one trajectory that differ in the head
alone. Printed are exact ties of the two largest logits, the argmax the heads disagree on, and
quantiles of the strict greedy certificate.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from analysis.certificates.certify import certify
from analysis.rules import StrictGreedy
from analysis.topk import TopK
from pipeline.execution.stopwatch import Stopwatch
from pipeline.formats.prompt_files import Source
from pipeline.models.heads import Head
from pipeline.models.load import LanguageModel, load_model, load_tokenizer
from pipeline.models.logit_statistics import logit_statistics
from pipeline.paths import ROOT
from pipeline.stages.distributions.decode import Decoding, decode_batch
from pipeline.stages.distributions.running import GrowingBatch
from pipeline.stages.distributions.sampling import Sampling
from pipeline.stages.prompts.compute import sample

K = 256
QUANTILES = (0.01, 0.05, 0.25, 0.5)


def trajectories(
    model: LanguageModel, folder: Path, count: int, steps: int, temperature: float
) -> dict[str, tuple[list[int], list[int]]]:
    """Return prompt and answer (tokens) of `count` embedded prompts, by prompt_id."""
    tokenizer = load_tokenizer(str(folder), None, "--model")
    wanted = {"count": count, "min_tokens": 64, "max_tokens": 512, "seed": 0,
              "template": "chat", "enable_thinking": False}  # fmt: skip
    table, _ = sample(Source([ROOT / "assets/mini/prompts.jsonl"]), tokenizer, wanted, "mini")
    prompts = dict(zip(table["prompt_id"], table["token_ids"], strict=True))
    decoding = Decoding(steps, 1, [], Sampling(temperature, 1.0, 0, 0))
    out = decode_batch(
        model, prompts, decoding, GrowingBatch, Stopwatch(model.device), lambda _: None
    )
    return {name: (ids, out.token_id[row, : int(out.lengths[row])].tolist())
            for row, (name, ids) in enumerate(prompts.items())}  # fmt: skip


@torch.inference_mode()
def rescored(
    model: LanguageModel, heads: dict[str, Head], prompt: list[int], answer: list[int]
) -> dict[str, torch.Tensor]:
    """Return the (n, V) logits of the answer's steps under each of `heads`."""
    ids = torch.tensor([prompt + answer], device=model.device)
    hidden = model.module.base_model(input_ids=ids, use_cache=False).last_hidden_state
    return {name: head(hidden[0, len(prompt) - 1 : -1]) for name, head in heads.items()}


def top_k(logits: torch.Tensor) -> TopK:
    """Return the distributions of `logits` (N, V) as a dump holds them."""
    size = logits.shape[1]
    found = logit_statistics(logits, min(K, size))
    return TopK.from_columns(
        found.top_ids.numpy(),
        found.top_logits.numpy(),
        found.top_surprisal.numpy(),
        found.log_tail.numpy(),
        found.entropy.numpy(),
        vocab_size=size,
    )


def compared(
    model: LanguageModel, found: dict[str, tuple[list[int], list[int]]]
) -> dict[str, dict[str, float | int]]:
    """Return, for each head, ties, changed argmax and quantiles of strict greedy."""
    projection = model.module.get_output_embeddings()
    heads = {name: Head(projection, getattr(torch, name)) for name in ("float32", "bfloat16")}
    rows = [rescored(model, heads, *pair) for pair in found.values()]
    result: dict[str, dict[str, float | int]] = {}
    exact = torch.cat([row["float32"].argmax(1) for row in rows])
    for name in heads:
        logits = torch.cat([row[name] for row in rows]).float()
        top = logits.topk(2, dim=1).values
        certificates = certify(top_k(logits), [StrictGreedy()]).lower[:, 0]
        quantiles = np.quantile(certificates, QUANTILES, method="inverted_cdf")
        result[name] = {
            "steps": len(logits),
            "largest_logit_median": round(float(top[:, 0].median()), 3),
            "ties": int((top[:, 0] == top[:, 1]).sum()),
            "argmax_unlike_float32": int((logits.argmax(1) != exact).sum()),
            **{f"p{100 * q:g}": float(f"{v:.6g}")
               for q, v in zip(QUANTILES, quantiles, strict=True)},
        }  # fmt: skip
    return result


def main() -> None:
    """Run the comparison and print it as a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=ROOT / "assets/mini/large")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.9, help="0 is greedy")
    parser.add_argument("--attention", default="sdpa")
    arguments = parser.parse_args()
    model = load_model(
        {"dtype": "bfloat16", "head_dtype": "float32", "attention": arguments.attention},
        {"path": str(arguments.model), "device": "cpu", "threads": None, "label": "model"},
        "--model",
    )
    found = trajectories(model, arguments.model, arguments.prompts, arguments.steps,
                         arguments.temperature)  # fmt: skip
    result = compared(model, found)
    names = list(result["float32"])
    print(f"| head | {' | '.join(names)} |\n|{'---|' * (len(names) + 1)}")
    for head, facts in result.items():
        print(f"| {head} | {' | '.join(str(facts[name]) for name in names)} |")
    coarse, fine = (result[head]["p5"] for head in ("bfloat16", "float32"))
    print("\n" + json.dumps({"p5_ratio": round(coarse / fine, 4)}))


if __name__ == "__main__":
    main()
