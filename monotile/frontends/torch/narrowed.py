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

from monotile.frontends.torch.ranges import Ranges, ranges_of

_VIOLATED = r"(?:Constraints violated|Specializations unexpectedly required)"  # in a message
Exporter = Callable[..., ExportedProgram]


def exported_for(shapes: Any, run: Exporter) -> ExportedProgram:
    """What `run(dynamic_shapes, deferred)` exports: deferred says that what PyTorch cannot prove of sizes becomes an assertion of the graph.
    Raises what PyTorch raises where a dimension that `shapes` leaves open has one size only."""
    if shapes is None:
        return run(None, False)
    found, said = _tried(run, shapes)
    if found is None and said:
        found, _ = _tried(run, _inferred(shapes, said))
    return run(shapes, False) if found is None else found  # which raises, to say why


def _tried(run: Exporter, shapes: Any) -> tuple[ExportedProgram | None, str]:
    """What is exported if it takes several sizes of each Dim, and what PyTorch says if not."""
    try:
        found = run(shapes, True)
    except Exception as e:
        if not re.search(_VIOLATED, str(e)):
            raise
        return None, str(e)
    several = _open(found) >= len(_dims(shapes)) and not any(_of_one_size(ranges_of(found)))
    return (found if several else None), ""


def _dims(shapes: Any) -> list[Any]:
    return [x for x in pytree.tree_leaves(shapes) if isinstance(x, Dim)]


def _inferred(shapes: Any, said: str) -> Any:
    """The same where PyTorch finds out what the Dims that a message names can be within their ranges; not for what is computed from a Dim."""
    named = set(re.findall(r"\w+", " ".join(re.findall(rf"{_VIOLATED} \((.*?)\)", said))))
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
