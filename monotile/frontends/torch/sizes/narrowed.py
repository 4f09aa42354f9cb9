"""`torch.export` for a range of sizes, also of a model that does not take quite all of them.

What a model does may depend on a size: PyTorch traces one course, and has to prove that all sizes of the range take it. What it cannot prove
is asserted in the graph instead, and checked in each call; where a course needs fewer sizes from the outset, the range is what remains.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export import Dim, ExportedProgram

from monotile.frontends.torch.sizes.ranges import Ranges, ranges_of

_VIOLATED = r"(?:Constraints violated|Specializations unexpectedly required)"  # in a message
_FAILED = "Cannot create Dim"  # where PyTorch wants to propose a range, of a remainder of a size
Exporter = Callable[..., ExportedProgram]


def exported_for(shapes: Any, run: Exporter) -> ExportedProgram:
    """What `run(dynamic_shapes, deferred)` exports: deferred says that what PyTorch cannot prove of sizes becomes an assertion of the graph. Not
    at first: it would be asserted too that a size is not 1, for which PyTorch does what it does for 2.
    Raises what PyTorch raises where a dimension that `shapes` leaves open has one size only."""
    try:
        return run(shapes, False)
    except Exception as e:
        if not is_violation(e):
            raise
        first = e
    for way in (shapes, _inferred(shapes, str(first))):
        try:
            found = run(way, True)
        except Exception as e:
            if not is_violation(e):
                raise
            continue
        if _open(found) >= len(_dims(shapes)) and not any(_of_one_size(ranges_of(found))):
            return found
    raise first


def is_violation(e: BaseException) -> bool:
    """Whether a model does not take all sizes, as PyTorch sees it."""
    return re.search(f"{_VIOLATED}|{_FAILED}", str(e)) is not None


def _dims(shapes: Any) -> list[Any]:
    return [x for x in pytree.tree_leaves(shapes) if isinstance(x, Dim)]


def _inferred(shapes: Any, said: str) -> Any:
    """The same where PyTorch finds out what the Dims that a message names can be within their ranges; not for what is computed from a Dim."""
    named = set(re.findall(r"\w+", " ".join(re.findall(rf"{_VIOLATED} \((.*?)\)", said))))
    if re.search(_FAILED, said):
        named = {_name(x) for x in _dims(shapes) if type(x) is Dim}
    if any(type(x) is not Dim for x in _dims(shapes) if _name(x) in named):
        return shapes
    return pytree.tree_map(lambda x: _hint(x) if _name(x) in named else x, shapes)


def _name(x: Any) -> str:
    return x.__name__ if isinstance(x, Dim) else ""


def _hint(x: Any) -> Any:
    return Dim.AUTO(min=x.min, max=x.max)


def _open(exported: ExportedProgram) -> int:
    """Dimensions that a call decides."""
    given = (n.meta.get("val") for n in exported.graph.find_nodes(op="placeholder"))
    shapes = (x.shape for x in given if isinstance(x, torch.Tensor))
    return sum(isinstance(n, torch.SymInt) for shape in shapes for n in shape)


def _of_one_size(ranges: Ranges) -> Iterator[bool]:
    """Of each size, whether it is one only; and of each condition, whether sizes meet it in one way only."""
    for _, low, high in ranges.of:
        yield low == high
    for text in ranges.conditions:
        yield sum(map(bool, Ranges(ranges.of).values(text))) == 1
