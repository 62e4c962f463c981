"""Stage account: the answers of stage accuracy read again by both models, in one pass each.

What an answer departs from the target, what it gives up, and what of it was certified. Run it with
``python -m pipeline stage=account drafter=...``; answering takes hours, this takes minutes.
"""

from __future__ import annotations

from pipeline.plan.stage import Node, Request, Stage, pair_models

STORED = 256  # of the target's tokens: where they do not decide, a certificate is an interval


def nodes(request: Request) -> list[Node]:
    """One for each of stage accuracy."""
    return [
        Node(
            STAGE.name,
            answered.label,
            {
                "target": answered.config["target"],
                "drafter": answered.config["drafter"],
                "stored": STORED,
            },
            {"accuracy": (answered,)},
            settings=answered.settings,
        )
        for answered in request.nodes["accuracy"]
    ]


STAGE = Stage(
    name="account",
    version=1,
    upstream=("accuracy",),
    columns={
        "data": {  # one row an answer, of the runs of stage accuracy
            "task": "string",
            "item_id": "string",
            "run": "int32",
            "departures": "int32",  # tokens that are not the target's first choice at their place
            "conceded": "float64",  # log-probability of these choices less the tokens', nats
            "kl": "float64",  # mean of KL(p||q) along the answer, nats
            # by the certificates of the run's rule; null without one, and above temperature 0
            "certified": "int32",  # steps of the answer whose KL lies below the certificate
            "certificate": "float64",  # mean along the answer, the rule's ceiling for +inf, nats
            "certified_alone": "int32",  # the same two along the baseline's answer
            "certificate_alone": "float64",
        }
    },
    nodes=nodes,
    module=f"{__name__}.compute",
    models=pair_models,
    resumable=True,
)
