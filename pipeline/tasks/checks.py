"""Scores answers: one short function for each kind of item."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from pipeline.tasks import constraints

Item = Mapping[str, Any]  # a row of a task, as `items.check_item` allows it

UNITS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
UNITS += " fifteen sixteen seventeen eighteen nineteen"
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
NAMED = {name: at for at, name in enumerate(UNITS.split())} | {
    name: 10 * at for at, name in enumerate(TENS.split(), start=2)
}
DIGITS = r"\d{1,2}:\d\d(?!\d)|\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?"
NUMBER = re.compile(rf"(?<![\w.])-?(?:{DIGITS})|(?<=[-.])(?:{DIGITS})")
NOT_NUMBER = re.compile(rf"\bnot\s+(?:[a-z]+\s+){{0,2}}(?:{DIGITS})")
NEGATED = re.compile(  # what stands before a phrase that is denied
    r"(?:\b(?:not(?! only)|never|neither|nor|unlike|except|cannot|(?:rather|other) than|instead of)"
    r"|n['’]t)\s+(?:(?!but\b|is\b|it['’]s\b)[\w'’-]+\s+){0,4}$"
)
RESTATED = 5  # words that a sentence has at least which repeats one of the prompt


def folded(text: str) -> str:
    """Return a text without accents, in one case, with single spaces."""
    bare = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return " ".join(bare.casefold().split())


def mentions(text: str, phrase: str) -> bool:
    """Whether a text says a phrase, as whole words or a whole number, and does not deny it.

    >>> mentions("It is Paris.", "paris"), mentions("Parisian", "Paris"), mentions("2.5", "2")
    (True, False, False)
    >>> mentions("I'd go", "D"), mentions("a frog, not a toad", "toad")
    (False, False)
    """
    text = folded(text)
    pattern = rf"(?<!\w)(?<!\w['’])(?<!\d[.,:]){re.escape(folded(phrase))}(?!\w)(?![.,:]\d)"
    return any(not NEGATED.search(text, 0, match.start()) for match in re.finditer(pattern, text))


def digits_in(text: str) -> list[Decimal]:
    """Return the numbers of a text in digits; hours and minutes as hours.

    >>> [str(one) for one in digits_in("4 + 5 = 9 apples for 1,200, at 9:30")]
    ['4', '5', '9', '1200', '9.5']
    """
    numbers = []
    for number in NUMBER.findall(text):
        hours, _, minutes = number.replace(",", "").partition(":")
        numbers.append(Decimal(hours) + Decimal(minutes or 0) / 60)
    return numbers


def numbers_in_words(text: str) -> list[Decimal]:
    """Return the numbers of a text in words.

    >>> [str(one) for one in numbers_in_words("Twenty-one of one hundred and five")]
    ['21', '105']
    """
    numbers: list[int] = []
    goes_on = ""  # what may follow: after tens a unit, after hundreds all
    for word in re.findall("[a-z]+", text.lower()):
        value = NAMED.get(word)
        if value is not None:
            joined = goes_on == "all" or (goes_on == "unit" and 0 < value < 10)
            if joined:
                numbers[-1] += value
            else:
                numbers.append(value)
            goes_on = "unit" if value >= 20 else "hundred"
        elif word == "hundred" and goes_on:
            numbers[-1] *= 100
            goes_on = "all"
        elif word != "and" or goes_on != "all":
            goes_on = ""
    return [Decimal(number) for number in numbers]


def answered(item: Item, answer: str) -> bool:
    """Whether an answer has an accepted phrase, and none that is wrong.

    A sentence that repeats one of the prompt, words left out, and has an accepted phrase may name
    wrong ones: "It was moved from Tuesday to Thursday."
    """

    def says(text: str, phrases: Sequence[str]) -> bool:
        return any(mentions(text, phrase) for phrase in phrases)

    own = [
        sentence
        for sentence in sentences_of(answer)
        if not (says(sentence, item["expected"]) and restates(sentence, item["prompt"]))
    ]
    return says(answer, item["expected"]) and not any(
        says(sentence, item["wrong"]) for sentence in own
    )


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a text; a line ends one too."""
    return re.split(r"(?<=[.!?;])\s+|\n+", text.strip())


def restates(sentence: str, prompt: str) -> bool:
    """Whether the words of a sentence stand in this order in a sentence that the prompt states."""
    spoken = constraints.words_of(folded(sentence))
    for stated in sentences_of(prompt):
        words = iter(constraints.words_of(folded(stated)))
        if (
            not stated.endswith("?")
            and len(spoken) >= RESTATED
            and all(word in words for word in spoken)
        ):
            return True
    return False


def numbered(item: Item, answer: str) -> bool:
    """Whether the last number of an answer is the expected one, or the last that is new.

    New is what the prompt does not have: "9 of the 12 are left". Words count where no digits are.
    """
    text = NOT_NUMBER.sub("", answer)
    numbers = digits_in(text) or numbers_in_words(text)
    given = digits_in(item["prompt"]) + numbers_in_words(item["prompt"])
    new = [number for number in numbers if number not in given]
    return Decimal(item["expected"][0]) in numbers[-1:] + new[-1:]


def copied(item: Item, answer: str) -> bool:
    """Whether an answer is the expected text, which may stand in quotes."""
    text = answer.strip()
    if len(text) > 1 and text[0] in "\"'“‘" and text[-1] in "\"'”’":
        text = text[1:-1]
    return text == item["expected"][0]


SCORES: dict[str, Callable[[Item, str], bool]] = {
    "answer": answered,
    "number": numbered,
    "copy": copied,
    "constraints": lambda item, answer: all(
        constraints.holds(constraint, answer) for constraint in item["expected"]
    ),
}


def score(item: Item, answer: str) -> bool:
    """Whether an answer is right."""
    return SCORES[item["kind"]](item, answer)
