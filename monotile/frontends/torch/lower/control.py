"""Control flow: `torch.cond` becomes a Branch; `while_loop`, `scan` and `map` become Loops."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from monotile.frontends.builder import Builder, Unsupported, load
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Tensor, const, idx
from monotile.ir.program import Branch, BranchOut, Carry, Loop, Stack, Statement, defined

# (subgraph, its arguments, the body's builder) -> the leaves of its results
Lower = Callable[[fx.GraphModule, Sequence[Any], Builder], list[Any]]
Lowering = Callable[..., tuple[Tensor, ...]]

UNBOUNDED = 2**31 - 1  # bound for a loop that only its predicate ends


def _tensors(values: Sequence[Any], what: str) -> list[Tensor]:
    for v in values:
        if not isinstance(v, Tensor):
            raise Unsupported(f"{what} that is not a tensor")
    return list(values)


def _own(body: Builder, results: Sequence[Any]) -> list[Tensor]:
    """The results of a body, copied so that each is a different tensor that the body defines."""
    known = {t for s in body.statements for t in defined(s)}
    own: list[Tensor] = []
    for t in _tensors(results, "a result of a subgraph"):
        if t not in known or t in own:
            t = body.emit(t.shape, t.dtype, lambda *i, t=t: load(t, i), part="copy")
        own.append(t)
    return own


def _body(
    b: Builder, lower: Lower, graph: fx.GraphModule, args: Sequence[Any]
) -> tuple[tuple[Statement, ...], list[Tensor]]:
    inner = b.nested()
    results = lower(graph, args, inner)
    inner.begin(b.node, b.origin, b.results)
    own = _own(inner, results)
    return tuple(inner.statements), own


def cond(
    b: Builder,
    lower: Lower,
    predicate: Any,
    then: fx.GraphModule,
    otherwise: fx.GraphModule,
    operands: Sequence[Any],
) -> tuple[Tensor, ...]:
    if not isinstance(predicate, Tensor):
        return tuple(lower(then if predicate else otherwise, operands, b))
    if predicate.shape:
        one = predicate
        predicate = b.emit((), DType.BOOL, lambda: load(one, [idx(0)] * len(one.shape)), part="if")
    taken, left = _body(b, lower, then, operands), _body(b, lower, otherwise, operands)
    outs = tuple(
        BranchOut(t, o, b.tensor(shape, dtype, str(k)))
        for k, (t, o, (shape, dtype)) in enumerate(zip(taken[1], left[1], b.results, strict=True))
    )
    b.append(Branch(predicate, taken[0], left[0], outs, b.origin))
    return tuple(o.out for o in outs)


def while_loop(
    b: Builder,
    lower: Lower,
    condition: fx.GraphModule,
    body: fx.GraphModule,
    carried: Sequence[Any],
    closed: Sequence[Any] = (),
) -> tuple[Tensor, ...]:
    """The condition is a carried value as well: evaluated once before the loop, then at the end of each iteration."""
    init = _tensors(carried, "a carried value")
    ahead = b.nested()
    (go,) = _own(ahead, lower(condition, [*init, *closed], ahead))
    b.statements.extend(ahead.statements)

    axis = Axis(b.names.unique(f"{b.node}_step"), UNBOUNDED)
    inner = b.nested(axis)
    params = [b.tensor(t.shape, t.dtype, "carry") for t in init]
    results = lower(body, [*params, *closed], inner)
    inner.begin(b.node, b.origin, b.results)
    new = _own(inner, results)
    again = _own(inner, lower(condition, [*new, *closed], inner))
    inner.begin(b.node, b.origin, b.results)
    if again[0] in new:
        again = [inner.emit((), DType.BOOL, lambda: load(again[0], ()), part="go")]

    carries = [
        Carry(i, p, r, b.tensor(i.shape, i.dtype, str(k)))
        for k, (i, p, r) in enumerate(zip(init, params, new, strict=True))
    ]
    param, out = (b.tensor((), DType.BOOL, part) for part in ("going", "gone"))
    carries.append(Carry(go, param, again[0], out))
    b.append(
        Loop(axis, tuple(carries), (), tuple(inner.statements), predicate=again[0], origin=b.origin)
    )
    return tuple(c.out for c in carries[:-1])


def scan(
    b: Builder,
    lower: Lower,
    step: fx.GraphModule,
    init: Sequence[Any],
    over: Sequence[Any],
    closed: Sequence[Any] = (),
) -> tuple[Tensor, ...]:
    """step(carry, slice of `over`) -> new carry and one slice of each stacked result."""
    initial, sequences = _tensors(init, "a carried value"), _tensors(over, "a scanned value")
    if sequences[0].shape[0] == 0:  # as of what is left of a loop for a size of 1
        empty = b.results[len(initial) :]
        nothing = (b.emit(*t, lambda *_, t=t: const(0, t.dtype), part="none") for t in empty)
        return (*initial, *nothing)
    axis = Axis(b.names.unique(f"{b.node}_step"), sequences[0].shape[0])
    inner = b.nested(axis)
    params = [b.tensor(t.shape, t.dtype, "carry") for t in initial]
    slices = [
        inner.emit(t.shape[1:], t.dtype, lambda *i, t=t: load(t, [axis, *i]), part="slice")
        for t in sequences
    ]
    results = lower(step, [*params, *slices, *closed], inner)
    inner.begin(b.node, b.origin, b.results)
    own = _own(inner, results)
    new, values = own[: len(initial)], own[len(initial) :]
    carries = tuple(
        Carry(i, p, r, b.tensor(i.shape, i.dtype, str(k)))
        for k, (i, p, r) in enumerate(zip(initial, params, new, strict=True))
    )
    stacks = tuple(
        Stack(v, b.tensor((axis.extent, *v.shape), v.dtype, str(len(initial) + k)))
        for k, v in enumerate(values)
    )
    b.append(Loop(axis, carries, stacks, tuple(inner.statements), origin=b.origin))
    return (*(c.out for c in carries), *(s.out for s in stacks))


def map_(
    b: Builder,
    lower: Lower,
    f: fx.GraphModule,
    over: Sequence[Any],
    closed: Sequence[Any] = (),
) -> tuple[Tensor, ...]:
    return scan(b, lower, f, (), over, closed)


def call(b: Builder, lower: Lower, *args: Any) -> tuple[Any, ...]:
    """A subgraph under another gradient mode, which the types of its operands already reflect."""
    position = next(k for k, a in enumerate(args) if isinstance(a, fx.GraphModule))
    return tuple(lower(args[position], args[position + 1 :], b))


CONTROL: Mapping[str, Callable[..., tuple[Any, ...]]] = {
    "cond": cond,
    "while_loop": while_loop,
    "scan": scan,
    "map_impl": map_,
    "wrap_with_set_grad_enabled": call,
}
