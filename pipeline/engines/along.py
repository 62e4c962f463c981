"""Target and drafter along answers that an engine gave: a pass of each over every answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from analysis import TopK, certify
from analysis.rules import StrictGreedy
from analysis.statistics.bootstrap import Flags
from pipeline.models.compare import PairTexts, compare_logits
from pipeline.models.load import load_model, load_pair
from pipeline.models.passes import Texts
from pipeline.study import Study

ROWS = 64  # of logits that are ranked at once, in float64


@dataclass(frozen=True, eq=False)
class Along:
    """What the models give along an answer of n tokens.

    Attributes:
        gap: (n,) how far the logit of each token is below the largest; -1 for the argmax.
        right: (D, n) whether the drafter's argmax is the token of the answer, at depths 1 to D of a
            draft; D is 0 without a drafter.
        certified: (D, n) whether strict greedy certifies the drafter's step, likewise.
    """

    gap: NDArray[np.float32]
    right: Flags
    certified: Flags


class Models:
    """The target of a study, and its drafter where it has one."""

    def __init__(self, study: Study) -> None:
        """Load them.

        Raises:
            PipelineError: one can't be loaded.
        """
        self._drafter, self._depths = None, 1
        self._temperature = study.config.certificates.temperature
        self._known: dict[tuple[tuple[int, ...], int], Along] = {}
        if study.config.drafter is None:
            self._target = load_model(study.task("distributions").runtime.models[0])
            return
        pair = study.task("drafts").runtime.models
        self._target, self._drafter = load_pair(*pair)
        if pair[1].head is not None:
            self._depths = pair[1].head.depths

    @torch.inference_mode()
    def along(self, prompt: list[int], answer: list[int]) -> Along:
        """Read an answer behind its prompt, once.

        Raises:
            PipelineError: it has tokens that the target lacks, or is too long for it.
        """
        tokens, n = [*prompt, *answer], len(answer)
        if (key := (tuple(tokens), n)) in self._known:
            return self._known[key]
        self._target.check_tokens(tokens, "an answer of the engine")
        self._target.check_context(len(tokens), "distributions.steps")
        ids = torch.tensor([tokens[:-1]], device=self._target.device)
        said = torch.tensor(answer, device=ids.device)
        right = certified = np.zeros((0, n), dtype=bool)
        if self._drafter is None:
            logits = Texts(self._target, len(tokens)).read(ids, n)[0]
        else:
            texts = PairTexts(self._target, self._drafter, len(tokens), self._depths)
            logits, drafts, completed = texts.read(ids, n)
            right = torch.stack([draft.argmax(1) == said for draft in drafts]).cpu().numpy()
            size = min(logits.shape[1], drafts[0].shape[1])
            whole = None if completed is None else completed[:, :size]
            qs = [draft[:, :size] for draft in drafts]
            found = compare_logits(logits[:, :size], qs, self._temperature, completed=whole)
            kl = found["depth_kl"].cpu().numpy().T.copy()
            if whole is not None:  # what certifies the completed q certifies the head
                kl[0] = found["full_kl"].cpu().numpy()
            certified = kl < _certificates(logits[:, :size], self._temperature)
        below = logits.amax(1) - logits.gather(1, said[:, None])[:, 0]
        gap = torch.where(logits.argmax(1) == said, -1.0, below.float())
        self._known[key] = Along(gap.cpu().numpy(), right, certified)
        return self._known[key]


def _certificates(logits: torch.Tensor, temperature: float) -> NDArray[np.float64]:
    """Return strict greedy's certificates of (n, V) logits, a few rows at a time."""
    dists = (
        TopK.from_logits(rows.cpu().numpy(), k=2, temperature=temperature)
        for rows in logits.split(ROWS)
    )
    return np.concatenate([certify(dist, StrictGreedy()).lower[:, 0] for dist in dists])
