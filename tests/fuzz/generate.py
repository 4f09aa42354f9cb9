"""Random networks: a graph for every seed."""

from collections.abc import Callable
from random import Random

from tests.fuzz import indexing, networks, pointwise, products, reductions, views
from tests.fuzz.builder import Builder, Operators
from tests.fuzz.control import control
from tests.fuzz.graph import Graph
from tests.fuzz.runs import Rejected

FAMILIES = (
    (32, pointwise.OPERATORS), (16, reductions.OPERATORS), (24, views.OPERATORS), (12, indexing.OPERATORS),
    (22, products.OPERATORS),
)  # fmt: skip


def _scaled() -> Operators:
    """One table: a family's weight spread over its operators."""
    out: list[tuple[int, Callable[[Builder], None]]] = []
    for weight, family in FAMILIES:
        total = sum(w for w, _ in family)
        out += [(max(1, round(1000 * weight * w / total)), f) for w, f in family]
    return tuple(out)


OPERATORS = _scaled()
STRUCTURES = (
    (5, networks.layers), (3, networks.recurrence), (5, networks.branches), (2, networks.tied), (2, control),
)  # fmt: skip


def _arguments(b: Builder) -> None:
    for _ in range(b.r.randint(1, 3)):
        b.pool.append(b.floats(b.new_shape(), parameter=False))
    if b.chance(0.35):
        b.pool.append(
            b.integers(-5, 6, b.new_shape(b.r.choice((0, 1, 2))), b.r.choice(("i64", "i32", "i8")))
        )
    if b.chance(0.2):
        b.pool.append(b.mask(b.new_shape(b.r.choice((1, 2)))))


def _structure(b: Builder) -> None:
    (made,) = b.r.choices([f for _, f in STRUCTURES], weights=[w for w, _ in STRUCTURES])
    try:
        made(b, OPERATORS)
    except Rejected:
        b.iteration = 0


def generate(seed: int) -> Graph:
    """A network of 3 to 25 operators, more where a block is repeated. Equal seeds give equal networks."""
    b = Builder(Random(seed))
    _arguments(b)
    wanted = b.r.randint(3, 25)
    structured = b.chance(0.55)
    at = b.r.randint(0, wanted) if structured else -1
    for k in range(wanted):
        if k == at:
            _structure(b)
        if len(b.lines) >= (60 if structured else wanted):
            break
        networks.step(b, OPERATORS)
    if not b.lines:
        return generate(seed + 10**9)
    return b.graph()
