"""Places for every tensor, and a workspace in which tensors with disjoint live ranges share bytes."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from monotile.analysis.in_place import carried_in_place
from monotile.ir.expr import Tensor
from monotile.ir.program import (
    Branch,
    Carry,
    Loop,
    Program,
    Scatter,
    looked_at,
    statements,
    updates,
    used,
)
from monotile.plan.places import (
    Final,
    Place,
    Pointer,
    Register,
    Rotate,
    Shared,
    Slice,
    Strip,
    Value,
    Workspace,
)
from monotile.schedule.strips import Columns
from monotile.schedule.tree import Draft, Fork, Nest, Tree

ALIGN = 256  # bytes between tensors in the workspace


@dataclass(frozen=True, slots=True)
class Memory:
    places: dict[str, tuple[Place, ...]]
    workspace_bytes: int


@dataclass(slots=True)
class _Range:
    """A workspace tensor: bytes, and the first and last stage number at which it is alive."""

    size: int
    first: int
    last: int


def place(
    program: Program, tree: Tree, columns: Mapping[str, Columns], *, reuse: bool = True
) -> Memory:
    """Assigns places. Inputs, outputs and weights are at their pointers, and a state's new value at the old one's. Tensors of one step
    or task are in registers or on chip. Everything else is in the workspace. columns: tensors that are columns of a matrix. reuse:
    whether tensors with disjoint live ranges share bytes."""
    builder = _Builder(program, tree, columns)
    builder.level(tree)
    return builder.finish(reuse=reuse)


class _Builder:
    """During construction, a Workspace's `offset` is a handle: the number of its range."""

    def __init__(self, program: Program, tree: Tree, columns: Mapping[str, Columns]) -> None:
        self.places: dict[str, list[Place]] = {}
        self.ranges: list[_Range] = []
        self.program = program
        self.readers = _readers(tree)
        self.columns = columns
        self.matrices: dict[str, Workspace] = {}
        slot = 0
        for t in (*program.inputs, *program.results):
            self.places[t.name] = [(Value if t.name in program.by_value else Pointer)(slot)]
            slot += 1
        slots = {t.name: k for k, t in enumerate(program.inputs)}
        for w in program.weights:
            self.places[w.tensor.name] = [Pointer(slot)]
            slots.setdefault(w.tensor.name, slot)
            for part in w.parts:
                slots.setdefault(part, slot)
                slot += 1
        for u in updates(program):
            self.places[u.result.name] = [Pointer(slots[u.name])]
        # An update in place is made where its result is wanted: a base is its Scatter's result under
        # another name (`transform.insert_base_copies` sees to it that no one else uses it).
        self.updated: dict[str, str] = {}
        for s in statements(program.body):
            if isinstance(s, Scatter):
                self.updated[s.base.name] = s.out.name
            elif isinstance(s, Loop):
                for c in carried_in_place(s):
                    for t in (c.init, c.param, c.result):
                        self.updated[t.name] = c.out.name
        self.now = 0

    def _root(self, name: str) -> str:
        """The last of the chain of updates in place that begins at `name`, or `name`."""
        while name in self.updated:
            name = self.updated[name]
        return name

    def level(self, nodes: Tree) -> None:
        for node in nodes:
            match node:
                case Draft():
                    self._stage(node)
                    self.now += 1
                case Nest(loop, body):
                    start = self.now
                    self._open(loop)
                    outside = len(self.ranges)
                    self.level(body)
                    self._close(outside, start)
                case Fork(branch):
                    start, outside = self.now, len(self.ranges)
                    self._fork(branch)
                    for side in node.sides:
                        self._linger(outside, start)
                        self.level(side)

    def _stage(self, draft: Draft) -> None:
        own_steps = {s.out.name: i for i, step in enumerate(draft.group.steps) for s in step}
        for s in draft.group.statements():
            name = s.out.name
            root = self._root(name)
            places = self.places.setdefault(name, [])
            if root != name:
                if not self.places.get(root):
                    self._allocate(msgspec.structs.replace(s.out, name=root))
                places.extend(self.places[root])
            elif not places and (
                isinstance(s, Scatter) or self.readers.get(name, set()) - {id(draft)}
            ):
                self._allocate(s.out)
            if name in draft.local:
                here = draft.local[name]
                places.insert(0, Shared(here.offset, here.box, here.pitch))
            if not places:
                places.append(Register())
            for t in used(s):
                if t.name not in own_steps:
                    self._touch(t.name)
            self._touch(name)

    def _allocate(self, t: Tensor) -> Place:
        found = self._columns(t) if t.name in self.columns else self._reserve(t)
        self.places.setdefault(t.name, []).append(found)
        return found

    def _columns(self, t: Tensor) -> Place:
        """The place of a tensor that is a block of columns of a matrix."""
        c = self.columns[t.name]
        if c.matrix not in self.matrices:
            whole = msgspec.structs.replace(t, shape=(*t.shape[:-1], c.pitch))
            self.matrices[c.matrix] = self._reserve(whole)
        handle = self.matrices[c.matrix].offset
        return Strip(handle, c.first, t.shape[-1], c.pitch, t.dtype.itemsize)

    def _reserve(self, t: Tensor) -> Workspace:
        size = -(-max(t.nbytes, 1) // ALIGN) * ALIGN
        self.ranges.append(_Range(size, self.now, self.now))
        return Workspace(len(self.ranges) - 1)

    def _touch(self, name: str) -> None:
        """Extends the live ranges of everything that an access to `name` may reach to the current stage."""
        for found in self.places.get(name, ()):
            for handle in _handles(found):
                self.ranges[handle].last = max(self.ranges[handle].last, self.now)

    def _open(self, loop: Loop) -> None:
        in_place = carried_in_place(loop)
        for c in loop.carried:
            if c in in_place:
                self._keep(c)
                continue
            both = (self._reserve(c.param), self._reserve(c.param))
            axis, extent = loop.axis.name, loop.axis.extent
            first = self._far(c.init)
            param = Rotate(axis, extent, 0, both, first=first)
            self.places[c.param.name] = [param]
            if loop.ends_early:
                self.places[c.out.name] = [Final(param)]
                self.places.setdefault(c.result.name, []).append(Rotate(axis, extent, 1, both))
                continue
            last = self._far(c.out) if c.out.name in self.places else None
            if last is None and self.readers.get(c.out.name):
                last = self._allocate(c.out)
            found = Rotate(axis, extent, 1, both, last=last)
            self.places.setdefault(c.result.name, []).append(found)
        for t in looked_at(loop):
            self._touch(t.name)
        for k in loop.stacked:
            whole = self._far(k.out) if k.out.name in self.places else self._allocate(k.out)
            part = Slice(whole, loop.axis.name, k.value.nbytes)
            self.places.setdefault(k.value.name, []).append(part)

    def _keep(self, c: Carry) -> None:
        """A tensor that a loop updates in place has the place of the last update."""
        root = self._root(c.out.name)
        if not self.places.get(root):
            self._allocate(msgspec.structs.replace(c.out, name=root))
        for name in (c.param.name, c.out.name):
            self.places[name] = self.places[root]
        self._touch(root)

    def _fork(self, branch: Branch) -> None:
        """Both sides of a branch write their results to the place from which these are read."""
        self._touch(branch.predicate.name)
        for o in branch.outs:
            if o.out.name in self.places or self.readers.get(o.out.name):
                whole = self._far(o.out) if o.out.name in self.places else self._allocate(o.out)
                for made in (o.then, o.otherwise):
                    self.places.setdefault(made.name, []).append(whole)

    def _linger(self, outside: int, start: int) -> None:
        """Extends ranges used just before a branch, or by its condition, through the first stage of either side."""
        for r in self.ranges[:outside]:
            if r.last in (start - 1, start):
                r.last = max(r.last, self.now - 1)

    def _far(self, t: Tensor) -> Place:
        return next(p for p in self.places[t.name] if not isinstance(p, Shared))

    def _close(self, outside: int, start: int) -> None:
        """Extends to the whole loop the ranges of tensors that exist before its body and are used in it, and of carried tensors."""
        for r in self.ranges[:outside]:
            if r.last >= start:
                r.last = max(r.last, self.now - 1)

    def finish(self, *, reuse: bool) -> Memory:
        if not reuse:
            self.ranges = [_Range(r.size, 0, self.now) for r in self.ranges]
        offsets, total = _pack(self.ranges)
        places = {
            name: tuple(_settle(p, offsets) for p in found) for name, found in self.places.items()
        }
        return Memory(places, total)


def _readers(tree: Tree) -> dict[str, set[int]]:
    """Maps every tensor to its readers: stages by identity, loops, or 0 for a loop's boundary."""
    out: dict[str, set[int]] = {}
    for node in tree:
        match node:
            case Draft():
                for s in node.group.statements():
                    for t in used(s):
                        out.setdefault(t.name, set()).add(id(node))
            case Fork(branch, then, otherwise):
                for name, found in _readers((*then, *otherwise)).items():
                    out.setdefault(name, set()).update(found)
                ends = (t for o in branch.outs for t in (o.then, o.otherwise))
                for t in (branch.predicate, *ends):
                    out.setdefault(t.name, set()).add(0)
            case Nest(loop, body):
                for name, found in _readers(body).items():
                    out.setdefault(name, set()).update(found)
                if loop.count is not None:
                    out.setdefault(loop.count.name, set()).add(0)
                for c in loop.carried:
                    for t in (c.init, c.result):
                        out.setdefault(t.name, set()).add(0)
                for k in loop.stacked:
                    out.setdefault(k.value.name, set()).add(0)
    return out


def _pack(ranges: list[_Range]) -> tuple[list[int], int]:
    """Offsets by first fit, largest first. A range blocks its bytes for one stage more than it lives, so that reuse alone never requires
    a barrier."""
    offsets = [0] * len(ranges)
    placed: list[int] = []
    total = 0
    for number in sorted(range(len(ranges)), key=lambda i: -ranges[i].size):
        r = ranges[number]
        others = [
            o for o in placed if ranges[o].first <= r.last + 1 and r.first <= ranges[o].last + 1
        ]
        at = 0
        for other in sorted(others, key=lambda o: offsets[o]):
            if at + r.size <= offsets[other]:
                break
            at = max(at, offsets[other] + ranges[other].size)
        offsets[number] = at
        placed.append(number)
        total = max(total, at + r.size)
    return offsets, total


def _handles(p: Place) -> tuple[int, ...]:
    match p:
        case Workspace(handle) | Strip(handle):
            return (handle,)
        case Slice(of) | Final(of):
            return _handles(of)
        case Rotate():
            return tuple(h for q in _parts(p) for h in _handles(q))
        case _:
            return ()


def _parts(p: Rotate) -> tuple[Place, ...]:
    return (*p.places, *(q for q in (p.first, p.last) if q is not None))


def _settle(p: Place, offsets: list[int]) -> Place:
    """`p` with the byte offset in place of the handle."""
    match p:
        case Workspace(handle):
            return Workspace(offsets[handle])
        case Strip(handle):
            return msgspec.structs.replace(p, offset=offsets[handle])
        case Slice(of, axis, stride):
            return Slice(_settle(of, offsets), axis, stride)
        case Rotate():
            return msgspec.structs.replace(
                p,
                places=(_settle(p.places[0], offsets), _settle(p.places[1], offsets)),
                first=None if p.first is None else _settle(p.first, offsets),
                last=None if p.last is None else _settle(p.last, offsets),
            )
        case Final(of):
            settled = _settle(of, offsets)
            assert isinstance(settled, Rotate)
            return Final(settled)
        case _:
            return p
