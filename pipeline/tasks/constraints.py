"""Constraints on a text that a program can check: "max_words 20", "lower_case".

A constraint is a name and, for most, an argument. None holds for an empty text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

Check = Callable[[str, str], bool]  # of a stripped text that is not empty, and the argument


def words_of(text: str) -> list[str]:
    """Return the words of a text; parts joined by an apostrophe or hyphen are one word.

    >>> words_of("It's a well-known fact.")
    ["It's", 'a', 'well-known', 'fact']
    """
    return re.findall(r"\w+(?:['’-]\w+)*", text)


def sentence_count(text: str) -> int:
    """Return the number of sentences of a text: parts that end with . ! or ? and a space.

    >>> sentence_count("Rain fell. Why? Nobody knows"), sentence_count("It was 2.5 degrees.")
    (3, 1)
    """
    return len(
        [part for part in re.split(r"(?<=[.!?])[\"”')]*\s+", text.strip()) if words_of(part)]
    )


def full_lines(text: str) -> list[str]:
    """Return the lines that are not empty."""
    return [line for line in text.splitlines() if line.strip()]


def bare_text(text: str) -> str:
    """Return a text as `equals` compares it: no quotes, no full stop at the end, one case."""
    text = re.sub(r"\s*,\s*", ",", " ".join(text.split()))
    return text.strip("\"“”'.").casefold()


def occurrences(text: str, word: str) -> int:
    """Return the number of occurrences of a word, in any case."""
    return len(re.findall(rf"(?<!\w){re.escape(word.casefold())}(?!\w)", text.casefold()))


def ends_with(text: str, end: str) -> bool:
    """Whether a text ends so; after a word, punctuation may follow."""
    bare = text.rstrip("\"”' ")
    return bare.endswith(end) or (end.isalnum() and re.sub(r"\W+$", "", bare).endswith(end))


def json_keys(text: str, keys: str) -> bool:
    """Whether a text has one JSON object, with exactly these keys."""
    match = re.search(r"\{.*\}", text, re.DOTALL)
    try:
        value = json.loads(match.group()) if match else None
    except ValueError:
        return False
    return isinstance(value, dict) and set(value) == set(keys.split(","))


def cased(text: str, wanted: str) -> bool:
    """Whether a text has letters, and all of them in the wanted case."""
    return text == wanted and text.lower() != text.upper()


def occurs_times(text: str, argument: str) -> bool:
    """Whether a word occurs exactly so often; "blue 2"."""
    word, _, times = argument.rpartition(" ")
    return occurrences(text, word) == int(times)


def marked(text: str, argument: str) -> bool:
    """Whether exactly so many lines begin with a mark and a space; "- 5"."""
    mark, _, number = argument.partition(" ")
    return sum(line.lstrip().startswith(f"{mark} ") for line in full_lines(text)) == int(number)


def numbered_lines(text: str, number: str) -> bool:
    """Whether exactly so many lines begin with a number: 1, 2, 3, ..."""
    numbers = re.findall(r"^\s*(\d+)[.):]\s+\S", text, re.MULTILINE)
    return numbers == [str(at) for at in range(1, int(number) + 1)]


NUMBERS: dict[str, Check] = {  # whose argument is a number
    "words": lambda text, n: len(words_of(text)) == int(n),
    "max_words": lambda text, n: 0 < len(words_of(text)) <= int(n),
    "min_words": lambda text, n: len(words_of(text)) >= int(n),
    "sentences": lambda text, n: sentence_count(text) == int(n),
    "max_sentences": lambda text, n: 0 < sentence_count(text) <= int(n),
    "lines": lambda text, n: len(full_lines(text)) == int(n),
    "numbered": numbered_lines,
    "comma_items": lambda text, n: [bool(words_of(x)) for x in text.split(",")] == [True] * int(n),
}
TEXTS: dict[str, Check] = {  # whose argument is a text
    "contains": lambda text, phrase: occurrences(text, phrase) > 0,
    "contains_any": lambda text, some: any(occurrences(text, word) for word in some.split()),
    "avoids": lambda text, some: not any(occurrences(text, word) for word in some.split()),
    "lacks": lambda text, part: part.casefold() not in text.casefold(),
    "starts_with": lambda text, start: text.startswith(start),
    "ends_with": ends_with,
    "equals": lambda text, wanted: bare_text(text) == bare_text(wanted),
    "json_keys": json_keys,
    "count": occurs_times,
    "marked": marked,
}
WITH_NUMBER = ("count", "marked")  # of these, whose argument ends with a number
ALONE: dict[str, Check] = {  # without an argument
    "lower_case": lambda text, _: cased(text, text.lower()),
    "upper_case": lambda text, _: cased(text, text.upper()),
    "quoted": lambda text, _: re.search(r"[\"“][^\"”]*\w[^\"”]*[\"”]", text) is not None,
}
CHECKS = NUMBERS | TEXTS | ALONE


def parse(constraint: str) -> tuple[Check, str]:
    """Return the check of a constraint and its argument.

    Raises:
        ValueError: there is no such constraint, or its argument is wrong.
    """
    name, _, argument = constraint.partition(" ")
    if name not in CHECKS:
        raise ValueError(f"constraint {name} is not known: give one of {', '.join(CHECKS)}")
    last = argument.rpartition(" ")[2] if name in WITH_NUMBER else argument
    if name in (*NUMBERS, *WITH_NUMBER) and not last.isdecimal():
        raise ValueError(f"constraint {constraint}: {last!r} is no number")
    if bool(argument) == (name in ALONE):
        takes = "no argument" if name in ALONE else "an argument"
        raise ValueError(f"constraint {constraint}: {name} takes {takes}")
    return CHECKS[name], argument


def holds(constraint: str, text: str) -> bool:
    """Whether a text meets a constraint.

    >>> holds("max_words 3", "Three short words"), holds("max_words 3", "One word too many")
    (True, False)
    """
    check, argument = parse(constraint)
    text = text.strip()
    return bool(text) and check(text, argument)
