"""Choosers by themselves, and what a spec looks like."""

from pathlib import Path

import pytest

from monotile.choice.chooser import MODEL, Chooser, Prefer, Question, Record, Replay
from monotile.choice.digest import digest_program
from monotile.choice.spec import Key, from_json, load_spec, plain, to_json
from monotile.errors import ChoiceError, InternalError
from monotile.ir.expr import Axis, Load, add, idx
from monotile.ir.program import Compute, Program
from monotile.kernels.common.operand import Operand
from monotile.kernels.matmul.method import Matmul
from monotile.kernels.rowwise.method import HoldRows
from monotile.plan.nodes import Step
from monotile.schedule.keys import step_value
from tests.schedule import programs as p

COSTS = {"short": 2.0, "long": 1.0, "equal": 1.0}
WAYS = tuple(COSTS)


def question(shape: str = "a", around: str = "", kind: str = "cut") -> Question[str]:
    return Question(
        kind, lambda: shape, COSTS.__getitem__, lambda w: (w, 1), "cpu", 2,
        (lambda: around) if around else None,
    )  # fmt: skip


def key(shape: str = "a", within: str = "") -> Key:
    return Key(kind="cut", shape=shape, target="cpu", workers=2, within=within)


def never() -> str:
    raise AssertionError("the model looks at costs alone")


def test_the_model_takes_the_first_of_the_cheapest() -> None:
    quiet = Question("cut", never, COSTS.__getitem__, lambda _: never())
    assert MODEL.choose(quiet, WAYS) == "long"
    assert MODEL.choose(quiet, ()) is None


def test_ways_in_order_are_not_all_looked_at() -> None:
    ranked = Question("cut", never, lambda _: 0.0, lambda _: never(), ranked=True)
    ways = iter(WAYS)
    assert MODEL.choose(ranked, ways) == "short"
    assert next(ways) == "long"


def test_a_preference_is_for_one_kind() -> None:
    chooser = Prefer("cut", lambda value: value[0] in ("short", "equal"))
    assert chooser.choose(question(), WAYS) == "equal"
    assert chooser.choose(question(kind="blocks"), WAYS) == "long"
    assert Prefer("cut", lambda _: False).choose(question(), WAYS) == "long"
    both = Prefer("blocks", lambda value: value == ["short", 1], chooser)
    assert both.choose(question(kind="blocks"), WAYS) == "short"
    assert both.choose(question(), WAYS) == "equal"


def test_what_is_recorded_is_replayed() -> None:
    record = Record(Prefer("cut", lambda value: value[0] == "short"))
    assert record.choose(question(), WAYS) == "short"
    assert record.choose(question("b"), ()) is None
    assert record.spec == {key(): ["short", 1]}
    again = Replay(from_json(to_json(record.spec)), None)
    assert again.choose(question(), WAYS) == "short"
    assert again.choose(question("b"), ()) is None


def test_another_answer_elsewhere_in_a_program() -> None:
    record = Record(MODEL)
    assert record.choose(question(around="here"), WAYS) == "long"
    assert record.choose(question(around="there"), WAYS[:1]) == "short"
    assert record.spec == {key(): ["long", 1], key(within="there"): ["short", 1]}
    again = Replay(record.spec, None)
    assert again.choose(question(around="there"), WAYS) == "short"
    assert again.choose(question(around="elsewhere"), WAYS) == "long"
    with pytest.raises(InternalError, match="all that the choice depends on"):
        record.choose(question(), WAYS[:1])


def test_what_a_spec_does_not_say() -> None:
    assert Replay({}).choose(question(), WAYS) == "long"
    assert Replay({}, Prefer("cut", lambda v: v[0] == "short")).choose(question(), WAYS) == "short"
    with pytest.raises(ChoiceError, match="do not say"):
        Replay({}, None).choose(question(), WAYS)


def test_a_way_that_there_is_not() -> None:
    replay = Replay({key(): ["round", 1]})
    with pytest.raises(ChoiceError, match=r'no such way(.|\n)*"round"(.|\n)*3 others(.|\n)*"long"'):
        replay.choose(question(), WAYS)


def test_a_spec_is_json(tmp_path: Path) -> None:
    spec = {key(): {"grid": [1, 2]}, key("b", "c"): False, Key(kind="roll order", shape="d"): []}
    path = tmp_path / "choices.json"
    path.write_text(to_json(spec))
    assert load_spec(path) == spec == load_spec(spec)
    assert list(load_spec(str(path))) == list(spec)
    path.write_text('[{"kind": "cut"}]')
    with pytest.raises(ChoiceError, match="holds no choices"):
        load_spec(path)
    with pytest.raises(ChoiceError, match="holds no choices"):
        load_spec(tmp_path / "absent.json")


def named(names: str, extent: int = 4, offset: int = 0) -> Program:
    """What an iteration of a loop copies, by any names."""
    x, y, axis, inner = (f"{names}{n}" for n in "xyai")
    source, out = p.tensor(x, 8, extent), p.tensor(y, extent)
    i = Axis(inner, extent)
    value = Load(source, (add(Axis(axis, 4), idx(offset)), i))
    return Program((source,), (), (Compute(out, (i,), (), None, value),), (out,))


def test_a_digest_is_of_structure() -> None:
    first = digest_program(named("a"))
    assert first == digest_program(named("b"))
    others = {digest_program(named("a", 5)), digest_program(named("a", 4, 1)), first}
    assert len(others) == 3
    assert digest_program(named("a"), 1) != first


def test_it_is_the_same_in_every_process() -> None:
    assert digest_program(named("a")) == "d5a4c8b349f8ea60"


@pytest.mark.parametrize("chooser", [MODEL, Record(), Replay({})])
def test_without_anything_to_say_they_do_as_the_model(chooser: Chooser) -> None:
    assert chooser.choose(question("z"), WAYS) == "long"


def test_only_names_become_numbers() -> None:
    """A tensor may be called what a method is, or a word of it."""
    side = Operand("k", 4, "async")
    product = Matmul(0, 1, (0,), 16, 8, 32, "fma", side, side)
    value = plain(step_value(Step(("matmul",), (), product), {"matmul": 0, "k": 1, "fma": 2}))
    assert value == {"computes": [0], "dims": [], "method": plain(product)}
    rows = HoldRows(1, 32, 8, 1, (64,), ("total", "hold_rows"), (("squares", "total"),))
    numbers = {"total": 0, "hold_rows": 1, "squares": 2}
    method = plain(step_value(Step(("total", "hold_rows"), (), rows), numbers))["method"]
    assert (method["type"], method["order"], method["moments"]) == ("hold_rows", [0, 1], [[2, 0]])
