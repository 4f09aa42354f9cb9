"""Rolling: a repeated sequence of statements becomes a Loop.

Repeats are found by structure in the sequence of statements' skeletons (`analysis.repeats`), proved by `analysis.align`, and rolled in
order of saving until none is left. Loops roll like other statements, so that layers of loops become loops of loops. Weights of the
repetitions become a table of pointers, values passed from one repetition to the next are carried, and values used after the loop are its
last carried value or a stack.
"""

import functools
import math
from collections.abc import Hashable, Mapping, Sequence

import msgspec

from monotile.analysis.align import Alignment, Around, Members
from monotile.analysis.skeleton import Skeleton, skeleton
from monotile.choice.chooser import MODEL, Chooser, Question
from monotile.choice.digest import digest_program
from monotile.choice.spec import Value
from monotile.config import Options
from monotile.ir.expr import Expr, Load, Select, Tensor, binary, idx
from monotile.ir.program import (
    Branch,
    BranchOut,
    Carry,
    Loop,
    Program,
    Stack,
    Statement,
    compute,
    statements,
)
from monotile.transform.names import Names
from monotile.transform.replace import Moved, copy_of, element, replace_uses
from monotile.transform.roll.align_first import align_first
from monotile.transform.roll.candidates import Choice, Fact, best_choice, size
from monotile.transform.roll.cse import eliminate_common_subexpressions
from monotile.transform.roll.loop import Merge, Uses, make_loop
from monotile.transform.roll.order import hoist, merge_fills, order
from monotile.transform.roll.tables import Tables

INSIDE = 1e-6  # of a statement, if it is in a loop
SHORTEST_BUDGET = 100_000  # limit of statements visited by the order that rolls one loop at a time


def roll(program: Program, options: Options, chooser: Chooser = MODEL) -> Program:
    """`program` with its repeated stretches as Loops; the same object if there are none or `options.roll` is off.

    Views should be inlined before, so that a repetition that copies a slice equals one that reads it. Constant fills
    should not: a state that starts as zeros must stay a tensor.
    """
    if not options.roll:
        return program
    # What is rolled first decides which statements are equal afterwards. Neither order is always better.
    facts = _Facts()
    shared = eliminate_common_subexpressions(program.body, program.outputs)
    bodies: dict[tuple[Statement, ...], list[str]] = {}
    for body, how in (
        (program.body, []),
        (hoist(program.body), ["hoisted"]),
        (shared, ["shared"]),
        (hoist(shared), ["shared", "hoisted"]),
    ):
        bodies.setdefault(body, how)
    ways = [
        _Way(msgspec.structs.replace(program, body=body), facts, how, shortest)
        for body, how in bodies.items()
        for shortest in (False, True)
    ]
    question: Question[_Way] = Question(
        "roll order", lambda: digest_program(program), lambda w: _cost(w.rolled), lambda w: w.value
    )
    way = chooser.choose(question, ways)
    assert way is not None
    return program if _size(way.rolled) == _size(program) else way.rolled


class _Way:
    """An order to roll in: of statements, and of loops. how: the rewriting of the statements before."""

    def __init__(self, program: Program, facts: "_Facts", how: list[str], shortest: bool) -> None:
        self.program, self.facts, self.shortest = program, facts, shortest
        self.value: Value = [*how, "shortest first"] if shortest else how

    @functools.cached_property
    def rolled(self) -> Program:
        return _roll(self.program, self.facts, shortest=self.shortest)


def _size(program: Program) -> int:
    return sum(1 for _ in statements(program.body))


def _cost(program: Program) -> float:
    """Number of statements; among equals, of those in loops: loop-invariant statements are better outside."""
    outside = len(program.body)
    return _size(program) * (1 + INSIDE) - outside * INSIDE


def _roll(program: Program, facts: "_Facts", *, shortest: bool) -> Program:
    names = Names(program)
    roller = _Roller(facts, names, Tables(program, names), shortest=shortest)
    frame = _Frame((), program.outputs)
    body = roller.roll_list(program.body, frame)
    if body == program.body:
        return program
    outputs = tuple(frame.others)
    weights = roller.tables.used_in(body, outputs)
    return msgspec.structs.replace(program, weights=weights, body=body, outputs=outputs)


class _Frame:
    """The surroundings of a statement list while it is rolled: a loop's carries (None: merged into another) and the other
    tensors used after the list."""

    def __init__(self, carried: Sequence[Carry], others: Sequence[Tensor], fixed: bool = True):
        self.carried: list[Carry | None] = list(carried)
        self.others = list(others)
        self.fixed = fixed  # carries cannot be merged
        self.before: list[Statement] = []  # statements to insert before the loop
        self.moved: dict[str, Moved] = {}  # outs of carries that were merged

    @property
    def results(self) -> tuple[Tensor, ...]:
        return (*(c.result for c in self.carried if c), *self.others)

    @property
    def around(self) -> Around | None:
        if self.fixed:
            return None
        params = {c.param.name: k for k, c in enumerate(self.carried) if c}
        return Around(params, tuple(c.result.name if c else "" for c in self.carried))

    def move(self, moved: dict[str, Moved]) -> None:
        """Updates the results, which are whole uses, to their new locations."""

        def now(t: Tensor) -> Tensor:
            m = moved.get(t.name)
            assert m is None or m.whole is not None
            return t if m is None else m.whole or t

        self.others = [now(t) for t in self.others]
        for k, c in enumerate(self.carried):
            if c is not None and c.result.name in moved:
                self.carried[k] = msgspec.structs.replace(c, result=now(c.result))


class _Facts:
    """The facts of all statements visited so far."""

    def __init__(self) -> None:
        self._known: dict[Statement, Fact] = {}
        self._ids: dict[Hashable, int] = {}

    def of(self, s: Statement) -> Fact:
        known = self._known.get(s)
        if known is None:
            k = skeleton(s)
            number = self._ids.setdefault(k.key, len(self._ids))
            known = Fact(k, number, size(s), frozenset(t.name for t in k.uses))
            self._known[s] = known
        return known


class _Roller:
    def __init__(self, facts: _Facts, names: Names, tables: Tables, *, shortest: bool) -> None:
        self.facts = facts
        self.names = names
        self.shortest = shortest
        self.budget = SHORTEST_BUDGET if shortest else math.inf
        self.tables = tables

    def roll_list(self, body: tuple[Statement, ...], frame: _Frame) -> tuple[Statement, ...]:
        """`body` rolled; `frame` then has the locations of its results."""
        body = order(merge_fills(body, frame.results), frame.results)
        while True:
            swept = self._sweep(body, frame)
            deeper = self._inside(swept, frame)
            if deeper == body:
                return body
            body = deeper

    # One list.

    def _skeleton(self, s: Statement) -> Skeleton:
        return self.facts.of(s).skeleton

    def _moved(
        self, body: Sequence[Statement], moved: Mapping[str, Moved]
    ) -> tuple[Statement, ...]:
        """`body` with uses of moved tensors replaced."""
        return tuple(
            s if self.facts.of(s).reads.isdisjoint(moved) else replace_uses(s, moved) for s in body
        )

    def _sweep(self, body: tuple[Statement, ...], frame: _Frame) -> tuple[Statement, ...]:
        """`body` with its best choices rolled until there is none."""
        while self.budget > 0:
            self.budget -= len(body)
            facts = [self.facts.of(s) for s in body]
            choice = best_choice(
                body, facts, self.tables.weights, frame.around, shortest=self.shortest
            )
            if choice is None:
                return body
            likened = self._liken(body, choice, frame)
            if likened is not None:
                body = likened
                continue
            for a in reversed(
                choice.alignments
            ):  # from the end, so that earlier positions stay valid
                start = choice.start + a.first * choice.period
                body = self._replace(body, start, choice.period, a, frame)
                if any(isinstance(c, Members) for c in a.slots):
                    break  # statements of the other sequences may have changed
        return body

    def _liken(
        self, body: tuple[Statement, ...], choice: Choice, frame: _Frame
    ) -> tuple[Statement, ...] | None:
        """`body` with one more repetition: one that only differed in its initial values."""
        period = choice.period
        for a in choice.alignments:
            start = choice.start + a.first * period
            if start < period:
                continue
            first, second = body[start - period : start], body[start : start + period]
            parts = [
                [self._skeleton(s) for s in body[k : k + period]]
                for k in range(start, start + a.count * period, period)
            ]
            new = align_first(
                first, second, parts, a, self.tables.weights, frame.around, self.names
            )
            if new is not None:
                return (*body[: start - period], *new, *body[start:])
        return None

    def _replace(
        self,
        body: tuple[Statement, ...],
        start: int,
        period: int,
        a: Alignment,
        frame: _Frame,
    ) -> tuple[Statement, ...]:
        end = start + period * a.count
        starts = range(start, end, period)
        groups = [body[k : k + period] for k in starts]
        parts = [[self._skeleton(s) for s in g] for g in groups]
        rest = [self._skeleton(s) for s in (*body[:start], *body[end:])]
        merged = {k for c in a.slots if isinstance(c, Members) for k in c.carries}
        whole = {t.name for k in rest for t, load in zip(k.uses, k.loads, strict=True) if not load}
        whole |= {c.result.name for k, c in enumerate(frame.carried) if c and k not in merged}
        whole |= {t.name for t in frame.others}
        read = whole | {t.name for k in rest for t in k.uses}
        uses = Uses(frozenset(read), frozenset(whole))
        made = make_loop(groups, parts, a, uses, self.names, self.tables)
        whole |= _whole(made.statements)
        moved = dict(made.moved)
        copies: list[Statement] = []
        for merge in made.merges:
            copies += self._merge(frame, merge, whole, moved)
        frame.move(moved)
        new = (*copies, *body[:start], *made.statements, *body[end:])
        return self._moved(new, moved)

    def _merge(
        self, frame: _Frame, merge: Merge, whole: set[str], moved: dict[str, Moved]
    ) -> list[Statement]:
        """Merges several carries into one. Returns copies to insert at the start of the body."""
        old = [c for k in merge.carries if (c := frame.carried[k]) is not None]
        for k in merge.carries:
            frame.carried[k] = None
        shape, dtype = merge.param.shape, merge.param.dtype
        init, out = (
            Tensor(self.names.fresh(f"{merge.result.name}_{s}"), shape, dtype)
            for s in ("init", "last")
        )
        frame.carried.append(Carry(init, merge.param, merge.result, out))
        frame.before.append(_pack(init, [c.init for c in old]))
        copies: list[Statement] = []
        for g, c in enumerate(old):
            frame.moved[c.out.name] = element(out, g)
            moved[c.param.name] = element(merge.param, g)
            if c.param.name in whole:
                part = Tensor(self.names.fresh(f"{c.param.name}_part"), shape[1:], dtype)
                copies.append(copy_of(part, merge.param, (idx(g),)))
                moved[c.param.name] = Moved(merge.param, (idx(g),), part)
        return copies

    # The lists inside.

    def _inside(self, body: tuple[Statement, ...], frame: _Frame) -> tuple[Statement, ...]:
        """`body` with the bodies of its loops and branches rolled."""
        out: list[Statement] = []
        moved: dict[str, Moved] = {}
        whole = {t.name for t in frame.results}
        for s in body:
            match s:
                case Loop():
                    before, new, outs = self._loop(s)
                    out += [*before, new]
                    if outs:
                        whole |= _whole(body)
                        copies, places = self._settled(outs, whole)
                        out += copies
                        moved |= places
                case Branch():
                    out.append(self._branch(s))
                case _:
                    out.append(s)
        frame.move(moved)
        new_body = self._moved(out, moved)
        return body if new_body == body else new_body

    def _loop(self, s: Loop) -> tuple[list[Statement], Loop, dict[str, Moved]]:
        others = [k.value for k in s.stacked]
        if s.predicate is not None:
            others.append(s.predicate)
        frame = _Frame(s.carried, others, fixed=s.predicate is not None)
        body = self.roll_list(s.body, frame)
        if body == s.body:
            return [], s, {}
        values = frame.others[: len(s.stacked)]
        new = Loop(
            s.axis,
            tuple(c for c in frame.carried if c is not None),
            tuple(Stack(v, k.out) for v, k in zip(values, s.stacked, strict=True)),
            body,
            s.count,
            frame.others[-1] if s.predicate is not None else None,
            s.origin,
        )
        return frame.before, new, frame.moved

    def _branch(self, s: Branch) -> Branch:
        then = _Frame((), [o.then for o in s.outs])
        otherwise = _Frame((), [o.otherwise for o in s.outs])
        new_then = self.roll_list(s.then, then)
        new_otherwise = self.roll_list(s.otherwise, otherwise)
        if new_then == s.then and new_otherwise == s.otherwise:
            return s
        outs = tuple(
            BranchOut(t, o, out.out)
            for t, o, out in zip(then.others, otherwise.others, s.outs, strict=True)
        )
        return Branch(s.predicate, new_then, new_otherwise, outs, s.origin)

    def _settled(
        self, moved: dict[str, Moved], whole: set[str]
    ) -> tuple[list[Statement], dict[str, Moved]]:
        """Copies of moved tensors that are used as a whole, and all new locations."""
        copies: list[Statement] = []
        places: dict[str, Moved] = {}
        for name, m in moved.items():
            places[name] = m
            if name in whole and m.whole is None:
                shape = m.tensor.shape[len(m.prefix) :]
                part = Tensor(self.names.fresh(f"{name}_part"), shape, m.tensor.dtype)
                copies.append(copy_of(part, m.tensor, m.prefix))
                places[name] = Moved(m.tensor, m.prefix, part)
        return copies, places


def _whole(body: Sequence[Statement]) -> set[str]:
    """The tensors with uses other than Loads."""
    parts = [skeleton(s) for s in body]
    return {t.name for k in parts for t, load in zip(k.uses, k.loads, strict=True) if not load}


def _pack(out: Tensor, parts: Sequence[Tensor]) -> Statement:
    """out[g] = parts[g]."""

    def body(g: Expr, *i: Expr) -> Expr:
        def tree(lo: int, hi: int) -> Expr:
            if hi - lo == 1 or all(p == parts[lo] for p in parts[lo:hi]):
                return Load(parts[lo], i)
            mid = (lo + hi) // 2
            return Select(binary("lt", g, idx(mid)), tree(lo, mid), tree(mid, hi))

        return tree(0, len(parts))

    return compute(out, body)
