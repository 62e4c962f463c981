"""What the record of an artifact says of where it was made: machine, packages, git commit."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from importlib.metadata import version

from pipeline.core.paths import ROOT
from pipeline.core.stage import Json
from pipeline.core.timings import processor

PACKAGES = ("numpy", "pyarrow", "pandas", "numba", "matplotlib", "torch", "transformers")


@cache
def environment() -> Json:
    """Return the entries of a record about the machine, the packages and the git commit."""
    versions = {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}
    git = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True)
        commit = done.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = None  # no repository, or no git
    return {
        "versions": versions,
        "platform": platform.platform(),
        "processor": processor(),
        "git": commit,
    }
