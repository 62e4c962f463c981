"""Whether an answer is right. Every kind of item is scored by one short function."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from decimal import Decimal
from itertools import dropwhile, takewhile

from pipeline.tasks import constraints
from pipeline.tasks.items import Item
from pipeline.tasks.sandbox import passes

NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?|(?<=[-.])\d[\d,]*(?:\.\d+)?")
UNITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
UNITS += ["eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen"]
UNITS += ["eighteen", "nineteen"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
NAMED = {name: at for at, name in enumerate(UNITS)} | {
    name: 10 * at for at, name in enumerate(TENS, start=2)
}

DEFINES = re.compile(r"(?:def|class|import|from)\b|@")
BELONGS = re.compile(r"(?:def|class|import|from)\b|[@)\]}\s]|$")


def folded(text: str) -> str:
    """Return a text without accents, in one case, with single spaces."""
    bare = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return " ".join(bare.casefold().split())


def mentions(text: str, phrase: str) -> bool:
    """Whether a phrase stands in a text as whole words; a number, as a whole number.

    >>> mentions("It is Paris.", "paris"), mentions("Parisian", "Paris"), mentions("2.5", "2")
    (True, False, False)
    """
    pattern = rf"(?<!\w)(?<!\d[.,:]){re.escape(folded(phrase))}(?!\w)(?![.,:]\d)"
    return re.search(pattern, folded(text)) is not None


def last_number(text: str) -> Decimal | None:
    """Return the last number of a text, in digits or, where it has no digits, in words.

    >>> last_number("4 + 5 = 9 apples."), last_number("He pays 1,200."), last_number("Twenty-one!")
    (Decimal('9'), Decimal('1200'), Decimal('21'))
    """
    digits = NUMBER.findall(text)
    if digits:
        return Decimal(digits[-1].replace(",", ""))
    named = [word for word in re.findall("[a-z]+", text.lower()) if word in NAMED]
    if not named:
        return None
    last = NAMED[named[-1]]
    tens = len(named) > 1 and named[-2] in TENS and 0 < last < 10
    return Decimal(last + (NAMED[named[-2]] if tens else 0))


def answered(item: Item, answer: str) -> bool:
    """Whether an answer has an accepted phrase, and none that is wrong."""
    right = any(mentions(answer, phrase) for phrase in item.expected)
    return right and not any(mentions(answer, phrase) for phrase in item.wrong)


def numbered(item: Item, answer: str) -> bool:
    """Whether the last number of an answer is the expected one."""
    return last_number(answer) == Decimal(item.expected[0])


def copied(item: Item, answer: str) -> bool:
    """Whether an answer is the expected text, which may stand in quotes."""
    text = answer.strip()
    if len(text) > 1 and text[0] in "\"'“‘" and text[-1] in "\"'”’":
        text = text[1:-1]
    return text == item.expected[0]


def constrained(item: Item, answer: str) -> bool:
    """Whether an answer meets all constraints."""
    return all(constraints.holds(constraint, answer) for constraint in item.expected)


def code_of(answer: str) -> str:
    r"""Return the code of an answer: of its first fenced block, or of all of it.

    It begins with the first definition or import and ends before the first line after it that is
    neither, nor indented: examples and explanations follow there, often cut short.

    >>> code_of("Sure:\n```python\ndef f():\n    return 1\n\nprint(f())\n```\nThis is f.")
    'def f():\n    return 1\n\n'
    """
    block = re.search(r"```(?:[Pp]ython|py)?[ \t]*\n(.*?)(?:```|\Z)", answer, re.DOTALL)
    fenced = definitions(block.group(1)) if block else ""
    return fenced or definitions(answer)  # of some answers a fence is only the end


def definitions(text: str) -> str:
    """Return the lines from the first definition or import to the first that is none."""
    lines = text.splitlines(keepends=True)
    from_first = dropwhile(lambda line: not DEFINES.match(line), lines)
    return "".join(takewhile(BELONGS.match, from_first))


def passed(item: Item, answer: str) -> bool:
    """Whether the code of an answer passes the tests, in a process of its own."""
    return passes(code_of(answer), item.expected)


SCORES: dict[str, Callable[[Item, str], bool]] = {
    "answer": answered,
    "number": numbered,
    "copy": copied,
    "constraints": constrained,
    "python": passed,
}


def score(item: Item, answer: str) -> bool:
    """Whether an answer is right."""
    return SCORES[item.kind](item, answer)
