"""Makes a Program the body of a loop: results become inputs of the next iteration, and states are updated in place.

This turns a decoder's step for one token into the kernel that generates all of them. As an iteration begins, it takes a snapshot of the
tensors that the host may change, so that waiting for the host's memory overlaps with the iteration's work.
"""

import msgspec

from monotile.analysis.uses import mentions
from monotile.errors import ScheduleError
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Load, Tensor
from monotile.ir.program import Carry, Compute, Loop, Program, compute, updates, used
from monotile.transform.names import Names
from monotile.transform.replace import renamed, replace_all


class Iterate(msgspec.Struct, frozen=True):
    """inputs: for each result of the Program, in order, the number of the input that it becomes in the next iteration. predicate: the
    number of a result, a scalar bool: the loop continues while it is true, and begins if its input is. bound: maximum number of
    iterations. unread: whether states that the Program overwrites without reading are kept as well. watched: numbers of the inputs
    that the host accesses meanwhile (`Program.watched`): states that it polls, and scalars that it may change."""

    inputs: tuple[int, ...]
    predicate: int
    bound: int
    unread: bool = True
    watched: tuple[int, ...] = ()


def iterate(program: Program, how: Iterate) -> Program:
    """The loop, with the results, and the states' new values, of the last iteration; with the inputs' if there is none.

    Raises ScheduleError where only some parts of a weight are states, for inputs that cannot be watched, and for models compiled for certain
    numbers.
    """
    taken = Names(program)
    watched = tuple(program.inputs[number].name for number in how.watched)
    program = msgspec.structs.replace(program, watched=watched)
    carried: list[Carry] = []

    def carry(init: Tensor, result: Tensor) -> Tensor:
        if (init.shape, init.dtype) != (result.shape, result.dtype):
            raise ScheduleError(
                f"{result.name} cannot be {init.name} in the next iteration: they differ in type"
            )
        param, out = (
            Tensor(taken.fresh(f"{init.name}_{what}"), init.shape, init.dtype)
            for what in ("now", "then")
        )
        carried.append(Carry(init, param, result, out))
        return out

    if len(program.results) > len(how.inputs):
        raise ScheduleError(
            "the model is compiled for numbers that were read from tensors (a shape, a list), and each iteration may have others"
        )
    pairs = zip(how.inputs, program.results, strict=True)
    results = [carry(program.inputs[number], result) for number, result in pairs]
    states: dict[str, Tensor] = {}
    read = mentions(program)
    for u in updates(program):
        (old,) = u.old
        if not how.unread and not read[old.name]:
            continue
        if old.shape != u.result.shape:
            raise ScheduleError(
                f"the state {u.name} cannot be kept from iteration to iteration: its layer is repeated, and reads its old value"
            )
        states[u.name] = carry(old, u.result)
    goes_on = program.results[how.predicate]
    assert goes_on.dtype is DType.BOOL
    assert not goes_on.shape
    moved = {c.init.name: renamed(c.param) for c in carried}
    snapshots = [_snapshot(t, taken) for t in program.inputs if t.name in program.changing]
    if moved.keys() & program.changing:
        raise ScheduleError("a result becomes an input that the host may change")
    moved |= {used(s)[0].name: renamed(s.out) for s in snapshots}
    body = (*snapshots, *replace_all(program.body, moved))
    axis = Axis(taken.fresh("token"), how.bound)
    loop = Loop(axis, tuple(carried), (), body, predicate=goes_on)
    outputs = (*results, *states.values())
    return msgspec.structs.replace(program, body=(loop,), outputs=outputs, states=tuple(states))


def _snapshot(t: Tensor, taken: Names) -> Compute:
    if t.shape:
        raise ScheduleError(f"{t.name} cannot be watched: it is neither a scalar nor a state")
    return compute(Tensor(taken.fresh(f"{t.name}_seen"), (), t.dtype), lambda: Load(t, ()))
