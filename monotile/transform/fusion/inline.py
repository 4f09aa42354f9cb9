"""Vertical fusion by inlining: a Compute that need not be stored becomes part of the expressions that read it.

The consumer evaluates the producer's body, cast to the producer's type, at the index that it reads. A later `eliminate_dead_code` drops
producers that are no longer read. A Program has no side effects, so every inlining is correct, except that of a snapshot of a tensor
that the host changes. This pass decides which ones pay.
"""

from collections.abc import Callable, Mapping

from monotile.analysis.affine import affine
from monotile.analysis.contraction import contraction
from monotile.analysis.cost import cost, dearest, guarded_load, index_only, size
from monotile.analysis.uses import Uses
from monotile.ir.expr import Cast, Const, Expr, Load, cast, loads, map_loads, substitute
from monotile.ir.program import (
    Branch,
    Compute,
    Loop,
    Program,
    Scatter,
    Statement,
    is_snapshot,
    statements,
)
from monotile.transform.fusion.lookups import store_lookups
from monotile.transform.rewrite import Body, map_bodies, map_exprs, with_body
from monotile.transform.simplify.dce import eliminate_dead_code
from monotile.transform.simplify.simplify import lossless, simplify_expr

VIEW_NODES = 200  # a view whose index would grow larger than this is stored
BODY_NODES = 4000  # size limit of a body after inlining, in tree nodes
SMALL_NODES = 24  # an expression of axes alone up to this size is never stored
ROUNDS = 4
FAR = 4  # data-dependent reads per element up to which a gather is recomputed instead of stored
CHEAP = 6.0  # cost (`analysis.cost`) up to which a Compute is recomputed instead of stored
OFTEN = 5  # evaluations of an element, from which on no operation may cost as much as
DEAR = 4.0  # this: a division is stored

Producers = Mapping[str, Compute]
Decide = Callable[[Compute, Statement], bool]


def inline_views(program: Program) -> Program:
    """`program` with views and short expressions of axes alone inlined.

    Arrays filled with a literal stay: the initial value of a recurrence should look like its state.
    """

    def decide(p: Compute, _: Statement) -> bool:
        return is_view(p) and (p.out.size == 1 or not isinstance(p.body, Const))

    return inline_chosen(program, decide)


def inline_where(program: Program, chosen: Callable[[Compute], bool]) -> Program:
    """`program` with the `chosen` pointwise producers inlined into their readers, except into products."""

    def decide(p: Compute, consumer: Statement) -> bool:
        return chosen(p) and not (isinstance(consumer, Compute) and _repeats_operands(consumer))

    return inline_chosen(program, decide)


def is_view(s: Compute) -> bool:
    """Whether `s` only renames elements of another tensor, or is computed from its axes alone.

    With a rounding cast it is not a view: the stored tensor is the smaller one.
    """
    if s.combiner is not None or not lossless(s.body.dtype, s.out.dtype):
        return False
    if index_only(s.body):
        return size(s.body, SMALL_NODES) <= SMALL_NODES
    inner = s.body.x if isinstance(s.body, Cast) else s.body
    if not isinstance(inner, Load) or any(loads(i) for i in inner.index):
        return False
    return lossless(inner.dtype, s.body.dtype) and size(s.body, VIEW_NODES) <= VIEW_NODES


def inline_pointwise(program: Program) -> Program:
    """`program` with pointwise producers inlined into their readers where that repeats no expensive work.

    A producer is inlined if its readers together evaluate it at most once per element, or if it is cheap and the readers gain by it.
    Tensors used as a whole (outputs, carried values, ...) stay stored, and their readers read them. Only views, paddings, expressions of
    axes and, within the same loop, rows selected by scalars are inlined into a contraction, which reads each operand many times. A
    reduction is never inlined into its consumer: that is the scheduler's epilogue. Dead statements are removed. Look-ups that would end
    up in products are stored after all (`lookups.py`).
    """
    for _ in range(ROUNDS):  # readers that were inlined into each other may now be one
        new = eliminate_dead_code(_merge_pointwise(program))
        if new is program:
            break
        program = new
    return store_lookups(program)


def _merge_pointwise(program: Program) -> Program:
    uses = Uses(program)
    behind = _Behind(program, uses)

    def decide(producer: Compute, consumer: Statement) -> bool:
        if is_view(producer):
            return True
        if producer.combiner is not None:
            return False
        if isinstance(consumer, Compute) and _repeats_operands(consumer):
            deeper = uses.depth[consumer.out.name] > uses.depth[producer.out.name]
            return guarded_load(producer.body) is not None or (not deeper and _looks_up(producer))
        name = producer.out.name
        if name in uses.whole:
            return False
        if isinstance(consumer, Compute) and behind.stored_wider(producer, consumer):
            return False
        once = uses.evaluations[name] <= producer.out.size or _is_put_back(producer, consumer, uses)
        return once or _worth_repeating(producer, uses)

    return inline_chosen(program, decide)


class _Behind:
    """The reductions that Computes read element by element, directly or through others that have no other readers."""

    def __init__(self, program: Program, uses: Uses) -> None:
        self.uses = uses
        every = [s for s in statements(program.body) if isinstance(s, Compute)]
        self.made = {s.out.name: s for s in every}
        self.order = {s.out.name: k for k, s in enumerate(every)}
        self._known: dict[str, frozenset[str]] = {}

    def stored_wider(self, p: Compute, consumer: Compute) -> bool:
        """Whether the producer of `p` would be stored in place of `p`, in a wider type: where `consumer` is a reduction itself, or would
        become an epilogue of a later one than `p` is."""
        own = self._of(p)
        beside = self._reached(consumer, p.out.name)
        if not own or (consumer.combiner is None and not beside):
            return False
        if consumer.combiner is None and max(map(self.order.__getitem__, own)) > max(map(self.order.__getitem__, beside)):  # fmt: skip
            return False
        return all(self.made[n].out.dtype.itemsize > p.out.dtype.itemsize for n in own)

    def _of(self, s: Compute) -> frozenset[str]:
        if s.out.name not in self._known:
            self._known[s.out.name] = self._reached(s, "")
        return self._known[s.out.name]

    def _reached(self, s: Compute, without: str) -> frozenset[str]:
        out = frozenset[str]()
        for x in loads(s.body):
            made = self.made.get(x.tensor.name)
            if made is None or x.tensor.name == without or x.index != s.axes:
                continue
            if self.uses.readers[x.tensor.name] != 1 or x.tensor.name in self.uses.whole:
                continue
            out |= self._of(made) if made.combiner is None else {x.tensor.name}
        return out


def _is_put_back(p: Compute, consumer: Statement, uses: Uses) -> bool:
    """Whether `consumer` alone reads `p`, a changed part of a tensor, and the rest of that tensor, each element at its own place: it evaluates
    neither where it has the other. Not so for the epilogue of a reduction."""
    if not isinstance(consumer, Compute) or consumer.combiner is not None:
        return False
    read, rest = ([x for x in loads(s.body) if x.tensor.size >= p.out.size] for s in (p, consumer))
    names = {x.tensor.name for x in rest}
    shared = [x for x in read if x.tensor.name in names]
    alone = any(uses.readers[x.tensor.name] == 1 for x in read if x.tensor.name in uses.reductions)
    if not shared or alone or uses.readers[p.out.name] != 1:
        return False
    at = [y.index for y in loads(consumer.body) if y.tensor == p.out]
    return all(_stays(x, p, index, consumer) for x in shared for index in at)


def _stays(x: Load, p: Compute, at: tuple[Expr, ...], consumer: Compute) -> bool:
    """Whether an element of `p` at `at` reads `x` at the place of the result of `consumer`, or at one that is the same along some axes."""
    here = {a.name: i for a, i in zip(p.axes, at, strict=True)}
    if len(x.index) != len(consumer.axes):
        return False
    places = (affine(substitute(i, here)) for i in x.index)
    return all(w == affine(a) or not w.terms for w, a in zip(places, consumer.axes, strict=True))


def _looks_up(p: Compute) -> bool:
    """Whether `p` is a slice of another tensor at indices given by scalars: as cheap for its readers as a view."""
    if p.combiner is not None or not isinstance(p.body, Load) or not p.axes or not p.body.index:
        return False
    *before, last = p.body.index
    far = [x for i in before for x in loads(i)]
    alone = bool(far) and all(x.tensor.size == 1 for x in far)
    return alone and last == p.axes[-1] and size(p.body, VIEW_NODES) <= VIEW_NODES


def _repeats_operands(s: Compute) -> bool:
    """Whether `s` is a contraction that reads elements of an operand more than once."""
    found = contraction(s)
    return found is not None and bool(found.m or found.n)


def _worth_repeating(p: Compute, uses: Uses) -> bool:
    """Whether recomputing `p` several times costs less than storing it once.

    It may read at most one tensor of about its own size, which the readers then read instead. If `p` is the only reader of a
    reduction, it is its epilogue and stored in its place for free. A gather has twice the latency, so storing it pays if it
    is evaluated often, as in every layer.
    """
    far = any(loads(i) for x in loads(p.body) for i in x.index)
    if far and uses.evaluations[p.out.name] > FAR * p.out.size:
        return False
    large = {x.tensor.name for x in loads(p.body) if 2 * x.tensor.size > p.out.size}
    epilogue = any(name in uses.reductions and uses.readers[name] == 1 for name in large)
    often = uses.evaluations[p.out.name] > OFTEN * p.out.size
    if often and dearest(p.body) >= DEAR:
        return False
    return len(large) <= 1 and not epilogue and cost(p.body) <= CHEAP


def inline_chosen(program: Program, decide: Decide) -> Program:
    """`program` with each producer inlined into the readers for which `decide` says so; unread producers stay."""
    changing = program.changing

    def allowed(p: Compute, consumer: Statement) -> bool:
        return not is_snapshot(p, changing) and decide(p, consumer)

    return with_body(program, _inline(program.body, {}, allowed))


def _inline(body: Body, around: Producers, decide: Decide) -> Body:
    """`body` with Loads of producers replaced; `around` are producers outside of it."""
    producers = dict(around)
    out: list[Statement] = []
    for s in body:
        match s:
            case Compute():
                new = _into(s, producers, decide)
                if isinstance(new, Compute) and new.combiner is None:
                    producers[new.out.name] = new
            case Scatter():
                new = _into(s, producers, decide)
            case Loop() | Branch():
                new = map_bodies(s, lambda inner: _inline(inner, producers, decide))
        out.append(new)
    return tuple(out)


def _into(s: Compute | Scatter, producers: Producers, decide: Decide) -> Statement:
    """`s` with the producers that `decide` allows inlined, or fewer of them if it would grow too large."""

    def views_alone(p: Compute, c: Statement) -> bool:
        return is_view(p) and decide(p, c)

    for allowed in (decide, views_alone):
        new = _replaced(s, producers, allowed)
        if new is s or _fits(new):
            return new
    return s


def _replaced(s: Compute | Scatter, producers: Producers, decide: Decide) -> Statement:
    allowed: dict[str, bool] = {}
    made: dict[Load, Expr] = {}  # one object per element, to preserve sharing

    def replace(load: Load) -> Expr:
        name = load.tensor.name
        if name not in producers:
            return load
        if name not in allowed:
            allowed[name] = decide(producers[name], s)
        if not allowed[name]:
            return load
        if load not in made:
            made[load] = _settled(element_of(producers[name], load.index))
        return made[load]

    return map_exprs(s, lambda e: map_loads(e, replace))


def element_of(p: Compute, index: tuple[Expr, ...]) -> Expr:
    """The element of `p.out` at `index`, as the expression that computes it."""
    axes: dict[str, Expr] = {a.name: i for a, i in zip(p.axes, index, strict=True)}
    return cast(substitute(p.body, axes), p.out.dtype)


def _settled(e: Expr) -> Expr:
    """`e` with simplified indices, so that views of views stay small."""

    def load(x: Load) -> Expr:
        index = tuple(simplify_expr(i) for i in x.index)
        return x if index == x.index else Load(x.tensor, index)

    return map_loads(e, load)


def _fits(s: Statement) -> bool:
    match s:
        case Compute():
            return size(s.body, BODY_NODES) <= BODY_NODES
        case Scatter():
            return all(size(e, BODY_NODES) <= BODY_NODES for e in (*s.index, s.value))
        case Loop() | Branch():
            return True
