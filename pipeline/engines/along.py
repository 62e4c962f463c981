"""Target and drafter along answers that an engine gave: a pass of each over every answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from analysis import TopK, certify
from analysis.rules import StrictGreedy
from analysis.statistics.bootstrap import Flags
from pipeline.engines.answers import Asked
from pipeline.models.compare import read_pair
from pipeline.models.load import load_model, load_pair
from pipeline.models.passes import Texts
from pipeline.study import Study

ROWS = 64  # of logits that are compared at once, in float64


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
        if study.config.drafter is None:
            self._target = load_model(study.task("distributions").runtime.models[0])
            return
        pair = study.task("drafts").runtime.models
        self._target, self._drafter = load_pair(*pair)
        if pair[1].head is not None:
            self._depths = pair[1].head.depths

    @torch.inference_mode()
    def along(self, answer: Asked) -> Along:
        """Read an answer behind its prompt.

        Raises:
            PipelineError: it has tokens that the target lacks, or is too long for it.
        """
        tokens, n = [*answer.prompt, *answer.tokens], len(answer.tokens)
        self._target.check_tokens(tokens, f"answer {answer.name}")
        self._target.check_context(len(tokens), "distributions.steps")
        ids = torch.tensor([tokens[:-1]], device=self._target.device)
        drafts: list[Tensor] = []
        completed = None
        if self._drafter is None:
            logits = Texts(self._target, len(tokens)).read(ids, n)[0]
        else:
            logits, drafts, completed = read_pair(self._target, self._drafter, ids, n, self._depths)
        said = torch.tensor(answer.tokens, device=ids.device)
        right = [draft.argmax(1) == said for draft in drafts]
        certified = [
            self._certified(logits, draft, draft if depth or completed is None else completed)
            for depth, draft in enumerate(drafts)
        ]
        below = logits.amax(1) - logits.gather(1, said[:, None])[:, 0]
        gap = torch.where(logits.argmax(1) == said, -1.0, below.float())
        return Along(gap.cpu().numpy(), _flags(right, n), _flags(certified, n))

    def _certified(self, target: Tensor, draft: Tensor, completed: Tensor) -> Tensor:
        """Return the (n,) steps at which the KL is below the certificate of strict greedy.

        Args:
            target: (n, V) logits of p.
            draft: (n, V) those of q.
            completed: (n, V) those of a q' that has all tokens, for a head that lacks some; else
                q's. What certifies q' certifies q where both have the same first choice.
        """
        size = min(target.shape[1], draft.shape[1])
        certified = []
        for rows in torch.arange(len(target)).split(ROWS):
            z, of_q = target[rows, :size], completed[rows, :size]
            dist = TopK.from_logits(z.cpu().numpy(), k=2, temperature=self._temperature)
            lower = torch.from_numpy(certify(dist, StrictGreedy()).lower[:, 0]).to(z.device)
            log_p, log_q = (
                (logits.double() / self._temperature).log_softmax(1) for logits in (z, of_q)
            )
            terms = log_p.exp() * (log_p - log_q)
            kl = terms.where(log_p > -torch.inf, 0.0).sum(1)
            first = of_q.gather(1, draft[rows].argmax(1)[:, None])[:, 0] >= of_q.amax(1)
            certified.append(first & (kl < lower))
        return torch.cat(certified)


def _flags(by_depth: Sequence[Tensor], n: int) -> Flags:
    """Return (D, n) flags of the steps, by depth."""
    return np.array([flags.cpu().numpy() for flags in by_depth], dtype=bool).reshape(-1, n)
