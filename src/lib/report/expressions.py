"""Arithmetic that writes itself down: a Python formula, given an Expression, gives the same formula in Vega's language.

So the page computes with the formulas of lib.sizing and lib.report.steptime, and nobody writes them twice. A formula
that branches on an Expression cannot be written down so: it raises TypeError.
"""

import numpy as np

UFUNCS = {np.minimum: "min", np.maximum: "max", np.sqrt: "sqrt"}
OPERATORS = {np.add: "+", np.subtract: "-", np.multiply: "*", np.true_divide: "/"}


class Expression:
    """A number that is known when the page is used: `Expression("prompt")` is the page's parameter of that name."""

    def __init__(self, text: str):
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __bool__(self):
        raise TypeError(f"a formula branches on {self.text[:60]!r}, whose value only the page knows")

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        if method != "__call__" or kwargs:
            return NotImplemented
        if ufunc in OPERATORS:
            return _join(OPERATORS[ufunc], *inputs)
        return Expression(f"{UFUNCS[ufunc]}({', '.join(map(text, inputs))})") if ufunc in UFUNCS else NotImplemented

    def __add__(self, other):
        return _join("+", self, other)

    def __radd__(self, other):
        return _join("+", other, self)

    def __sub__(self, other):
        return _join("-", self, other)

    def __rsub__(self, other):
        return _join("-", other, self)

    def __mul__(self, other):
        return _join("*", self, other)

    def __rmul__(self, other):
        return _join("*", other, self)

    def __truediv__(self, other):
        return _join("/", self, other)

    def __rtruediv__(self, other):
        return _join("/", other, self)

    def __neg__(self):
        return Expression(f"(-{self})")

    def __gt__(self, other):
        return Expression(f"({self} > {text(other)} ? 1 : 0)")


def text(value) -> str:
    """A number or an Expression in Vega's language. Numbers keep all their digits."""
    return str(value) if isinstance(value, Expression) else repr(float(value))


def _join(operator: str, left, right) -> Expression:
    return Expression(f"({text(left)} {operator} {text(right)})")


def choose(name: str, values: list) -> str:
    """The one of some values (numbers or Expressions) that the page's parameter `name`, counting from 0, picks."""
    picked = text(values[-1])
    for number, value in reversed(list(enumerate(values[:-1]))):
        picked = f"({name} == {number} ? {text(value)} : {picked})"
    return picked
