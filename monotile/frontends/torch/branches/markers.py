"""Marker operators in an exported graph, which enclose the branches of a Python `if` on a tensor and the bodies of loops.

Both branches are traced, one after the other, between markers; `regions.py` makes a `torch.cond` of them. A fork is where a trace of the model took
one of two paths; `merge.py` puts the traces of both paths between markers.

    branch(test, 0)  nodes of the branch taken if `test` (bool []) is true
    branch(test, 1)  nodes of the other branch
    branch(test, 2)
    join(test, then, otherwise)  for each result: of the same type in both branches; None where a branch has none

Two markers enclose the body of a loop that is traced once; `loops/scan.py` makes a `scan` of it:

    loop_begin(count, first)  returns the iteration index, int64 [], and the carried values, `first` in the first iteration
    loop_end(count, last, each)  returns the final carried values, `first` if there was no iteration, and the stacked values [count, ...]

If `count` is WHILE, the last carried value, bool [], says whether there is another iteration, and the loop becomes a `while_loop`.

`guard(x, values, text)` states that the numbers in x [n] are these; each call checks it (`lower/guards.py`).
"""

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import has_side_effect
from torch.utils._sympy.symbol import SymT, symbol_is_type

WHILE = -1
ASSERTED = "a check of the model"  # the text of a guard that is an assertion of it
_LIBRARY = torch.library.Library("monotile", "DEF")
_LIBRARY.define("branch(Tensor test, int part) -> ()")
_LIBRARY.define("fork(Tensor test) -> ()")
_LIBRARY.define("guard(Tensor x, Scalar[] values, str text) -> ()")
_LIBRARY.define("join(Tensor test, Tensor? then, Tensor? otherwise) -> Tensor")
_LIBRARY.define("loop_begin(SymInt count, Tensor[] first) -> Tensor[]")
_LIBRARY.define("loop_end(SymInt count, Tensor[] last, Tensor[] each) -> Tensor[]")


def _no_operation(*_: object) -> None:
    """Markers compute nothing."""


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


_LIBRARY.impl("branch", _no_operation, "CompositeExplicitAutograd")
_LIBRARY.impl("fork", _no_operation, "CompositeExplicitAutograd")
_LIBRARY.impl("guard", _no_operation, "CompositeExplicitAutograd")
_LIBRARY.impl("join", _like, "CompositeExplicitAutograd")
torch.library.register_fake("monotile::loop_begin", _loop_begin, lib=_LIBRARY)
torch.library.register_fake("monotile::loop_end", _loop_end, lib=_LIBRARY)

branch: Any = torch.ops.monotile.branch.default
fork: Any = torch.ops.monotile.fork.default
guard: Any = torch.ops.monotile.guard.default
join: Any = torch.ops.monotile.join.default
loop_begin: Any = torch.ops.monotile.loop_begin.default
loop_end: Any = torch.ops.monotile.loop_end.default
for _mark in (branch, fork, guard, loop_begin, loop_end):
    has_side_effect(_mark)  # else it would be dead code


def truth(x: torch.Tensor) -> torch.Tensor:
    """bool []: whether the only element of `x` is nonzero."""
    if x.numel() != 1:
        raise RuntimeError(f"the truth of a tensor of shape {tuple(x.shape)} is ambiguous")
    return x.reshape(()) != 0


def is_unknown(x: Any) -> bool:
    """Whether `x` is a comparison of data-dependent sizes that may be true or false."""
    if not isinstance(x, torch.SymBool):
        return False
    if statically_known_true(x) or statically_known_true(torch.sym_not(x)):
        return False
    named: Any = x.node.expr.free_symbols
    return any(symbol_is_type(s, SymT.UNBACKED_INT) for s in named)


def as_tensor(x: torch.SymBool) -> torch.Tensor:
    """The bool as a tensor of the traced graph."""
    return torch.full((), torch.sym_ite(x, 1, 0), dtype=torch.int64) != 0
