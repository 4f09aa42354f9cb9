"""Source text as nested blocks, in which a value is named once and hoisted as far outside as possible.

A block is written when it is closed. So a value named in an outer block while an inner one is open comes before the inner one: this
hoists loop-invariant values out of loops.
"""

from collections.abc import Generator, Hashable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field

from monotile.errors import InternalError

INDENT = "  "


@dataclass(eq=False)
class Block:
    """One `head { ... }`.

    defines: variables (C names) that the head or the block itself defines.
    fence:   values that depend on memory (a Load) stay inside: the block may not run, or memory changes before it.
    names:   C name of each value named here.
    pragma:  a line before the head. Both may be set while the block is open.
    """

    parent: "Block | None"
    head: str
    defines: set[str]
    fence: bool
    depth: int
    pragma: str = ""
    latest: int = 0  # the line at which the latest inner block begins
    lines: list[str] = field(default_factory=list[str])
    names: dict[Hashable, str] = field(default_factory=dict[Hashable, str])

    def write(self, line: str) -> None:
        self.lines.append(line)


class Writer:
    """The open blocks, innermost last, and a counter for names."""

    def __init__(self) -> None:
        self.block = Block(None, "", set(), True, 0)
        self._count = 0

    @property
    def text(self) -> str:
        """All that was written; no block may be open."""
        if self.block.parent is not None:
            raise InternalError(f"a block is still open: {self.block.head}")
        return "\n".join(self.block.lines) + "\n"

    def fresh(self, prefix: str = "v") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def write(self, line: str) -> None:
        """A line at the end of the innermost block."""
        self.block.write(line)

    @contextmanager
    def open(
        self, head: str, defines: Iterable[str] = (), *, fence: bool = False, tail: str = ""
    ) -> Generator[Block]:
        """A block under `head` (none: a bare block), closed by `}` and `tail`. An `else` stays at its `if`."""
        outer = self.block
        start = len(outer.lines)
        self.block = inner = Block(outer, head, set(defines), fence, outer.depth + 1)
        yield inner
        self.block = outer
        if not inner.lines and not tail and (not head or head.startswith("for")):
            return
        if head == "else":  # the values hoisted out of it go before the whole statement
            left = outer.lines[start:]
            del outer.lines[start:]
            outer.lines[outer.latest : outer.latest] = left
        outer.latest = len(outer.lines)
        if inner.pragma:
            outer.write(inner.pragma)
        outer.write(f"{inner.head} {{" if head else "{")
        outer.lines.extend(INDENT + line if line else line for line in inner.lines)
        outer.write(f"}}{tail}")

    @contextmanager
    def at(self, block: Block) -> Generator[None]:
        """Inside, writes at the end of `block`, which is open."""
        inner, self.block = self.block, block
        yield
        self.block = inner

    def define(self, variable: str, *, here: Block | None = None) -> None:
        (here or self.block).defines.add(variable)

    def home(self, variables: Iterable[str], *, memory: bool) -> Block:
        """The outermost block in which a value that depends on `variables` can be computed.

        memory: it reads memory, so that it stays inside the innermost fence.
        """
        wanted = set(variables)
        block = self.block
        while block.parent is not None:
            if wanted & block.defines or (memory and block.fence) or block.depth == 1:
                return block  # nothing is computed outside of functions
            block = block.parent
        return block

    def known(self, key: Hashable) -> str | None:
        """The name that `key` has in an open block."""
        block: Block | None = self.block
        while block is not None:
            if key in block.names:
                return block.names[key]
            block = block.parent
        return None
