"""What a statement of a Program may use, and how much of it is defined."""

from collections.abc import Mapping
from itertools import zip_longest

import msgspec

from monotile.errors import VerificationError
from monotile.ir import printer
from monotile.ir.expr import Axis, Tensor
from monotile.ir.program import Part

Along = tuple[Part | None, ...]  # by dimension; None where all is defined


class Scope(msgspec.Struct, frozen=True):
    """The scope of a check.

    where:   the statement, for messages.
    names:   of every tensor defined so far, visible or not.
    visible: tensors that may be used here.
    loops:   axes of the enclosing loops.
    partial: what is live of tensors that are undefined beyond, by name.
    """

    where: str
    names: set[str]
    visible: dict[str, Tensor]
    loops: Mapping[str, Axis]
    partial: dict[str, Along]

    def check(self, holds: bool, message: str) -> None:
        if not holds:
            raise VerificationError(f"{self.where}: {message}")

    def define(self, t: Tensor) -> None:
        self.check(t.name not in self.names, f"{t.name!r} is defined twice")
        self.check(all(n >= 0 for n in t.shape), f"{t.name!r} has a negative extent {t.shape}")
        self.names.add(t.name)
        self.visible[t.name] = t

    def use(self, t: Tensor) -> None:
        """All of `t`."""
        self.see(t)
        self.check(
            t.name not in self.partial, f"{t.name!r} is used where a part of it is undefined"
        )

    def part(self, t: Tensor, along: Along) -> None:
        """So much of `t`."""
        self.see(t)
        for wanted, part in zip(self.partial.get(t.name, ()), along, strict=False):
            fits = wanted is None or wanted == part
            self.check(fits, f"{t.name!r} is used where a part of it is undefined")

    def see(self, t: Tensor) -> None:
        known = self.visible.get(t.name)
        self.check(known is not None, f"{t.name!r} is used where it is not defined")
        self.check(
            known == t,
            f"{t.name!r} is used as {show_type(t)} and defined as {show_type(known or t)}",
        )

    def same_type(self, a: Tensor, b: Tensor) -> None:
        same = a.shape == b.shape and a.dtype is b.dtype
        self.check(same, f"{a.name!r} is {show_type(a)}, {b.name!r} is {show_type(b)}")

    def inner(self, where: str, loops: Mapping[str, Axis]) -> "Scope":
        """A nested scope: it sees all of this one; its definitions stay inside, except that names stay unique."""
        return Scope(where, self.names, dict(self.visible), loops, self.partial)


def joined(one: Along, other: Along) -> Along:
    """What is live of a value that is one tensor or another."""
    return tuple(a or b for a, b in zip_longest(one, other))


def show_type(t: Tensor) -> str:
    """Shape and element type."""
    return printer.show_type(t)
