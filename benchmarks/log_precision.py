"""Differences between an engine's log and another pass: `python -m benchmarks.log_precision`.

A stand-in for an engine decodes answers token by token, in a batch with a cache, and logs the 20
largest log-probabilities of every step. Other passes read the same tokens at once, each text alone.
The output has the differences of the log-probabilities, and the share of strict greedy certificates
outside the interval from the log, by the error assumed for the log.

    python -m benchmarks.log_precision outputs/models/SmolLM2-... --prompts 24 --steps 48
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from analysis.certificates.certify import certify
from analysis.rules import StrictGreedy
from analysis.topk import TopK
from pipeline.models.language_model import LanguageModel
from pipeline.models.load import load_model, load_tokenizer
from pipeline.models.passes import Batch, Texts
from pipeline.models.prompt_tokens import encode
from pipeline.plan.specs import model_at

ROOT = Path(__file__).resolve().parents[1]
LISTED = 20
ERRORS = (1e-6, 1e-5, 1e-4, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0)  # nats
PASSES = (("float32", "float32"), ("bfloat16", "float32"), ("bfloat16", "bfloat16"))


def loaded(folder: Path, dtype: str, head_dtype: str) -> LanguageModel:
    """Return the model with its layers, and its logits, computed in the given precisions."""
    return load_model(model_at(folder, folder.name, dtype=dtype, head_dtype=head_dtype))


@torch.inference_mode()
def decoded(model: LanguageModel, prompts: list[list[int]], answers: Tensor | int) -> Tensor:
    """Return the (B, n, V) logits of steps decoded one by one, greedily or along answers (B, n)."""
    steps = answers if isinstance(answers, int) else answers.shape[1]
    batch = Batch.make(prompts, [[]] * len(prompts), model.device)
    texts = Texts(model, batch.width + steps, padding=batch.padding)
    logits = [texts.read(batch.ids)[:, -1]]
    for step in range(steps - 1):
        token = logits[-1].argmax(dim=1) if isinstance(answers, int) else answers[:, step]
        logits.append(texts.extend(token[:, None])[:, -1])
    return torch.stack(logits, dim=1)


@torch.inference_mode()
def scored(model: LanguageModel, prompts: list[list[int]], answers: Tensor) -> Tensor:
    """Return the (B, n, V) logits of whole texts, each read alone in one pass."""
    rows = []
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([[*prompt, *answer[:-1].tolist()]])
        rows.append(Texts(model, ids.shape[1]).read(ids, answers.shape[1])[0])
    return torch.stack(rows)


def compare(name: str, log: Tensor, other: Tensor) -> None:
    """Print the differences of a log from another pass, and the uncovered certificates by error."""
    values, ids = log.flatten(0, 1).float().log_softmax(dim=1).topk(LISTED, dim=1)
    reference = other.flatten(0, 1).double().log_softmax(dim=1)
    off = (values.double() - reference.gather(1, ids)).abs().numpy()
    exact = certify(TopK.from_logits(other.flatten(0, 1).float().numpy()), StrictGreedy())
    shares = []
    for error in ERRORS:
        listed = TopK.from_log_probs(ids.numpy(), values.double().numpy(), error, other.shape[-1])
        ends = certify(listed, StrictGreedy())
        outside = (exact.upper < ends.lower) | (exact.lower > ends.upper)
        shares.append(f"{np.mean(outside):.2%} ({error:g})")
    largest = off.max(axis=1)  # of a step's list
    print(
        f"{name}: values differ by {np.median(off):.2g} (median), {np.quantile(off, 0.99):.2g} "
        f"(99 %), {off.max():.2g} (largest); largest of a list {np.median(largest):.2g} (median); "
        f"certificates outside: {', '.join(shares)}",
        flush=True,
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", type=Path, default=ROOT / "assets/mini/large")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--steps", type=int, default=48)
    arguments = parser.parse_args()
    tokenizer = load_tokenizer(str(arguments.model), None, "model")
    rows = (ROOT / "assets/mini/prompts.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(row)["prompt"] for row in rows[: arguments.prompts]]
    prompts = [encode(tokenizer, text, "chat", enable_thinking=False) for text in texts]
    whole = loaded(arguments.model, *PASSES[0])
    answers = decoded(whole, prompts, arguments.steps).argmax(dim=2)
    exact = scored(whole, prompts, answers)
    for precision in PASSES:
        model = whole if precision == PASSES[0] else loaded(arguments.model, *precision)
        log = decoded(model, prompts, answers)
        name = "log in {}, logits in {}".format(*precision)
        compare(f"{name}, the same read whole", log, scored(model, prompts, answers))
        compare(f"{name}, float32 read whole", log, exact)


if __name__ == "__main__":
    main()
