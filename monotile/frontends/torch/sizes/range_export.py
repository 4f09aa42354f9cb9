"""`torch.export` for a range of sizes, also of a model whose path does not hold for all of them.

PyTorch traces one path and has to prove that all sizes of the range take it. A condition that it cannot prove becomes an assertion of the graph, which
each call checks. If a path requires fewer sizes from the outset, the range is reduced to these.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export import Dim, ExportedProgram

from monotile.frontends.torch.sizes.ranges import Ranges, ranges_of

_VIOLATED = r"(?:Constraints violated|Specializations unexpectedly required)"  # in a message
# PyTorch fails to propose a range: for a remainder of a size, and for one that ends at a fraction.
_FAILED = "Cannot create Dim|Expected op to be '=='"
Exporter = Callable[..., ExportedProgram]


def exported_for_range(shapes: Any, run: Exporter) -> ExportedProgram:
    """The result of `run(dynamic_shapes, deferred)`. deferred: whether conditions on sizes that PyTorch cannot prove become assertions of the graph. It
    is False at first: PyTorch would also assert that a size is not 1, although it treats 1 like 2.
    Raises PyTorch's error if a dynamic dimension of `shapes` can have only one size."""
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
        if _open(found) >= len(_dims(shapes)) and not any(_is_fixed(ranges_of(found))):
            return found
    raise first


def is_violation(e: BaseException) -> bool:
    """Whether PyTorch reports that a model does not support all sizes of the range."""
    return re.search(f"{_VIOLATED}|{_FAILED}", str(e)) is not None


def _dims(shapes: Any) -> list[Any]:
    return [x for x in pytree.tree_leaves(shapes) if isinstance(x, Dim)]


def _inferred(shapes: Any, said: str) -> Any:
    """`shapes`, with automatic ranges for the Dims that a message names; not for expressions of a Dim."""
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
    """The number of dynamic dimensions."""
    given = (n.meta.get("val") for n in exported.graph.find_nodes(op="placeholder"))
    shapes = (x.shape for x in given if isinstance(x, torch.Tensor))
    return sum(isinstance(n, torch.SymInt) for shape in shapes for n in shape)


def _is_fixed(ranges: Ranges) -> Iterator[bool]:
    """For each size whether it has a single value, and for each condition whether a single combination of sizes satisfies it."""
    for _, low, high in ranges.of:
        yield low == high
    for text in ranges.conditions:
        yield sum(map(bool, Ranges(ranges.of).values(text))) == 1
