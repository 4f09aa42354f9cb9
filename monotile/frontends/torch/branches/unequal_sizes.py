"""Results of two branches that differ in sizes, as `return boxes[:0]` and `return boxes[kept]`.

In its branch each result is padded to the largest size that either may have, and its own size is a further result. After the branches, the elements
within the size of the branch that was taken are selected, so that the result has a data-dependent size.
"""

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree
from torch.utils._sympy.symbol import SymT, symbol_is_type
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from monotile.errors import CaptureError
from monotile.frontends.torch.lower.data_dependent import SELECTING, selected_from

Choose = Callable[[Any, Any], Any]  # the marker that joins two nodes
aten = torch.ops.aten
_Key = tuple[str, str, int]  # both sizes, and the largest


def reserve_symbols(graphs: Sequence[fx.Graph]) -> None:
    """Makes further symbols of the first graph's sizes other ones than those of all graphs, which have named theirs independently."""
    taken = {k for graph in graphs for n in _sizes(graph.nodes) for k in _numbers(n)}
    if taken and (mode := detect_fake_mode([n.meta.get("val") for n in graphs[0].nodes])):
        env: Any = mode.shape_env
        with env.ignore_fresh_unbacked_symbols():
            while max(_numbers(env.create_unbacked_symint())) < max(taken):
                pass


def _sizes(nodes: Iterable[fx.Node]) -> Iterator[torch.SymInt]:
    """The symbolic sizes of what `nodes` give."""
    values = pytree.tree_leaves([n.meta.get("val") for n in nodes])
    found = (n for x in values for n in (x.shape if isinstance(x, torch.Tensor) else (x,)))
    return (n for n in found if isinstance(n, torch.SymInt))


def _numbers(n: torch.SymInt) -> set[int]:
    """The numbers in the names of its data-dependent symbols."""
    symbols: Any = n.node.expr.free_symbols
    return {int(str(s)[1:]) for s in symbols if symbol_is_type(s, SymT.UNBACKED_INT)}


class UnequalSizes:
    """ends: the markers after each branch in `graph`. before: the nodes before both, whose symbols the branches share."""

    def __init__(
        self, graph: fx.Graph, ends: tuple[fx.Node, fx.Node], before: Sequence[fx.Node | None]
    ) -> None:
        self._graph, self._ends = graph, ends
        self._sizes = dict[_Key, tuple[fx.Node, fx.Node]]()
        self._cut = dict[int, list[tuple[int, _Key]]]()
        self._shared = {k for n in _sizes(n for n in before if n) for k in _numbers(n)}

    def padded(self, number: int, then: Any, otherwise: Any) -> tuple[Any, Any]:
        """Result `number` of each branch, padded if the two differ only in sizes that have bounds; else as they are."""
        ways = (then, otherwise)
        if not all(map(_is_tensor, ways)):
            return ways
        values: list[torch.Tensor] = [x.meta["val"] for x in ways]
        if len({(x.ndim, x.dtype, x.device) for x in values}) > 1:
            return ways
        unequal = [d for d, n in enumerate(zip(*(x.shape for x in values), strict=True)) if not self._are_equal(*n)]  # fmt: skip
        if not unequal:
            return ways
        bounds = [_bounds(x) for x in ways]
        largest = [max(own[d] for own in bounds) for d in range(values[0].ndim)]
        if not all(math.isfinite(largest[d]) for d in unequal):
            raise CaptureError(
                "the size of a result differs between the branches of an `if` on a tensor, and nothing bounds it"
            )
        self._cut[number] = [(d, self._key(ways, d, int(largest[d]))) for d in unequal]
        shape = {d: int(largest[d]) for d in unequal}
        return self._padded(0, then, shape), self._padded(1, otherwise, shape)

    def _are_equal(self, a: Any, b: Any) -> bool:
        """Whether two sizes are the same number, or the same symbolic size."""
        if isinstance(a, int) or isinstance(b, int):
            return isinstance(a, int) and isinstance(b, int) and a == b
        return a.node.expr == b.node.expr and _numbers(a) <= self._shared

    def selected(self, chosen: Sequence[Any], choose: Choose) -> list[Any]:
        """The joined results `chosen`, those that were padded within their sizes."""
        counts = {key: choose(*sizes) for key, sizes in self._sizes.items()}
        places = {key: self._places(count, key[2]) for key, count in counts.items()}
        found = list(chosen)
        for number, cut in self._cut.items():
            for d, key in cut:
                found[number] = self._call(
                    aten.index.Tensor, found[number], [*[None] * d, places[key]]
                )
        return found

    def _key(self, ways: Sequence[fx.Node], d: int, most: int) -> _Key:
        """The key of the sizes of dimension `d`, which become further results of the branches."""
        then, otherwise = (str(x.meta["val"].shape[d]) for x in ways)
        key = (then, otherwise, most)
        if key not in self._sizes:
            sizes: list[fx.Node] = []
            for x, end in zip(ways, self._ends, strict=True):
                with self._graph.inserting_before(end):
                    given = ([], self._size(x, d))
                    node = self._graph.call_function(aten.full.default, given, {"dtype": torch.int64, "device": x.meta["val"].device})  # fmt: skip
                node.meta = dict(end.meta) | {"val": self._new(x, (), torch.int64)}
                sizes.append(node)
            self._sizes[key] = (sizes[0], sizes[1])
        return key

    def _padded(self, k: int, x: fx.Node, shape: dict[int, int]) -> fx.Node:
        value, end = x.meta["val"], self._ends[k]
        amounts = list[Any]()
        with self._graph.inserting_before(end):
            for d in reversed(range(value.ndim)):
                amounts += [0, self._room(x, d, shape[d]) if d in shape else 0]
            made = self._graph.call_function(aten.constant_pad_nd.default, (x, amounts))
        sizes = [shape.get(d, n) for d, n in enumerate(value.shape)]
        made.meta = dict(end.meta) | {"val": self._new(x, sizes, value.dtype)}
        return made

    def _room(self, x: fx.Node, d: int, most: int) -> Any:
        """How many elements are missing to `most`."""
        n, size = x.meta["val"].shape[d], self._size(x, d)
        if isinstance(size, int):
            return most - size
        made = self._graph.call_function(operator.sub, (most, size))
        made.meta = {"val": most - n}
        return made

    def _size(self, x: fx.Node, d: int) -> Any:
        n = x.meta["val"].shape[d]
        if isinstance(n, int):
            return n
        made = self._graph.call_function(aten.sym_size.int, (x, d))
        made.meta = {"val": n}
        return made

    def _places(self, count: fx.Node, most: int) -> fx.Node:
        """int64 [size]: 0, 1, ..."""
        numbers = self._call(aten.arange.default, most, like=count)
        mask = self._call(aten.lt.Tensor, numbers, count)
        return self._call(aten.squeeze.dim, self._call(aten.nonzero.default, mask), 1)

    def _call(self, op: Any, *args: Any, like: fx.Node | None = None) -> fx.Node:
        """A node at the end of the graph, with the value that PyTorch gives it."""
        given = map_arg(args, lambda n: n.meta["val"])
        first = like or next(x for x in args if isinstance(x, fx.Node))
        options = {"dtype": torch.int64, "device": first.meta["val"].device} if like else {}
        mode: Any = detect_fake_mode([first.meta["val"]])
        made = self._graph.call_function(op, args, options)
        with mode:
            made.meta = dict(self._ends[1].meta) | {"val": op(*given, **options)}
        return made

    def _new(self, x: fx.Node, shape: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
        value = x.meta["val"]
        mode: Any = detect_fake_mode([value])
        with mode:
            return torch.empty(tuple(shape), dtype=dtype, device=value.device)


def _is_tensor(x: Any) -> bool:
    return isinstance(x, fx.Node) and isinstance(x.meta.get("val"), torch.Tensor)


def _bounds(x: fx.Node) -> list[float]:
    """The largest size of each dimension, infinite where nothing bounds it."""
    todo, before = [x], set[fx.Node]()
    while todo:
        node = todo.pop()
        if node not in before:
            before.add(node)
            todo += node.all_input_nodes
    found = dict[str, float]()
    for node in sorted(before):
        op = str(node.target).rpartition(".")[0]
        if op in SELECTING:
            _admit(node, op, found)
    return [_most(n, found) for n in x.meta["val"].shape]


def _admit(node: fx.Node, op: str, found: dict[str, float]) -> None:
    """Adds the bound of the size that the operator's mask decides."""
    given: list[torch.Tensor] = [n.meta["val"] for n in node.all_input_nodes]
    bounds = [[_most(n, found) for n in x.shape] for x in given]
    masks = [x.dtype in (torch.bool, torch.uint8) for x in given]
    most = math.prod(selected_from(op, list(zip(bounds, masks, strict=True))))
    for n in node.meta["val"].shape:
        if isinstance(n, torch.SymInt) and n.node.expr.is_Symbol:
            found.setdefault(str(n.node.expr), most)


def _most(n: Any, found: dict[str, float]) -> float:
    """The bound of a size, given those of some symbols."""
    if isinstance(n, int):
        return n
    known: dict[Any, Any] = n.node.shape_env.var_to_range
    ranges = dict[Any, ValueRanges[Any]]()
    for s in n.node.expr.free_symbols:
        stated = float(known[s].upper) if s in known else math.inf
        ranges[s] = ValueRanges(0, int(min(stated, found.get(str(s), math.inf), _UNBOUNDED)))
    upper = float(bound_sympy(n.node.expr, ranges).upper)
    return upper if upper < _UNBOUNDED else math.inf


_UNBOUNDED = 1 << 40  # the bound that PyTorch gives a size of which it knows none is larger
