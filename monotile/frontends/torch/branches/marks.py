"""Marks in an exported graph: where the sides of a Python `if` on a tensor lie.

Both sides are traced, one behind the other, between marks; `regions.py` makes a `torch.cond` of them. A fork is where a trace of the
model took one of two ways; `merge.py` puts the traces of both ways between marks.

    side(test, 0)  nodes of the side taken where `test` (bool []) holds
    side(test, 1)  nodes of the other
    side(test, 2)
    choose(test, then, otherwise)  a result, for each: of the same type on both sides; None where a side has none

Two markers enclose the body of a loop that is traced once; `loops/scan.py` makes a `scan` of it:

    loop_begin(count, first)  returns the iteration index, int64 [], and the carried values, `first` in the first iteration
    loop_end(count, last, each)  returns the final carried values, `first` if there was no iteration, and the stacked values [count, ...]

If `count` is WHILE, the last carried value, bool [], says whether there is another iteration, and the loop becomes a `while_loop`.

And what a graph takes for granted: `known(x, values, text)`, that the numbers in x [n] are these; each call asks (`lower/known.py`).
"""

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import has_side_effect
from torch.utils._sympy.symbol import SymT, symbol_is_type

WHILE = -1
ASSERTED = "asserted"  # the text of an assertion of the model's
_LIBRARY = torch.library.Library("monotile", "DEF")
_LIBRARY.define("side(Tensor test, int part) -> ()")
_LIBRARY.define("fork(Tensor test) -> ()")
_LIBRARY.define("known(Tensor x, Scalar[] values, str text) -> ()")
_LIBRARY.define("choose(Tensor test, Tensor? then, Tensor? otherwise) -> Tensor")
_LIBRARY.define("loop_begin(SymInt count, Tensor[] first) -> Tensor[]")
_LIBRARY.define("loop_end(SymInt count, Tensor[] last, Tensor[] each) -> Tensor[]")


def _nothing(*_: object) -> None:
    """Runs a mark."""


def _like(_: torch.Tensor, then: torch.Tensor | None, otherwise: torch.Tensor | None) -> Any:
    given = then if then is not None else otherwise
    assert given is not None
    return torch.empty_like(given, memory_format=torch.contiguous_format)


def _new(x: torch.Tensor, *sizes: Any) -> torch.Tensor:
    return torch.empty((*sizes, *x.shape), dtype=x.dtype, device=x.device)


def _loop_begin(_: Any, first: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.empty((), dtype=torch.int64), *map(_new, first)]


def _loop_end(count: Any, last: list[torch.Tensor], each: list[torch.Tensor]) -> list[torch.Tensor]:
    return [*map(_new, last), *(_new(x, count) for x in each)]


_LIBRARY.impl("side", _nothing, "CompositeExplicitAutograd")
_LIBRARY.impl("fork", _nothing, "CompositeExplicitAutograd")
_LIBRARY.impl("known", _nothing, "CompositeExplicitAutograd")
_LIBRARY.impl("choose", _like, "CompositeExplicitAutograd")
torch.library.register_fake("monotile::loop_begin", _loop_begin, lib=_LIBRARY)
torch.library.register_fake("monotile::loop_end", _loop_end, lib=_LIBRARY)

side: Any = torch.ops.monotile.side.default
fork: Any = torch.ops.monotile.fork.default
known: Any = torch.ops.monotile.known.default
choose: Any = torch.ops.monotile.choose.default
loop_begin: Any = torch.ops.monotile.loop_begin.default
loop_end: Any = torch.ops.monotile.loop_end.default
for _mark in (side, fork, known, loop_begin, loop_end):
    has_side_effect(_mark)  # else it would be dead code


def truth(x: torch.Tensor) -> torch.Tensor:
    """bool [], whether the one element of `x` is not zero."""
    if x.numel() != 1:
        raise RuntimeError(f"the truth of a tensor of shape {tuple(x.shape)} is ambiguous")
    return x.reshape(()) != 0


def is_unknown(x: Any) -> bool:
    """Whether `x` compares sizes that data decide, and may be either."""
    if not isinstance(x, torch.SymBool):
        return False
    if statically_known_true(x) or statically_known_true(torch.sym_not(x)):
        return False
    named: Any = x.node.expr.free_symbols
    return any(symbol_is_type(s, SymT.UNBACKED_INT) for s in named)


def as_tensor(x: torch.SymBool) -> torch.Tensor:
    """The bool, in a graph that is traced."""
    return torch.full((), torch.sym_ite(x, 1, 0), dtype=torch.int64) != 0
