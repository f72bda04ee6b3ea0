"""Arithmetic that writes itself down: a Python formula, given an Expression, gives the same formula in Vega's language.

So the page computes with the formulas of lib.sizing and lib.report.steptime, and nobody writes them twice. A formula
that branches on an Expression cannot be written down so: it raises TypeError.
"""

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

FORMS = {
    np.add: "({} + {})",
    np.subtract: "({} - {})",
    np.multiply: "({} * {})",
    np.true_divide: "({} / {})",
    np.minimum: "min({}, {})",
    np.maximum: "max({}, {})",
    np.sqrt: "sqrt({})",
    np.negative: "(-{})",
    np.greater: "({} > {} ? 1 : 0)",
}


class Expression(NDArrayOperatorsMixin):
    """A number that is known when the page is used: `Expression("prompt")` is the page's parameter of that name.

    numpy sends each operator and function to `__array_ufunc__`; one that FORMS does not have raises TypeError.
    """

    def __init__(self, text: str):
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __bool__(self):
        raise TypeError(f"a formula branches on {self.text[:60]!r}, whose value only the page knows")

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        if method != "__call__" or kwargs.keys() - {"out"} or ufunc not in FORMS:  # out: `+=`, which gives a new one
            return NotImplemented
        return Expression(FORMS[ufunc].format(*map(text, inputs)))


def text(value) -> str:
    """A number or an Expression in Vega's language. Numbers keep all their digits."""
    return str(value) if isinstance(value, Expression) else repr(float(value))


def choose(name: str, values: list) -> str:
    """The one of some values (numbers or Expressions) that the page's parameter `name`, counting from 0, picks."""
    picked = text(values[-1])
    for number, value in reversed(list(enumerate(values[:-1]))):
        picked = f"({name} == {number} ? {text(value)} : {picked})"
    return picked
