"""What a decoding step asks a device to do: operations, each at least one kernel.

Run it with ``python -m benchmarks.gpu_operations``, anywhere; `make check-gpu` runs it too.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.gpu import REDUCED, SHAPES, synthetic_prompts
from pipeline.models.compiled import parts_of
from pipeline.models.load import random_qwen3
from pipeline.models.logit_statistics import tempered_statistics
from pipeline.stages.distributions.running import GrowingBatch, StaticBatch, VarlenBatch

PRODUCTS = ("linear", "mm", "addmm")


def shares(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors lie in the same memory."""
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


class Operations(TorchDispatchMode):
    """Counts operations, views left out: all, and those of some modules beside their products."""

    def __init__(self, parts: list[nn.Module]) -> None:
        """Tell the operations of `parts` from the others."""
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._inside = False
        for part in parts:
            part.register_forward_pre_hook(lambda *_: self._enter(inside=True))
            part.register_forward_hook(lambda *_: self._enter(inside=False))

    def _enter(self, *, inside: bool) -> None:
        self._inside = inside

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Count an operation, and run it."""
        found = operation(*args, **(kwargs or {}))
        if not operation.is_view or not shares(found, args[0]):  # `to` may copy
            self.counts["all"] += 1
            product = operation.overloadpacket.__name__ in PRODUCTS
            self.counts["between"] += self._inside and not product
        return found


def operations(device: torch.device) -> str:
    """Count the operations of a step of 28 layers, and those that `device.compile` unites."""
    model = random_qwen3(REDUCED | {"num_hidden_layers": 28}, "bfloat16", "float32", device, "deep")
    parts = parts_of(model)
    with torch.inference_mode():
        batch = GrowingBatch(model, [[5, 6, 7], [8]], 4)
        token = batch.prefill().argmax(-1)
        with Operations(parts) as counted:
            batch.step(token, 0)
    return (
        f"{counted.counts['all']} a step; {counted.counts['between']} are in {len(parts)} norms "
        "and feed-forward parts, beside their products"
    )


def profile(device: torch.device, *, reduced: bool) -> str:
    """Print the operations of a decoding step that take longest."""
    shape = REDUCED if reduced else SHAPES["Qwen3-1.7B"]
    model = random_qwen3(shape, "bfloat16", "float32", device, "profiled")
    size = 8 if reduced else 128
    prompts = list(synthetic_prompts(size, 256, model.vocab_size).values())
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.inference_mode():
        running = StaticBatch if model.varlen_refusal() else VarlenBatch
        batch = running(model, prompts, 16)
        logits = batch.prefill()
        for step in range(4):  # captured, compiled, warm
            found, _ = tempered_statistics(logits, 256, [1.0])
            logits = batch.step(found.top_ids[:, 0], step)
        with torch.profiler.profile(activities=activities) as kept:
            for step in range(4, 8):
                found, _ = tempered_statistics(logits, 256, [1.0])
                logits = batch.step(found.top_ids[:, 0], step)
            if device.type == "cuda":
                torch.cuda.synchronize()
    by = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
    print(kept.key_averages().table(sort_by=by, row_limit=15, max_name_column_width=60))
    return f"four steps at batch {size}"


if __name__ == "__main__":
    print(operations(torch.device("cuda" if torch.cuda.is_available() else "cpu")))
