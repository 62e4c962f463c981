"""Stage certificates: certificates of many rules on one dump, in one pass over its rows.

Run it with ``python -m pipeline stage=certificates``.
"""

from __future__ import annotations

from contextlib import ExitStack

import pyarrow as pa

from analysis.certificates.certify import certify
from pipeline.errors import PipelineError
from pipeline.plan.graph import Node
from pipeline.store import columns, distributions
from pipeline.store.artifacts import Artifact, Draft


def compute(nodes: list[Node], upstream: dict[str, list[Artifact]], drafts: list[Draft]) -> None:
    """Certify one dump under the rule of every node, each into its own draft."""
    rules = [node.settings["rule"] for node in nodes]
    temperature = nodes[0].config["temperature"]
    schema = columns.schema("certificates")
    with ExitStack() as stack:
        writers = [stack.enter_context(draft.writer("data", schema)) for draft in drafts]
        for steps, dist in distributions.chunks(upstream["distributions"][0], temperature):
            try:
                result = certify(dist, rules)
            except ValueError as error:  # of a user's rule: those of the project are checked before
                raise PipelineError(f"criteria: {error}") from error
            for at, writer in enumerate(writers):
                count = result.accepted_count[:, at]
                arrays = [
                    *steps.columns,
                    pa.array(result.lo[:, at]),
                    pa.array(result.hi[:, at]),
                    pa.array(result.active_size[:, at]),
                    pa.array(count, mask=count <= 0),
                ]
                writer.write_batch(pa.record_batch(arrays, schema=schema))
