"""What a model's code keeps for its next call does not come from a trace."""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import Dim
from torch.utils import _pytree as pytree

import monotile
from tests.frontend.against import check

T = torch.Tensor
TABLES: dict[int, T] = {}
last: T | None = None


def positions(x: T) -> T:
    return torch.arange(x.shape[-1], dtype=x.dtype)


@functools.cache
def cached(n: int) -> T:
    return torch.arange(n).float()


class Table:
    """An object of the user's own."""

    shared: ClassVar[dict[str, T]] = {}
    made: ClassVar[T | None] = None

    def __init__(self) -> None:
        self.rows: list[T] = []
        self.calls = 0

    @staticmethod
    @functools.lru_cache(4)
    def cached(n: int) -> T:
        return torch.arange(n).float()


class Keeping(nn.Module):
    """Keeps its positions in every place that Python has."""

    def __init__(self) -> None:
        super().__init__()
        self.by_device: dict[str, T] = {}
        self.nested: list[dict[str, T]] = [{}]
        self.table = Table()

    def forward(self, x: T) -> T:
        global last  # noqa: PLW0603
        n = x.shape[-1]
        if "cpu" not in self.by_device:
            self.by_device["cpu"] = self.nested[0]["cpu"] = positions(x)
        if not self.table.rows:
            self.table.rows.append(positions(x))
        self.table.calls += 1
        if n not in TABLES:
            TABLES[n] = positions(x)
        if last is None:
            last = positions(x)
        if Table.made is None:
            Table.made = Table.shared["cpu"] = positions(x)
        kept = self.by_device["cpu"] + self.nested[0]["cpu"] + self.table.rows[0] + TABLES[n]
        return x * kept + last + Table.made * Table.shared["cpu"] + cached(n) + Table.cached(n)


def holds() -> list[object]:
    return [TABLES, last, Table.shared, Table.made]


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    global last  # noqa: PLW0603
    TABLES.clear()
    Table.shared.clear()
    Table.made = last = None
    cached.cache_clear()
    Table.cached.cache_clear()


def test_a_compilation_leaves_nothing_behind() -> None:
    model, x = Keeping().eval(), torch.randn(2, 8)
    compiled = monotile.compile(model, (x,))
    assert holds() == [{}, None, {}, None]
    assert model.by_device == {}
    assert model.nested == [{}]
    assert vars(model.table) == {"rows": [], "calls": 0}
    torch.testing.assert_close(compiled(x), model(x))  # which keeps tensors now
    again = monotile.compile(model, (x,))
    torch.testing.assert_close(again(x), model(x))
    assert model.table.calls == 2


def test_what_a_call_has_kept_stays() -> None:
    model, x = Keeping().eval(), torch.randn(2, 8)
    wanted = model(x)
    before: list[object] = [*holds(), dict(model.by_device), list(model.table.rows), cached(8)]
    torch.testing.assert_close(monotile.compile(model, (x,))(x), wanted)
    now: list[object] = [*holds(), model.by_device, model.table.rows, cached(8)]
    assert all(a is b or a == b for a, b in zip(before, now, strict=True))


def test_a_trace_that_fails_leaves_nothing_behind() -> None:
    class Failing(Keeping):
        def forward(self, x: T) -> T:
            found = super().forward(x)
            raise ValueError(f"not for {tuple(found.shape)}")

    model = Failing().eval()
    with pytest.raises(monotile.CaptureError, match="not for"):
        monotile.compile(model, (torch.randn(2, 8),))
    assert not any(isinstance(x, FakeTensor) for x in pytree.tree_leaves(holds()))
    assert model.table.calls == 0


class Lazy(dict[str, Callable[[], T]]):
    """A dictionary with a way of its own to be read."""

    def __getitem__(self, key: str) -> T:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().__getitem__(key)()


def broken() -> T:
    raise LookupError


def test_a_dictionary_of_its_own_kind_is_not_read() -> None:
    class Choosing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ways = Lazy(twice=lambda: torch.tensor(2.0), broken=broken)

        def forward(self, x: T) -> T:
            return x * self.ways["twice"]

    x = torch.randn(3)
    torch.testing.assert_close(monotile.compile(Choosing().eval(), (x,))(x), x * 2)


class Absent(ModuleType):
    """A module of an optional dependency that is not there, as SpeechBrain has them."""

    def __getattr__(self, name: str) -> object:
        raise ImportError(f"{self.__name__} is not installed")


absent = Absent("optional")


class Irrep(tuple[int, int]):
    """As e3nn has them: a tuple of which nobody may ask how long it is."""

    __slots__ = ()

    def __len__(self) -> int:
        raise NotImplementedError


class Holding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.irreps = [Irrep((1, 2))]

    def forward(self, x: T) -> T:
        return x + self.irreps[0][1]


def test_objects_that_answer_no_question() -> None:
    check(Holding().eval(), (torch.randn(3),))


class OfTypes(nn.Module):
    """Takes indices, or what they are the indices of, as Enformer does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x: T) -> T:
        if type(x) == torch.Tensor and x.dtype == torch.long:  # noqa: E721
            x = nn.functional.one_hot(x, 4).float()
        if type(self.weight) is nn.Parameter and isinstance(type(x), type):
            x = x * type("Made", (), {"scale": 2})().scale
        return x * self.weight


def test_traced_tensors_are_of_the_types_they_run_with() -> None:
    check(OfTypes().eval(), (torch.tensor([1, 3, 0]),))
    assert not {"type", "len"} & globals().keys()


class Lengths(nn.Module):
    def forward(self, x: T) -> T:
        rows = len(x)
        return x.reshape(rows, 2, -1).sum(1) / len(x)


def test_the_length_of_a_tensor_is_a_size_of_the_call() -> None:
    model, rows = Lengths().eval(), Dim("rows", min=1, max=8)
    compiled = monotile.compile(model, (torch.randn(4, 6),), dynamic_shapes=({0: rows},))
    for n in (1, 3, 8):
        x = torch.randn(n, 6)
        torch.testing.assert_close(compiled(x), model(x))
