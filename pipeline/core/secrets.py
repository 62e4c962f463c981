"""Passwords, tokens and keys are left out of whatever is printed or stored."""

from __future__ import annotations

import os
import re

HIDDEN = "***"
VARIABLES = ("OPENAI_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
MIN_LENGTH = 8  # characters of such a variable: a shorter value may be part of any word
NAME = r"[\w.-]*(?:token|api_?key|access_?key|secret|password|passwd|pwd|credentials?)"
VALUE = r"(?:'[^']*'|\"[^\"]*\"|[^\s'\"&;#,}\]]+)"
# Each keeps its first group. Passwords may hold / and @, so a login ends at the last @ of a word.
PATTERNS = (
    re.compile(r"(\b\w+://)(?:[^\s/:@'\"]+|[^\s/:@'\"]*:(?!\d+/)\S*)(?=@)"),
    re.compile(r"((?<![^\s'\"(=]))[^\s:/@'\"(=]+:(?!//)\S+(?=@[\w.\[-])"),  # without http://
    re.compile(rf"(?i)(\b{NAME}=){VALUE}"),
    re.compile(rf"(\b[A-Z]+_(?:TOKEN|KEY|SECRET|PASSWORD): ?){VALUE}"),
    re.compile(rf"(?i)([?&;](?:key|sig|signature|auth)=){VALUE}"),
    re.compile(r"(?i)(\bbearer )[\w.~+/=-]+"),
    re.compile(r"(\b(?:hf_|sk-))[\w-]{16,}"),
)


def without_secrets(text: str) -> str:
    """Return a text without the logins in addresses, the tokens in queries, the values of secrets.

    >>> without_secrets("http://me:p@ss@host:8000/v1?x=1&api_key=k and me:pass@host")
    'http://***@host:8000/v1?x=1&api_key=*** and ***@host'
    >>> without_secrets("hydra.job.env_set.HF_TOKEN=abc prompts.min_tokens=64")
    'hydra.job.env_set.HF_TOKEN=*** prompts.min_tokens=64'
    """
    for name in VARIABLES:
        value = os.environ.get(name, "").strip()
        if len(value) >= MIN_LENGTH:
            text = text.replace(value, HIDDEN)
    for pattern in PATTERNS:
        text = pattern.sub(rf"\g<1>{HIDDEN}", text)
    return text
