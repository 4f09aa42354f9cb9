"""Quotients of sizes, while a model is traced.

PyTorch has sympy simplify each `a // b` of which it has cancelled a common factor. That tries many forms, for seconds where sizes are nested as those of
an image are behind some layers, and finds none where nothing is left to cancel.

For the size of what is pooled, PyTorch before 2.13 asks whether there is a remainder, though `//` rounds down: that splits the range of sizes in two.
"""

from collections.abc import Generator
from contextlib import contextmanager
from operator import floordiv
from typing import Any
from unittest.mock import patch

import sympy
from torch import _meta_registrations as shapes


@contextmanager
def quotients_are_simple() -> Generator[None]:
    """Within, `sympy.simplify` gives a product of whole numbers as it is, and pooling has plain quotients."""
    simplify: Any = sympy.simplify

    def simplified(x: Any, *args: Any, **options: Any) -> Any:
        return x if _is_product(x) else simplify(x, *args, **options)

    with (
        patch.object(sympy, "simplify", simplified),
        patch.object(shapes, "div_rtn", floordiv, create=True),
    ):
        yield


def _is_product(x: Any) -> bool:
    """Whether nothing can cancel in `x`: one factor or several, but for a sum, and without powers and fractions."""
    factors: tuple[Any, ...] = sympy.Mul.make_args(sympy.sympify(x))
    is_sum = len(factors) == 1 and factors[0].is_Add
    return not is_sum and not any(f.is_Pow or (f.is_Number and not f.is_Integer) for f in factors)
