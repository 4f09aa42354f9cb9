"""Small Programs for the scheduler's tests, in the form that the pipeline hands it."""

from monotile.config import Options
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Expr, Load, Tensor, Unary, cast, const, idx
from monotile.ir.program import (
    Carry,
    Compute,
    Loop,
    Program,
    Scatter,
    Stack,
    Statement,
    Weight,
    compute,
)
from monotile.pipeline import schedule
from monotile.plan.nodes import Plan, Stage
from monotile.plan.walk import stages_in
from monotile.targets.cpu.target import cpu_target
from monotile.targets.cuda.target import cuda_target
from monotile.targets.target import Target
from monotile.transform.legalise.base_copies import insert_base_copies
from monotile.transform.legalise.copy_insertion import insert_copies
from monotile.transform.legalise.mask_stacks import mask_stacks
from monotile.transform.legalise.state_copies import insert_state_copies

F16, F32, I64 = DType.F16, DType.F32, DType.I64
CPU = cpu_target(workers=2)
H100 = cuda_target("sm_90a")
TARGETS = (CPU, H100)


def ready(program: Program) -> Program:
    """`program` as the transforms leave it."""
    return insert_base_copies(insert_state_copies(insert_copies(mask_stacks(program))))


def plan_of(program: Program, target: Target) -> Plan:
    return schedule(program, target, Options())


def stages(plan: Plan) -> list[Stage]:
    return list(stages_in(plan.body))


def tensor(name: str, *shape: int, dtype: DType = F32) -> Tensor:
    return Tensor(name, shape, dtype)


def program(inputs: list[Tensor], body: list[Statement], *outputs: Tensor) -> Program:
    return ready(Program(tuple(inputs), (), tuple(body), outputs))


def pointwise(name: str, x: Tensor, op: str = "exp") -> Compute:
    """op(x), element by element."""
    out = Tensor(name, x.shape, x.dtype)
    return compute(out, lambda *i: cast(Unary(op, cast(Load(x, i), x.dtype.compute)), x.dtype))


def plus(name: str, a: Tensor, b: Tensor) -> Compute:
    return compute(Tensor(name, a.shape, a.dtype), lambda *i: Binary("add", Load(a, i), Load(b, i)))


def total(name: str, x: Tensor, combiner: str = "sum") -> Compute:
    """The last axis combined."""
    out = Tensor(name, x.shape[:-1], x.dtype)
    return compute(out, lambda *i: Load(x, i), reduce=x.shape[-1:], combiner=combiner)


def over_rows(name: str, x: Tensor, by: Tensor, op: str = "div") -> Compute:
    """x[..., i] op by[...]."""
    return compute(
        Tensor(name, x.shape, x.dtype), lambda *i: Binary(op, Load(x, i), Load(by, i[:-1]))
    )


def softmax(x: Tensor) -> list[Statement]:
    """Along the last axis; the last statement's result is "y"."""
    most = total("most", x, "max")
    shifted = over_rows("shifted", x, most.out, "sub")
    powers = pointwise("powers", shifted.out)
    denominator = total("denominator", powers.out)
    return [most, shifted, powers, denominator, over_rows("y", powers.out, denominator.out)]


def matmul(name: str, a: Tensor, b: Tensor, *, turned: bool = False) -> Compute:
    """a @ b, or a @ b.T; summed in float32."""
    n = b.shape[0] if turned else b.shape[1]

    def body(i: Expr, j: Expr, k: Expr) -> Expr:
        right = Load(b, (j, k) if turned else (k, j))
        return Binary("mul", cast(Load(a, (i, k)), F32), cast(right, F32))

    out = Tensor(name, (a.shape[0], n), a.dtype)
    return compute(out, body, reduce=a.shape[1:], combiner="sum")


def mlp(rows: int = 16, width: int = 32, dtype: DType = F32) -> Program:
    """relu(x w1) w2, normalised by softmax over the last axis."""
    x = Tensor("x", (rows, width), dtype)
    w1, w2 = (Tensor(f"w{k}", (width, width), dtype) for k in (1, 2))
    hidden = matmul("hidden", x, w1)
    active = compute(
        Tensor("active", hidden.out.shape, dtype),
        lambda *i: Binary("max", Load(hidden.out, i), const(0.0, dtype)),
    )
    scores = matmul("scores", active.out, w2)
    body = [hidden, active, scores, *softmax(scores.out)]
    weights = (Weight(w1, ("a",)), Weight(w2, ("b",)))
    (last,) = (s.out for s in body[-1:] if isinstance(s, Compute))
    return ready(Program((x,), weights, tuple(body), (last,)))


def recurrence(steps: int = 5, width: int = 8) -> Program:
    """h = tanh(w_l h + x), every h kept; the weight's part of each step through a table."""
    x, start = tensor("x", width), tensor("start", width)
    w = Tensor("w", (steps, width, width), F32)
    axis = Axis("l", steps)
    param, y = tensor("h", width), tensor("y", width)
    product = compute(
        tensor("product", width),
        lambda i, k: Binary("mul", Load(w, (axis, i, k)), Load(param, (k,))),
        reduce=(width,),
        combiner="sum",
    )
    new = compute(y, lambda i: Unary("tanh", Binary("add", Load(product.out, (i,)), Load(x, (i,)))))
    every = tensor("every", steps, width)
    last = tensor("last", width)
    loop = Loop(axis, (Carry(start, param, y, last),), (Stack(y, every),), (product, new))
    parts = tuple(f"w{k}" for k in range(steps))
    return ready(Program((x, start), (Weight(w, parts, 1),), (loop,), (last, every)))


def update(
    combiner: str | None = None, *, rows: int = 6, width: int = 4, count: int = 5
) -> Program:
    """An input with rows at positions from data overwritten, or combined with; and its row sums."""
    x, v = tensor("x", rows, width), tensor("v", count, width)
    at = tensor("at", count, dtype=I64)
    i = (Axis("i0", count), Axis("i1", width))
    new = Scatter(tensor("new", rows, width), x, i, (Load(at, i[:1]), i[1]), Load(v, i), combiner)
    return program([x, at, v], [new, total("sums", new.out)], new.out, tensor("sums", rows))


def strided(offset: int = 1) -> Program:
    """Every third element of an input overwritten: no two writes meet."""
    x, v = tensor("x", 12), tensor("v", 3)
    i = Axis("i0", 3)
    where = Binary("add", Binary("mul", i, idx(3)), idx(offset))
    new = Scatter(tensor("new", 12), x, (i,), (where,), Load(v, (i,)))
    return program([x, v], [new], new.out)
