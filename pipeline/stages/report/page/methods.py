"""Where the documentation says how each part of the page was computed."""

from __future__ import annotations

DOCS = "../../../docs"  # from outputs/report/<study>/
SECTIONS = {
    "Certificates, and the closest draft that is rejected": "method.md#single-token-certificate",
    "Certificates known as intervals": "method.md#truncation",
    "Rounded log-probabilities of an engine's log": "method.md#rounded-log-probabilities",
    "Tokens a call, and why they are cut where answers end": "method.md#run-lengths",
    "Intervals over prompts, and how many prompts they need": "method.md#statistics",
    "Accepted, certified, departs, given up": "acceptance.md#what-is-measured",
    "How to read them": "acceptance.md#how-to-read-it",
    "What a mean KL certifies": "method.md#a-budget-for-the-mean-kl",
    "Decoding, costs and speed": "decoding.md#what-is-measured",
    "Draft trees": "method.md#draft-trees",
    "The exact setting that certifies what is wanted": "solve.md",
    "Published numbers that disagree with each other": (
        "method.md#where-the-published-numbers-disagree-with-each-other"
    ),
    "Every file and column": "data.md",
}
METHODS = [(says, f"docs/{link}", f"{DOCS}/{link}") for says, link in SECTIONS.items()]
