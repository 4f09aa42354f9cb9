"""On-chip places for tensors that every worker computes for itself (`replicas.py`). A loop-carried tensor has its place for the whole
launch, any other until its last reader. A carried tensor needs one buffer, not two, where each of its values is read for the last
time before the next is computed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from monotile.ir.program import Compute, Loop, Scatter, used
from monotile.plan.nodes import Body, Choose, Repeat, Stage
from monotile.plan.walk import bodies_of, stages_in

Statements = Mapping[str, Compute | Scatter]


@dataclass(frozen=True, slots=True)
class Held:
    """Tensors that share places: a single one, or a loop-carried one under its several names. offsets: in the workspace. size: bytes of
    each. one: whether one buffer on chip is enough."""

    names: frozenset[str]
    offsets: tuple[int, ...]
    size: int
    one: bool

    @property
    def carried(self) -> bool:
        return len(self.offsets) > 1

    @property
    def nbytes(self) -> int:
        """On-chip bytes."""
        return self.size if self.one else self.size * len(self.offsets)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Tensors that stages write and read. loops: by their axes."""

    computes: Statements
    loops: Mapping[str, Loop]

    def made(self, stage: Stage) -> set[str]:
        return {n for step in stage.steps for n in step.computes}

    def read(self, stage: Stage) -> set[str]:
        """The tensors read that other stages compute."""
        made = self.made(stage)
        return {t.name for n in made for t in used(self.computes[n])} - made

    def one_after_another(self, body: Body, names: frozenset[str]) -> bool:
        """Whether one buffer is enough for the tensors `names`: each value is read for the last time before the next one is computed."""
        return self._walk(body, names, frozenset()) is not None

    def _walk(
        self, body: Body, names: frozenset[str], held: frozenset[str]
    ) -> frozenset[str] | None:
        """The names of the value that the buffer holds after `body`. held: those before it. None where a reader would find another
        value."""
        for node in body:
            match node:
                case Stage():
                    found = self._stage(node, names, held)
                case Repeat():
                    found = self._repeat(node, names, held)
                case Choose(_, bodies):
                    same = all(self._walk(b, names, held) == held for b in bodies)
                    found = held if same else None
            if found is None:
                return None
            held = found
        return held

    def _stage(
        self, stage: Stage, names: frozenset[str], held: frozenset[str]
    ) -> frozenset[str] | None:
        read, made = self.read(stage) & names, self.made(stage) & names
        if not read <= held or (made and (read or len(made) > 1)):
            return None
        return frozenset(made) or held

    def _repeat(
        self, node: Repeat, names: frozenset[str], held: frozenset[str]
    ) -> frozenset[str] | None:
        carried = [c for c in self.loops[node.axis].carried if c.param.name in names]
        held |= {c.param.name for c in carried if c.init.name in held}
        for _ in range(2):  # the second iteration stands for all others
            behind = self._walk(node.body, names, held)
            if behind is None or not {c.result.name for c in carried} <= behind:
                return None
            held = frozenset(c.param.name for c in carried) if carried else behind
        return frozenset(c.out.name for c in carried) if carried else held


class Room:
    """at: the on-chip place for each place in the workspace. end: of the bytes there."""

    def __init__(self, traffic: Traffic, on_chip: int, align: int) -> None:
        self.at: dict[int, int] = {}
        self.end = -(-on_chip // align) * align
        self._traffic = traffic

    def carry(self, values: Sequence[Held]) -> None:
        """Assigns places for the whole launch to loop-carried tensors."""
        for v in values:
            step = 0 if v.one else v.size
            self.at |= {offset: self.end + k * step for k, offset in enumerate(v.offsets)}
            self.end += v.nbytes

    def pass_on(self, body: Body, values: Sequence[Held]) -> None:
        """Assigns places until their last reader to all other tensors."""
        by_name = {n: v for v in values for n in v.names}
        self._level(body, by_name, self.end)

    def _level(self, body: Body, values: Mapping[str, Held], at: int) -> None:
        """at: the first on-chip byte for results of this level, after those of the enclosing bodies."""
        taken: list[tuple[int, int, int]] = []  # last node, first byte, end byte
        for number, node in enumerate(body):
            busy = [t for t in taken if t[0] >= number]
            for inner in bodies_of(node):
                self._level(inner, values, max([at, *(high for _, _, high in busy)]))
            if not isinstance(node, Stage):
                continue
            made = [values[n] for n in sorted(self._traffic.made(node)) if n in values]
            if not made:
                continue
            names = {n for v in made for n in v.names}
            size = sum(v.size for v in made)
            low = _room(busy, at, size)
            taken.append((max(self._readers(names, body)), low, low + size))
            self.end = max(self.end, low + size)
            for v in made:
                self.at |= dict.fromkeys(v.offsets, low)
                low += v.size

    def _readers(self, names: set[str], body: Body) -> Iterator[int]:
        """The positions of the nodes that read one of `names`."""
        for number, node in enumerate(body):
            if any(self._traffic.read(s) & names for s in stages_in((node,))):
                yield number


def _room(busy: Sequence[tuple[int, int, int]], at: int, size: int) -> int:
    """The first byte from `at` on that is followed by so many free bytes."""
    for _, low, high in sorted(busy, key=lambda t: t[1]):
        if at + size <= low:
            break
        at = max(at, high)
    return at
