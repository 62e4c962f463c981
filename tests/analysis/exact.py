"""Exact enumeration: a function that takes random numbers, run on every outcome, in fractions."""

from collections import Counter
from fractions import Fraction

import numpy as np


def outcomes(run):
    """The exact law of what `run` returns: it is run once for every sequence of answers of `fork`.

    `fork(probability)` is True with this probability. Where both answers are possible, the run
    goes on with True, and another run is noted that answers False there.
    """
    law = Counter()
    scripts = [()]
    while scripts:
        answers = Answers(scripts.pop())
        law[run(answers.fork)] += answers.weight
        scripts += answers.others
    return law


class Answers:
    """The answers of one run: those of a script first, True after them."""

    def __init__(self, script):
        self._script = script
        self._given = ()
        self.weight = Fraction(1)
        self.others = []

    def fork(self, probability):
        at = len(self._given)
        answer = at >= len(self._script) or self._script[at]
        if at >= len(self._script):
            self.others.append((*self._given, False))
        self._given += (answer,)
        self.weight *= probability if answer else 1 - probability
        return answer


class Uniform:
    """A uniform number in [0, 1) of which only comparisons are known: each narrows it exactly."""

    def __init__(self, fork):
        self._fork = fork
        self._low, self._high = Fraction(0), Fraction(1)

    def __mul__(self, factor):
        return Scaled(self, Fraction(factor))

    def below(self, value):
        if value >= self._high:
            return True
        if value <= self._low:
            return False
        below = self._fork((value - self._low) / (self._high - self._low))
        self._low, self._high = (self._low, value) if below else (value, self._high)
        return below


class Scaled:
    """A uniform number times a factor of at least 0."""

    def __init__(self, uniform, factor):
        self._uniform, self._factor = uniform, factor

    def __lt__(self, value):
        if isinstance(value, Scaled):  # numpy's search compares what it looks for with itself
            return False
        if self._factor == 0:
            return value > 0
        return self._uniform.below(Fraction(value) / self._factor)

    def __gt__(self, value):
        return not isinstance(value, Scaled) and not self < value  # equality has no probability


def exact(values):
    """An array of fractions."""
    array = np.array(values, dtype=object)
    return np.vectorize(Fraction, otypes=[object])(array)


def distributions(seed, size):
    """Small rational distributions (size,) by what came before, with zeros and ties."""

    def row(text):
        generator = np.random.default_rng([seed, size, len(text), *text])
        weights = generator.integers(0, 4, size)  # 0, 1, 2, 3
        weights[generator.integers(size)] += 1
        return exact(weights) / Fraction(int(weights.sum()))

    return row
