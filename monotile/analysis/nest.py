"""Perfect nests of two loops whose iterations depend only on their neighbours.

Iteration (a, b) of such a nest reads values of (a, b - 1), which the inner loop carries, and of (a - 1, b),
which the outer loop carries as stacks of the inner: dependence distances (0, 1) and (1, 0). Layers of a
recurrent network over its steps, and steps over layers, are such nests (FractalTensor, SOSP'24).
"""

from dataclasses import dataclass

from monotile.ir.expr import Axis, Expr, Load, Tensor, cast, loads, substitute
from monotile.ir.program import Compute, Loop


@dataclass(frozen=True, slots=True)
class Rows:
    """Element k along the first dimension of `tensor`."""

    tensor: Tensor

    def at(self, k: Expr, index: tuple[Expr, ...]) -> Expr:
        return Load(self.tensor, (k, *index))


@dataclass(frozen=True, slots=True)
class Whole:
    """`tensor`, the same for every k; or, if it is made inside the outer loop, `made` at axis = k."""

    tensor: Tensor
    made: Compute | None
    axis: Axis

    def at(self, k: Expr, index: tuple[Expr, ...]) -> Expr:
        if self.made is None:
            return Load(self.tensor, index)
        names: dict[str, Expr] = {self.axis.name: k}
        names |= {a.name: i for a, i in zip(self.made.axes, index, strict=True)}
        return cast(substitute(self.made.body, names), self.tensor.dtype)


Start = Rows | Whole  # the value read in the first iteration


@dataclass(frozen=True, slots=True)
class Edge:
    """Through `param` the body reads the tensor `value` of the previous iteration, or `start` in the first."""

    param: Tensor
    value: Tensor
    start: Start


@dataclass(frozen=True, slots=True)
class Nest:
    """inner_edges: distance (0, 1); the param is read at any index. outer_edges: distance (1, 0); the param is
    read at index (inner axis, any), and `start` is Rows. body: of the inner loop."""

    outer: Loop
    inner: Loop
    body: tuple[Compute, ...]
    inner_edges: tuple[Edge, ...]
    outer_edges: tuple[Edge, ...]


def nest(outer: Loop) -> Nest | None:
    """`outer` as such a nest; None if it is not proven to be one."""
    *before, inner = outer.body
    if not isinstance(inner, Loop) or outer.ends_early or inner.ends_early:
        return None
    made: dict[str, Compute] = {}
    params = {c.param.name for c in outer.carried}
    for s in before:
        if not isinstance(s, Compute) or s.combiner is not None:
            return None
        if any(x.tensor.name in params or x.tensor.name in made for x in loads(s.body)):
            return None
        made[s.out.name] = s
    body = tuple(s for s in inner.body if isinstance(s, Compute))
    if len(body) != len(inner.body):
        return None
    defined = {s.out.name for s in body}
    stacks = {k.out.name: k.value for k in inner.stacked}

    inner_edges: list[Edge] = []
    for c in inner.carried:
        if c.result.name not in defined or c.init.name in params:
            return None
        start = Whole(c.init, made.get(c.init.name), outer.axis)
        inner_edges.append(Edge(c.param, c.result, start))
    outer_edges: list[Edge] = []
    for c in outer.carried:
        value = stacks.get(c.result.name)
        if value is None or value.name not in defined:
            return None
        outer_edges.append(Edge(c.param, value, Rows(c.init)))

    finals = {c.out.name for c in inner.carried}
    if not all(k.value.name in finals or k.value.name in stacks for k in outer.stacked):
        return None
    if not all(k.value.name in defined for k in inner.stacked):
        return None
    if not all(_reads_neighbours(s, params, inner.axis, made) for s in body):
        return None
    return Nest(outer, inner, body, tuple(inner_edges), tuple(outer_edges))


def _reads_neighbours(s: Compute, params: set[str], inner: Axis, made: dict[str, Compute]) -> bool:
    """Whether `s` reads the outer loop's carried values only at the inner axis and has no gathers."""
    for x in loads(s.body):
        if x.tensor.name in made or any(loads(i) for i in x.index):
            return False
        if x.tensor.name in params and x.index[0] != inner:
            return False
    return True
