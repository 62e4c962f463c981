"""What the YAML files of this folder call: rows become items, and answers are scored.

lm-evaluation-harness loads this file by its path. A row's `kind` says how its answer is scored:
README.md.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from datasets import Dataset

Item = Mapping[str, Any]  # id, kind, prompt, expected, wrong

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


def load(file: str, **_: Any) -> dict[str, Dataset]:
    """Return the rows of a JSON Lines file of this folder, or of another by its whole path."""
    lines = (Path(__file__).parent / file).read_text(encoding="utf-8").splitlines()
    return {"test": Dataset.from_list([json.loads(line) for line in lines if line.strip()])}


def process_results(doc: Item, results: Sequence[str]) -> dict[str, float]:
    """Return the score of an answer: 1 if it is right."""
    return {"acc": float(score(doc, results[0]))}


def score(item: Item, answer: str) -> bool:
    """Whether an answer is right."""
    return SCORES[item["kind"]](item, answer)


def answered(item: Item, answer: str) -> bool:
    """Whether an answer has an accepted phrase, and none that is wrong.

    A sentence that repeats one of the prompt, words left out, and has an accepted phrase may name
    wrong ones: "It was moved from Tuesday to Thursday."
    """

    def says(text: str, phrases: Sequence[str]) -> bool:
        return any(mentions(text, phrase) for phrase in phrases)

    new = [
        sentence
        for sentence in sentences_of(answer)
        if not (says(sentence, item["expected"]) and restates(sentence, item["prompt"]))
    ]
    return says(answer, item["expected"]) and not any(
        says(sentence, item["wrong"]) for sentence in new
    )


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


def constrained(item: Item, answer: str) -> bool:
    """Whether an answer is not empty and meets every constraint."""
    return all(holds(constraint, answer) for constraint in item["expected"])


def folded(text: str) -> str:
    """Return a text without accents, in one case, with single spaces."""
    bare = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return " ".join(bare.casefold().split())


def mentions(text: str, phrase: str) -> bool:
    """Whether a text says a phrase, as whole words or a whole number, and does not deny it."""
    text = folded(text)
    pattern = rf"(?<!\w)(?<!\w['’])(?<!\d[.,:]){re.escape(folded(phrase))}(?!\w)(?![.,:]\d)"
    return any(not NEGATED.search(text, 0, match.start()) for match in re.finditer(pattern, text))


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a text; a line ends one too."""
    return re.split(r"(?<=[.!?;])\s+|\n+", text.strip())


def restates(sentence: str, prompt: str) -> bool:
    """Whether the words of a sentence stand in this order in a sentence that the prompt states."""
    spoken = words_of(folded(sentence))
    for stated in sentences_of(prompt):
        words = iter(words_of(folded(stated)))
        if (
            not stated.endswith("?")
            and len(spoken) >= RESTATED
            and all(word in words for word in spoken)
        ):
            return True
    return False


def digits_in(text: str) -> list[Decimal]:
    """Return the numbers of a text in digits; hours and minutes as hours."""
    numbers = []
    for number in NUMBER.findall(text):
        hours, _, minutes = number.replace(",", "").partition(":")
        numbers.append(Decimal(hours) + Decimal(minutes or 0) / 60)
    return numbers


def numbers_in_words(text: str) -> list[Decimal]:
    """Return the numbers of a text in words."""
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


def words_of(text: str) -> list[str]:
    """Return the words of a text; parts joined by an apostrophe or hyphen are one word."""
    return re.findall(r"\w+(?:['’-]\w+)*", text)


def sentence_count(text: str) -> int:
    """Return the number of sentences of a text: parts that end with . ! or ? and a space."""
    return sum(bool(words_of(part)) for part in re.split(r"(?<=[.!?])[\"”')]*\s+", text))


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


def count(text: str, argument: str) -> bool:
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


def comma_items(text: str, number: str) -> bool:
    """Whether a text has exactly so many parts between commas, each with a word."""
    return [bool(words_of(part)) for part in text.split(",")] == [True] * int(number)


SCORES: dict[str, Callable[[Item, str], bool]] = {
    "answer": answered,
    "number": numbered,
    "copy": copied,
    "constraints": constrained,
}
CONSTRAINTS: dict[str, Callable[[str, str], bool]] = {  # of a stripped text and the argument
    "words": lambda text, n: len(words_of(text)) == int(n),
    "max_words": lambda text, n: 0 < len(words_of(text)) <= int(n),
    "min_words": lambda text, n: len(words_of(text)) >= int(n),
    "sentences": lambda text, n: sentence_count(text) == int(n),
    "max_sentences": lambda text, n: 0 < sentence_count(text) <= int(n),
    "lines": lambda text, n: len(full_lines(text)) == int(n),
    "numbered": numbered_lines,
    "marked": marked,
    "comma_items": comma_items,
    "contains": lambda text, phrase: occurrences(text, phrase) > 0,
    "contains_any": lambda text, some: any(occurrences(text, word) for word in some.split()),
    "avoids": lambda text, some: not any(occurrences(text, word) for word in some.split()),
    "lacks": lambda text, part: part.casefold() not in text.casefold(),
    "count": count,
    "starts_with": lambda text, start: text.startswith(start),
    "ends_with": ends_with,
    "equals": lambda text, wanted: bare_text(text) == bare_text(wanted),
    "json_keys": json_keys,
    "lower_case": lambda text, _: cased(text, text.lower()),
    "upper_case": lambda text, _: cased(text, text.upper()),
    "quoted": lambda text, _: re.search(r"[\"“][^\"”]*\w[^\"”]*[\"”]", text) is not None,
}


def holds(constraint: str, text: str) -> bool:
    """Whether a text is not empty and meets a constraint: a name and for most an argument."""
    name, _, argument = constraint.partition(" ")
    text = text.strip()
    return bool(text) and CONSTRAINTS[name](text, argument)
