"""What every stage computes on small fixed inputs, committed with the version that computed it.

Were other results to come from the same versions, an old cache would be served in their place: so a
stage whose results changed gets a new version, and ``python -m tests.results STAGE`` then accepts
them. Integers, booleans and text are compared exactly, numbers within the stage's tolerance.
"""

import json
import math
import re
from functools import partial
from pathlib import Path

from pipeline.study import STAGES

FOLDER = Path(__file__).parent
# (relative, absolute). Sums of float32 differ between processors; weights moved by 1e-6 stay
# within it. A number inside a text may also differ by one in its last digit.
TOLERANCES = dict.fromkeys(STAGES, (1e-4, 1e-5)) | {"prompts": (0.0, 0.0), "report": (1e-3, 1e-5)}
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])", re.IGNORECASE)


def path(stage):
    """Return the file of a stage's committed results."""
    return FOLDER / f"{stage}.json"


def load(stage):
    """Return a stage's committed versions and results; empty ones of a new stage."""
    if not path(stage).is_file():
        return {"versions": {}, "results": {}}
    return json.loads(path(stage).read_text())


def save(stage, versions, results):
    """Write a stage's results, a column or a line of text a line."""

    line = partial(json.dumps, ensure_ascii=False)

    def block(content):
        items = content.items() if isinstance(content, dict) else enumerate(content)
        named = isinstance(content, dict)
        lines = [(f"{json.dumps(key)}: " if named else "") + line(value) for key, value in items]
        return ("{\n   %s\n  }" if named else "[\n   %s\n  ]") % ",\n   ".join(lines)

    files = ",\n".join(f"  {json.dumps(name)}: {block(part)}" for name, part in results.items())
    path(stage).write_text(
        f'{{\n "versions": {json.dumps(versions)},\n "results": {{\n{files}\n }}\n}}\n'
    )


def differences(old, new, at, tolerance):
    """Yield where results differ by more than a tolerance, and how."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            if key not in new or key not in old:
                yield f"{at}/{key}: {'was not there' if key in new else 'is no longer there'}"
            else:
                yield from differences(old[key], new[key], f"{at}/{key}", tolerance)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{at}: {len(new)} values, were {len(old)}"
            return
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from differences(before, after, f"{at}[{index}]", tolerance)
    elif not _same(old, new, tolerance):
        yield f"{at}: {new!r}, was {old!r}"


def _same(old, new, tolerance):
    if type(old) is not type(new):
        return False
    if isinstance(old, float):
        relative, absolute = tolerance
        close = math.isclose(old, new, rel_tol=relative, abs_tol=absolute)
        return close or (math.isnan(old) and math.isnan(new))
    if isinstance(old, str):
        texts = zip(NUMBER.findall(old), NUMBER.findall(new), strict=False)
        return NUMBER.sub("#", old) == NUMBER.sub("#", new) and all(
            _same_number(before, after, tolerance) for before, after in texts
        )
    return bool(old == new)


def _same_number(old, new, tolerance):
    """Compare printed numbers: integers exactly, others up to one in the last digit."""
    mantissa, _, exponent = old.lower().partition("e")
    if "." not in mantissa and not exponent:
        return old == new
    digit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    return abs(float(old) - float(new)) < 1.5 * digit or _same(float(old), float(new), tolerance)


def verdict(stage, versions, results):
    """Return what is wrong with a stage's results, and what to do; None if nothing is."""
    committed = load(stage)
    found = list(differences(committed["results"], results, stage, TOLERANCES[stage]))
    if committed["versions"] != versions:
        return (
            f"{stage} has new versions, {versions} after {committed['versions']}: look at what "
            f"changed ({len(found)} values differ), then run python -m tests.results {stage}"
        )
    if not found:
        return None
    return (
        f"{stage} computes other results under the same version, so old caches would be served "
        f"in their place ({len(found)} differ):\n  " + "\n  ".join(found[:10]) + "\nIf that is "
        f"not meant, mend it. If it is, raise the version of STAGE in "
        f"pipeline/stages/{stage} and run python -m tests.results {stage}"
    )
