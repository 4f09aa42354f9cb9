"""The end of a row that is not a whole vector: where positions may be computed twice, the last vector begins earlier and overlaps the one
before.

A C compiler computes the remainder after whole vectors in narrower ones and then one by one: seven exponentials alone are as slow as six
vectors of them.
"""

from collections.abc import Collection, Iterable

from monotile.codegen.address import stored
from monotile.codegen.site import Site
from monotile.codegen.view import View
from monotile.ir.dtype import DType
from monotile.ir.expr import OF_BITS, Binary, Expr, Load, Tensor, Unary, loads, walk
from monotile.ir.program import Compute
from monotile.plan.places import Place, Pointer, Shared, Value, Workspace

KNOWN = (Pointer, Value, Shared, Workspace)  # where the bytes of a tensor are known
# Functions of float32 that `targets/cpu/device/math.h` has without branches and that take more than a few cycles. Other expensive ones are
# the C library's.
COSTLY = frozenset(
    "exp exp2 expm1 log log1p acos sqrt rsqrt tanh erf logistic one_plus_erf cospi div".split()
)
PLAIN = (
    frozenset("neg abs not isnan isinf floor ceil trunc round tf32 to_tf32 is_tf32 bits".split())
    | OF_BITS.keys()
)
PLAIN_BINARY = frozenset("pow atan2 hypot nextafter fmod philox ipow floordiv mod truncdiv rem".split())  # fmt: skip
FEWEST = 2  # expensive elements in a remainder that justify one more vector


def parts(low: str, high: str, lanes: int) -> list[tuple[str, str]]:
    """The ranges from `low` to `high` - 1 (texts): whole vectors of up to `lanes`, then the last one, which begins earlier. One range
    where the length is unknown, or is whole vectors."""
    count = int(high) - int(low) if low.isdigit() and high.isdigit() else 0
    while lanes > count:
        lanes //= 2
    if lanes < 4 or count % lanes == 0:
        return [(low, high)]
    return [(low, str(int(high) - count % lanes)), (str(int(high) - lanes), high)]


def left(count: int, lanes: int) -> int:
    """How many of so many positions a compiler computes one by one, after vectors and half of one."""
    while lanes > count:
        lanes //= 2
    return count % max(1, lanes // 2)


def costly(bodies: Iterable[Expr]) -> bool:
    """Whether an operation in `bodies` is worth whole vectors, and none prevents vectorisation."""
    found = False
    for node in (n for e in bodies for n in walk(e)):
        match node:
            case Load(_, index) if any(loads(i) for i in index):
                return False
            case Unary(op) if op not in PLAIN:
                if op not in COSTLY or node.dtype is DType.F64:
                    return False
                found = True
            case Binary("div"):
                found = True
            case Binary(op) if op in PLAIN_BINARY and node.dtype.is_float:
                return False
            case _:
                pass
    return found


def may_repeat(site: Site, view: View, in_place: Collection[str]) -> bool:
    """Whether elements of a map are the same if they are computed again: it does not read where it stores. in_place: tensors that
    replace others in memory."""
    made = [s for s in (*site.before, site.anchor, *site.followers) if isinstance(s, Compute)]
    if len(made) != 1 + len(site.before) + len(site.followers):
        return False
    names = {s.out.name for s in made}
    if names & {*in_place, *view.tables, *view.sent}:
        return False
    written = [(s.out, p) for s in made for p in stored(view.places[s.out.name])]
    read = {x.tensor for s in made for x in loads(s.body) if x.tensor.name not in names}
    # A tensor without a place is a value of the call, or was computed before the loop.
    taken = [(t, view.place(t)) for t in read if t.name in view.places]
    if not all(type(p) in KNOWN for _, p in (*written, *taken)):
        return False
    return not any(_meet(a, b, view.tables) for a in written for b in taken)


def _meet(a: tuple[Tensor, Place], b: tuple[Tensor, Place], tables: Collection[str]) -> bool:
    """Whether a store to `a` may alias a load from `b`."""
    match a[1], b[1]:
        case Pointer(slot), Pointer(other):
            return slot == other or b[0].name in tables
        case Workspace(first), Workspace(second):
            return first < second + b[0].nbytes and second < first + a[0].nbytes
        case Shared() as p, Shared() as q:
            sizes = p.elements * a[0].dtype.itemsize, q.elements * b[0].dtype.itemsize
            return p.offset < q.offset + sizes[1] and q.offset < p.offset + sizes[0]
        case _:
            return False
