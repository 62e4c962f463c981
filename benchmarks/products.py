"""Time products of few rows: ``python -m benchmarks.products``.

Of the four shapes of SmolLM2-135M's weights: torch's product x Wᵀ, and W xᵀ, which a model takes
for few rows where `pipeline.models.products.weight_first` says so. Medians, in turn.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pandas as pd
import torch
from torch.nn.functional import linear

from pipeline.core.timings import processor
from pipeline.models.products import product_weight_first, weight_first

SHAPES = {(576, 576): 30, (1536, 576): 30, (576, 1536): 30, (49152, 576): 1}  # of W: layers
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16)
ROUNDS = 15


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds that `work` takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def measure(size: tuple[int, int], layers: int, rows: int) -> dict[str, float]:
    """Return microseconds of a product, of x Wᵀ and of W xᵀ."""
    weights = [torch.randn(size) for _ in range(layers)]
    x = torch.randn(rows, size[1])
    times: dict[str, list[float]] = {"x Wt": [], "W xt": []}
    for _ in range(ROUNDS):
        times["x Wt"].append(seconds(lambda: [linear(x, weight) for weight in weights]))
        times["W xt"].append(
            seconds(lambda: [product_weight_first(weight, x) for weight in weights])
        )
    return {name: 1e6 * statistics.median(of) / layers for name, of in times.items()}


@torch.inference_mode()
def main() -> None:
    """Print a row for each shape and number of rows."""
    table = pd.DataFrame(
        [
            {"weight": f"{size[0]} x {size[1]}", "rows": rows, **measure(size, layers, rows)}
            for size, layers in SHAPES.items()
            for rows in ROWS
        ]
    )
    table["ratio"] = table["W xt"] / table["x Wt"]
    print(
        f"{processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}; weight "
        f"first here: {'yes' if weight_first() else 'no'}; microseconds"
    )
    print(table.round(2).to_string(index=False))


if __name__ == "__main__":
    main()
