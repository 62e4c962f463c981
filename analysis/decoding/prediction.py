"""Which cheap number foretells the loss in answers: by item, and by method.

By item: of what the target alone has right, does an answer that departs more turn wrong more often?
By method: do the methods that give up more lose more? Everything is resampled over items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from ..statistics.bootstrap import Flags, Floats, PromptBootstrap
from .answers import Answered

# what may foretell a loss, larger is worse; of an answer, and whether it is known before decoding
NUMBERS: Mapping[str, tuple[str, bool]] = {
    "uncertified_alone": ("steps of the target's own answer that are not certified", True),
    "kl_alone": ("mean KL(p‖q) along the target's own answer", True),
    "uncertified": ("steps of the answer that are not certified", False),
    "departures": ("tokens that are not the target's first choice, a token", False),
    "conceded": ("nats below the target's first choices, a token", False),
    "given_up": ("log-likelihood that the answer loses, nats a token", False),
    "unlike": ("share of the answer behind the first other token", False),
}


def numbers(answered: Answered) -> pd.DataFrame:
    """Return what is known of every answer of a relaxed run, beside its verdict.

    Returns:
        task, item_id, run, alone_correct, correct and those of `NUMBERS` that are known: what needs
        both models' account is left out where `answered.account` is None.
    """
    data, runs = answered.data, answered.runs
    key = ["task", "item_id", "run"]
    mine = data[data["run"].isin(relaxed(runs))].reset_index(drop=True)
    mine = mine.assign(baseline=runs["baseline"].to_numpy()[mine["run"]])
    alone = data[[*key, "correct", "n_tokens", "log_likelihood"]].rename(
        columns={"run": "baseline", "correct": "alone_correct", "n_tokens": "alone_tokens",
                 "log_likelihood": "alone_likelihood"}
    )  # fmt: skip
    both = mine.merge(alone, on=["task", "item_id", "baseline"], how="left")
    longest = np.maximum(both["n_tokens"], both["alone_tokens"])
    found = both[[*key, "alone_correct", "correct"]].assign(
        given_up=both["alone_likelihood"] / both["alone_tokens"]
        - both["log_likelihood"] / both["n_tokens"],
        unlike=1 - both["common_prefix"] / longest,
    )
    if answered.account is None:
        return found
    account = both[[*key, "baseline", "n_tokens", "alone_tokens"]].merge(
        answered.account, on=key, how="left"
    )
    kl = answered.account[[*key, "kl"]].rename(columns={"run": "baseline", "kl": "kl_alone"})
    account = account.merge(kl, on=["task", "item_id", "baseline"], how="left")
    return found.assign(
        departures=account["departures"] / account["n_tokens"],
        conceded=account["conceded"] / account["n_tokens"],
        uncertified=1 - account["certified"] / account["n_tokens"],
        uncertified_alone=1 - account["certified_alone"] / account["alone_tokens"],
        kl_alone=account["kl_alone"],
    )


def relaxed(runs: pd.DataFrame) -> list[int]:
    """Return the runs at temperature 0 whose rule may change an answer."""
    ours = runs["rule"].notna() & ~runs["exact"].astype(bool) & (runs["temperature"] == 0)
    return [int(run) for run in runs.index[ours]]


def predict(
    answered: Answered, resamples: int, confidence: float, seed: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Measure how well each number foretells a loss.

    A number that is infinite ranks nothing and is left out: KL, of a reduced vocabulary.

    Returns:
        By number: number, before (known without decoding), items (that the target alone has
        right, over all runs), lost, area (how often, of two answers of one run, the one that
        turned wrong has the larger number, ties half) and its interval, correlation (Spearman's,
        over runs, of the mean number and the share lost less won) and its interval; NaN where
        undefined. And by run: run, method, draft_length, loss, and the mean of each number.
    """
    known = numbers(answered)
    names = [name for name in NUMBERS if name in known and np.isfinite(known[name]).all()]
    runs = relaxed(answered.runs)
    items = known[["task", "item_id"]].drop_duplicates().reset_index(drop=True)
    if items.empty:
        return pd.DataFrame(), pd.DataFrame()
    place = pd.MultiIndex.from_frame(items)
    at = place.get_indexer(pd.MultiIndex.from_frame(known[["task", "item_id"]]))
    bootstrap = PromptBootstrap(np.arange(len(items)), resamples, confidence, seed)
    weights = np.concatenate([np.ones((1, len(items))), bootstrap.weights])
    loss = known["alone_correct"].astype(float) - known["correct"].astype(float)
    rows = []
    for name in names:
        values = known[name].to_numpy(dtype=np.float64)
        above, pairs = np.zeros(len(weights)), np.zeros(len(weights))
        means, losses = [], []
        for run in runs:
            own = np.flatnonzero(known["run"].to_numpy() == run)
            drawn = weights[:, at[own]]
            means.append(drawn @ values[own] / drawn.sum(1))
            losses.append(drawn @ loss.to_numpy()[own] / drawn.sum(1))
            right = own[known["alone_correct"].to_numpy()[own]]
            wrong = ~known["correct"].to_numpy()[right]
            more, count = _concordant(values[right], wrong, weights[:, at[right]])
            above, pairs = above + more, pairs + count
        with np.errstate(invalid="ignore"):
            area = above / pairs
        correlation = np.array(
            [spearman(x, y) for x, y in zip(np.array(means).T, np.array(losses).T, strict=True)]
        )
        kept = known["alone_correct"]
        row = {"number": name, "before": NUMBERS[name][1], "items": int(kept.sum()),
               "lost": int((kept & ~known["correct"]).sum())}  # fmt: skip
        for key, draws in (("area", area), ("correlation", correlation)):
            low, high = bootstrap.interval(draws[1:])
            row |= {
                key: float(draws[0]),
                f"{key}_ci_low": float(low),
                f"{key}_ci_high": float(high),
            }
        rows.append(row)
    by_run = known.assign(loss=loss).groupby("run", sort=True)[["loss", *names]].mean()
    facts = answered.runs.loc[by_run.index, ["method", "draft_length"]]
    return pd.DataFrame(rows), facts.join(by_run).rename_axis("run").reset_index()


def _concordant(values: Floats, wrong: Flags, weights: Floats) -> tuple[Floats, Floats]:
    """Return (B,) how many pairs of a wrong and a right answer are in order, and how many are.

    Args:
        values: (n,) the number.
        wrong: (n,) whether the answer turned wrong.
        weights: (B, n) how often each is drawn.
    """
    bad, good = values[wrong], values[~wrong]
    order = (bad[:, None] > good).astype(float) + 0.5 * (bad[:, None] == good)
    first, second = weights[:, wrong], weights[:, ~wrong]
    return ((first @ order) * second).sum(1), first.sum(1) * second.sum(1)


def spearman(x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> float:
    """Return the rank correlation, equal values sharing their mean rank.

    NaN where all are equal, and of fewer than three values, which are always in order or reversed.

    >>> round(spearman([1, 2, 3], [10, 20, 20]), 3), spearman([1, 1, 1], [2, 3, 4])
    (0.866, nan)
    """
    if len(x) < 3:
        return float("nan")
    first, second = (pd.Series(np.asarray(one, dtype=np.float64)).rank() for one in (x, y))
    a, b = (one.to_numpy() - one.mean() for one in (first, second))
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale > 0 else float("nan")
