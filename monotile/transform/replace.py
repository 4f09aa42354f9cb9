"""Replaces uses of tensors that have moved into another tensor."""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from monotile.analysis.skeleton import skeleton, visit
from monotile.ir.expr import Expr, Load, Tensor, idx
from monotile.ir.program import Branch, Compute, Loop, Statement, compute, used


@dataclass(frozen=True, slots=True)
class Moved:
    """The new location of a tensor: `tensor` at the leading indices `prefix`.

    whole: a tensor with exactly this value, for uses that are not Loads.
    """

    tensor: Tensor
    prefix: tuple[Expr, ...]
    whole: Tensor | None


def renamed(t: Tensor) -> Moved:
    """A tensor of equal value with another name."""
    return Moved(t, (), t)


def element(t: Tensor, *prefix: int | Expr) -> Moved:
    """A part of `t`, at the leading indices `prefix`."""
    return Moved(t, tuple(idx(p) if isinstance(p, int) else p for p in prefix), None)


def copy_of(out: Tensor, source: Tensor, prefix: tuple[Expr, ...], origin: str = "") -> Compute:
    """out = source[prefix]."""
    return compute(out, lambda *i: Load(source, (*prefix, *i)), origin=origin)


class _Mover:
    def __init__(self, moved: Mapping[str, Moved]) -> None:
        self.moved = moved

    def token(self, *parts: Hashable) -> None:
        pass

    def constant(self, value: int) -> Expr:
        return idx(value)

    def load(self, tensor: Tensor, index: tuple[Expr, ...]) -> Expr:
        m = self.moved.get(tensor.name)
        return Load(tensor, index) if m is None else Load(m.tensor, (*m.prefix, *index))

    def use(self, tensor: Tensor) -> Tensor:
        m = self.moved.get(tensor.name)
        if m is None:
            return tensor
        assert m.whole is not None, f"{tensor.name} is used as a whole, but only its place is known"
        return m.whole

    def define(self, tensor: Tensor) -> Tensor:
        return tensor


def replace_uses(s: Statement, moved: Mapping[str, Moved]) -> Statement:
    """`s` with each use of a tensor in `moved` replaced; the same object if there is none. Tensors that `s` defines inside
    shadow moved tensors of the same name."""
    if not any(t.name in moved for t in used(s)):
        return s
    if isinstance(s, (Loop, Branch)):
        own = {t.name for t in skeleton(s).definitions}
        moved = {name: m for name, m in moved.items() if name not in own}
    return visit(s, _Mover(moved))


def replace_all(body: Iterable[Statement], moved: Mapping[str, Moved]) -> tuple[Statement, ...]:
    """`replace_uses` of every statement."""
    if not moved:
        return tuple(body)
    return tuple(replace_uses(s, moved) for s in body)
