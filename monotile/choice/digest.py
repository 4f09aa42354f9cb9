"""Digests of what is decided about, by structure, types and extents: the same in every process, whatever things are called."""

import hashlib
from collections.abc import Hashable, Iterable, Mapping
from types import MappingProxyType

from monotile.analysis.in_place import tables_of
from monotile.analysis.skeleton import visit
from monotile.ir.expr import Expr, Load, Tensor, idx
from monotile.ir.program import Program, Statement

LENGTH = 16  # hexadecimal digits
Tables = Mapping[str, int]  # leading table dimensions of the weights that have some


def digest(*parts: object) -> str:
    """Of values whose `repr` is the same in every process: no sets."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:LENGTH]


class Structure:
    """Statements, tensors numbered by first appearance. An axis of a loop around has a number as well."""

    def __init__(self, tables: Tables = MappingProxyType({})) -> None:
        self.tables = tables
        self.tokens: list[Hashable] = []
        self.numbers: dict[str, int] = {}
        self._axes: dict[str, int] = {}

    def add(self, statements: Iterable[Statement]) -> None:
        """What they are, behind all before."""
        for s in statements:
            visit(s, self)

    def number(self, tensor: Tensor) -> None:
        """`tensor` by its number, and what it is where it appears first."""
        name = tensor.name
        if name not in self.numbers:
            self.numbers[name] = len(self.numbers)
            self.tokens.append((tensor.shape, tensor.dtype.name, self.tables.get(name, 0)))
        self.tokens.append(self.numbers[name])

    # What `analysis.skeleton.visit` calls.

    def token(self, *parts: Hashable) -> None:
        if parts[0] == "axis" and isinstance(parts[1], str):
            number = self._axes.setdefault(parts[1], len(self._axes))
            parts = ("axis", ("around", number), *parts[2:])
        self.tokens += parts

    def constant(self, value: int) -> Expr:
        self.tokens.append(value)
        return idx(value)

    def load(self, tensor: Tensor, index: tuple[Expr, ...]) -> Expr:
        self.number(tensor)
        return Load(tensor, index)

    def use(self, tensor: Tensor) -> Tensor:
        self.number(tensor)
        return tensor

    def define(self, tensor: Tensor) -> Tensor:
        self.number(tensor)
        return tensor


def digest_statements(statements: Iterable[Statement], tables: Tables, *more: object) -> str:
    """Of what they compute of what. more: what else is decided about."""
    found = Structure(tables)
    found.add(statements)
    return digest(found.tokens, more)


def digest_program(program: Program, *more: object) -> str:
    """Of all of a Program. more: what else is decided about."""
    found = Structure(tables_of(program))
    for t in program.inputs:
        found.number(t)
    found.add(program.body)
    for t in program.outputs:
        found.number(t)
    return digest(found.tokens, len(program.weights), more)
