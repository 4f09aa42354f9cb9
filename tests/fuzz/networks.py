"""Structure: blocks repeated with their own weights, recurrences over steps and layers, branches of one value."""

import re
from collections.abc import Callable

from tests.fuzz.builder import Builder, Operators, is_finite, is_float
from tests.fuzz.graph import Leaf, defined, names, renamed
from tests.fuzz.runs import Rejected

# A step's share of an argument: its position along the first or second dimension.
STEPS = ("{x}[#]", "{x}[:, #]", "{x}.select(-1, #)", "{x}[..., #, :]", "{x}[-1 - #]")


def step(b: Builder, operators: Operators, tries: int = 12) -> bool:
    """One operator that PyTorch takes; says whether one was found."""
    for _ in range(tries):
        (chosen,) = b.r.choices([f for _, f in operators], weights=[w for w, _ in operators])
        try:
            chosen(b)
        except Rejected:
            continue
        return True
    return False


def project(b: Builder, v: str, like: str) -> str:
    """`v` in the shape and type of `like`."""
    kind = b.dtype_of(like)
    if b.dtype_of(v) != kind:
        (v,) = b.emit(f"{v}.to(t.{kind})")
    if b.shape(v) == b.shape(like):
        return v
    if b.shape(v) and b.shape(like) and b.shape(v)[:-1] == b.shape(like)[:-1]:
        k, n = b.shape(v)[-1], b.shape(like)[-1]
        return b.emit(f"F.linear({v}, {b.weight((n, k), kind, k)})")[0]
    return b.emit(f"torch.tanh({v}.mean())")[0]


def close(b: Builder, h: str, v: str) -> str:
    """The next state: of the shape and type of `h`."""
    v = project(b, v, h)
    shape = b.shape(h)
    options = [f"{h} + 0.5 * torch.tanh({v})", f"{h} * torch.sigmoid({v})", f"({h} + {v}) * 0.5"]
    if shape:
        options.append("")
    if b.shape(v) == shape:
        options += [f"torch.tanh({v})", f"torch.relu({v})"]
    chosen = b.r.choice(options)
    if not chosen:  # the sum is a value of its own, that it gets noise: a row of equal values cannot be normalised
        chosen = f"F.layer_norm({b.emit(f'{h} + {v}')[0]}, ({shape[-1]},))"
    (new,) = b.emit(chosen)
    return new if b.dtype_of(new) == b.dtype_of(h) else b.emit(f"{new}.to(t.{b.dtype_of(h)})")[0]


def cell(b: Builder, state: list[str], given: list[str], operators: Operators) -> list[str]:
    """One iteration: a few operators on the state and what the step is given."""
    with b.only([*state, *given]):
        if given:
            mixed = project(b, given[0], state[0])
            b.emit(
                b.r.choice(("{} + {}", "torch.tanh({} + {})", "{} * torch.sigmoid({})")).format(
                    state[0], mixed
                )
            )
        for _ in range(b.r.randint(1, 4)):
            step(b, operators)
        found = [n for n in b.pool if n not in (*state, *given) and is_float(b.value(n))]
        if not found:
            raise Rejected("nothing was added")
        return [close(b, h, b.r.choice(found[-2:])) for h in state]


def gated(b: Builder, state: list[str], given: list[str]) -> list[str]:
    """The cell of a recurrent network, plain or gated."""
    h = state[0]
    kind, n = b.dtype_of(h), b.shape(h)[-1]
    x = project(b, given[0], h) if given else h
    if b.chance(0.4):
        w, u = (b.weight((n, n), kind, n) for _ in range(2))
        return [b.emit(f"torch.tanh(F.linear({x}, {w}) + F.linear({h}, {u}))")[0], *state[1:]]
    update, reset = (b.weight((n, n), kind, n) for _ in range(2))
    (z,) = b.emit(f"torch.sigmoid(F.linear({x}, {update}) + F.linear({h}, {reset}))")
    (c,) = b.emit(f"torch.tanh(F.linear({h} * {z}, {b.weight((n, n), kind, n)}))")
    return [b.emit(f"{z} * {h} + (1 - {z}) * {c}")[0], *state[1:]]


class Recorded:
    """One iteration's lines, to be repeated with other values, weights and positions."""

    def __init__(
        self, b: Builder, start: int, state: list[str], result: list[str], own: list[str]
    ) -> None:
        assert b.templates is not None
        self.templates = b.templates[start:]
        self.state, self.result, self.own = state, result, own
        self.leaves = {leaf.name: leaf for leaf in b.leaves}

    def again(
        self, b: Builder, state: list[str], iteration: int, shared: dict[str, str]
    ) -> list[str]:
        """Raises Rejected. shared: leaves that this iteration does not make anew."""
        to = dict(zip(self.state, state, strict=True)) | shared
        outer, b.iteration = b.iteration, iteration
        try:
            for line in self.templates:
                for name in names(line):
                    if name in self.own and name not in to:
                        to[name] = b.leaf(reseeded(b, self.leaves[name]), parameter=name[0] == "p")
                new = defined(line)
                text = renamed(line.partition(" = ")[2] if new else line, to)
                if new:
                    to |= dict(zip(new, b.emit(text, len(new)), strict=True))
                else:
                    b.update(text)
        finally:
            b.iteration = outer
        return [to.get(n, n) for n in self.result]


def reseeded(b: Builder, leaf: Leaf) -> str:
    return re.sub(r"g\(\d+\)", lambda _: f"g({b.seed()})", leaf.expression)


def record(
    b: Builder, state: list[str], make: Callable[[], list[str]]
) -> tuple[Recorded, list[str]]:
    """The first iteration by `make`, written down."""
    known = {leaf.name for leaf in b.leaves}
    outer, b.templates = b.templates, (b.templates if b.templates is not None else [])
    start = len(b.templates)
    b.parameters = 0.95  # what differs from one repetition to the next are weights
    try:
        result = make()
        own = [leaf.name for leaf in b.leaves if leaf.name not in known]
        return Recorded(b, start, state, result, own), result
    finally:
        b.templates, b.parameters = outer, 0.0


def state_of(b: Builder) -> str:
    """A value to iterate on, of moderate size."""
    if b.chance(0.5):
        try:
            return b.pick(is_float, is_finite, lambda x: 0 < x.numel() < 400 and x.dim() > 0)
        except Rejected:
            pass
    shape = b.r.choice(((8,), (3, 5), (2, 7), (1, 16), (4, 4), (2, 3, 8), (13,)))
    return b.floats(shape, parameter=False)


def first(b: Builder, x: str, count: int = 1) -> list[str]:
    """The first states, all alike: an argument, zeros or a computed value."""
    chosen = b.r.choice(("", "", "torch.zeros_like({})", "{} * 0.5"))
    return [b.emit(chosen.format(x))[0] if chosen else x for _ in range(count)]


def layers(b: Builder, operators: Operators) -> None:
    """Repeated blocks; the first or the last may differ, and every one's value may be read afterwards."""
    state = first(b, state_of(b))
    if b.chance(0.2):
        state.append(b.floats(b.shape(state[0]), b.dtype_of(state[0]), parameter=False))
    if b.chance(0.2):
        state[0] = cell(b, state[:1], [], operators)[0]
    count = b.r.choice((2, 3, 3, 4, 4, 5, 6))
    given = [per_step(b, state[0], count)] if b.chance(0.3) else []
    gate = b.chance(0.2)

    def make() -> list[str]:
        inside = [b.emit(x)[0] for x in given]
        return gated(b, state, inside) if gate else cell(b, state, inside, operators)

    history: list[list[str]] = []
    recorded, now = record(b, state, make)
    history.append(now)
    shared = {n: n for n in recorded.own} if b.chance(0.3) else {}
    try:
        for iteration in range(1, count):
            now = recorded.again(b, now, iteration, shared)
            history.append(now)
        if b.chance(0.2):
            history.append(cell(b, now[:1], [], operators))
    except Rejected:
        pass
    b.pool += [n for n in now if n not in b.pool]
    collect(b, [h[0] for h in history])


def collect(b: Builder, history: list[str]) -> None:
    """Sometimes all layers' values together."""
    if len(history) < 2:
        return
    if b.chance(0.35):
        how = b.r.choice(("torch.stack(({}))", "torch.cat(({}), -1)", "torch.stack(({}), -1)"))
        b.emit(how.format(", ".join(history[:: b.r.choice((1, 1, 1, -1))])))
    elif b.chance(0.3):
        b.emit(" + ".join(history))


def per_step(b: Builder, like: str, count: int) -> str:
    """The expression of one step's share of a new argument or parameter, of the shape of `like`."""
    shape = list(b.shape(like))
    how = b.r.choice(STEPS)
    at = {
        "{x}[#]": 0,
        "{x}[:, #]": 1,
        "{x}.select(-1, #)": len(shape),
        "{x}[..., #, :]": len(shape) - 1,
        "{x}[-1 - #]": 0,
    }
    position = min(at[how], len(shape))
    shape.insert(position, count + b.r.choice((0, 0, 1)))
    x = b.floats(shape, b.dtype_of(like))
    return how.format(x=x)


def recurrence(b: Builder, operators: Operators) -> None:
    """Layers over steps: step t of layer k reads step t - 1 of k and step t of k - 1."""
    depth, steps = b.r.choice(((1, 4), (1, 7), (2, 3), (2, 5), (3, 3), (3, 4), (4, 2)))
    like = b.floats(b.r.choice(((5,), (2, 4), (1, 8))), parameter=False)
    text = per_step(b, like, steps)
    states = first(b, like, depth)
    gate, by_layer = b.chance(0.6), b.chance(0.5)
    (x,) = b.emit(text)

    def make(state: list[str], given: str) -> Callable[[], list[str]]:
        return lambda: gated(b, state, [given]) if gate else cell(b, state, [given], operators)

    at = [states[0], x]
    recorded, now = record(b, at, make([states[0]], x))
    mine: list[dict[str, str]] = [{n: n for n in recorded.own}]
    inputs = [x]
    for t in range(1, steps):
        b.iteration = t
        inputs += b.emit(text)
    b.iteration = 0
    grid: dict[tuple[int, int], str] = {(0, 0): now[0]}
    order = [(k, t) for k in range(depth) for t in range(steps)]
    order = order if by_layer else sorted(order, key=lambda kt: (kt[1], kt[0]))
    for k, t in order[1:]:
        if t == 0 and k == len(mine):
            mine.append(
                {
                    n: b.leaf(reseeded(b, recorded.leaves[n]), parameter=n[0] == "p")
                    for n in recorded.own
                }
            )
        before = grid[k, t - 1] if t else states[k]
        below = grid[k - 1, t] if k else inputs[t]
        grid[k, t] = recorded.again(b, [before, below], 0, mine[k])[0]
    last = [grid[depth - 1, t] for t in range(steps)]
    if b.chance(0.5):
        b.emit(f"torch.stack(({', '.join(last)}), {b.r.choice((0, 1))})")
    if b.chance(0.3):
        b.emit(f"torch.stack(({', '.join(grid[k, steps - 1] for k in range(depth))},))")


def branches(b: Builder, operators: Operators) -> None:
    """Alike work on the same value with other weights, then together."""
    x = state_of(b)
    kind, k, n = b.dtype_of(x), b.shape(x)[-1], b.r.choice((3, 4, 8, 16))
    bias = b.chance(0.5)

    def make() -> list[str]:
        with b.only([x]):
            more = f", {b.floats((n,), kind, parameter=True)}" if bias else ""
            b.emit(f"F.linear({x}, {b.weight((n, k), kind, k)}{more})")
            for _ in range(b.r.choice((0, 1, 2))):
                b.pool = b.pool[-2:]
                step(b, operators)
            return b.pool[-1:]

    recorded, now = record(b, [], make)
    found = list(now)
    for iteration in range(1, b.r.randint(2, 5)):
        found += recorded.again(b, [], iteration, {})
    shapes = {(b.shape(f), b.dtype_of(f)) for f in found}
    if len(shapes) != 1 or b.chance(0.2):
        return
    options = [f"torch.stack(({', '.join(found)}))", " + ".join(found), " * ".join(found[:2])]
    if b.shape(found[0]):
        options.append(f"torch.cat(({', '.join(found)}), -1)")
    if len(found) > 2 and b.shape(found[0])[-1:] == (n,) and len(b.shape(found[0])) > 1:
        q, key, v = found[:3]
        options.append(f"torch.softmax({q} @ {key}.transpose(-1, -2), -1) @ {v}")
    b.emit(b.r.choice(options))


def tied(b: Builder, _: Operators) -> None:
    """A weight used twice, and a value added to itself through another way."""
    x = b.pick(is_float, lambda t: t.dim() > 1 and t.numel() > 0)
    k = b.shape(x)[-1]
    w = b.weight((6, k), b.dtype_of(x), k)
    (y,) = b.emit(f"torch.relu(F.linear({x}, {w}))")
    b.emit(f"{x} + {y} @ {w}")
