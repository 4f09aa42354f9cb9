"""Random numbers in a model's forward: types, distributions, and on what they depend."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim

import monotile
from monotile.errors import CaptureError
from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.philox import philox
from monotile.ir import scalar
from monotile.ir.dtype import DType
from monotile.ir.program import Loop, statements
from monotile.ir.verify import verify
from monotile.passes.programs import ProgramState
from monotile.passes.table import run
from monotile.pipeline import ANY_TARGET
from monotile.runtime.module import CompiledModule
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.frontend.against import Operators

MANY = 20_000
NONE = monotile.Options(cache=False)
Function = Callable[..., Any]


class Call(nn.Module):
    def __init__(self, f: Function) -> None:
        super().__init__()
        self.f = f

    def forward(self, *args: Tensor) -> Any:
        return self.f(*args)


def compiled(f: Function | nn.Module, *args: Tensor, seed: int = 1, **more: Any) -> CompiledModule:
    model = f if isinstance(f, nn.Module) else Call(f)
    return monotile.compile(model.eval(), args, target="cpu", options=NONE, **more).manual_seed(
        seed
    )


def distance(x: Tensor, below: Callable[[float], float]) -> float:
    """Kolmogorov and Smirnov's: sqrt(n) times the largest difference between the shares below a value. Over 2.5 once in 130,000."""
    values = x.double().flatten().sort().values
    want = torch.tensor([below(v) for v in values.tolist()], dtype=torch.float64)
    steps = torch.arange(len(values) + 1).double() / len(values)
    return float(max((want - steps[:-1]).max(), (steps[1:] - want).max()) * math.sqrt(len(values)))


def unlike(counts: Tensor, shares: Sequence[float]) -> float:
    """Pearson's chi-square."""
    expected = torch.tensor(shares).double() * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def test_philox_gives_its_published_numbers() -> None:
    """The vector in Random123's kat_vectors whose counter ends in zero; the evaluator's, PyTorch's and the kernel's own agree."""
    counter = torch.tensor([0, 1, -1, 1 << 40, -(1 << 63), 12345])
    key = torch.tensor([[0], [-1], [7 << 33 | 5]])
    found = philox(counter, key)
    assert int(found[0, 0]) & (2**64 - 1) == 0xE169C58D6627E8D5
    want = scalar.binary("philox", counter.numpy(), key.numpy(), DType.I64)
    np.testing.assert_array_equal(found.numpy(), want)
    assert torch.equal(compiled(philox, counter, key)(counter, key), found)


FUNCTIONS: dict[str, Function] = {
    "rand": lambda x: torch.rand(3, 4),
    "rand_like": torch.rand_like,
    "rand_half": lambda x: torch.rand_like(x, dtype=torch.float16),
    "randn": lambda x: torch.randn(2, 5, dtype=torch.float64),
    "randn_like": torch.randn_like,
    "randn_bfloat": lambda x: torch.randn(7, dtype=torch.bfloat16),
    "nothing": lambda x: torch.randn(0, 3),
    "number": lambda x: torch.randn(()),
    "normal_": lambda x: torch.empty(4).normal_(1.0, 2.0),
    "normal": lambda x: torch.normal(x, x.abs()),
    "normal_deviation": lambda x: torch.normal(0.0, x.abs()),
    "normal_mean": lambda x: torch.normal(x, 2.0),
    "normal_numbers": lambda x: torch.normal(0.0, 1.0, (3,)),
    "uniform_": lambda x: x.new_empty(4).uniform_(-1, 2),
    "log_normal_": lambda x: torch.empty(4).log_normal_(),
    "exponential_": lambda x: torch.empty(4).exponential_(2.0),
    "cauchy_": lambda x: torch.empty(4).cauchy_(),
    "geometric_": lambda x: torch.empty(4, dtype=torch.int64).geometric_(0.3),
    "random_": lambda x: torch.empty(4, dtype=torch.uint8).random_(),
    "random_to": lambda x: torch.empty(4).random_(8),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "bernoulli_p": lambda x: torch.bernoulli(x, 0.3),
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(x.sigmoid()),
    "bernoulli_double": lambda x: torch.bernoulli(x.sigmoid().double()),
    "randint": lambda x: torch.randint(3, (4,)),
    "randint_low": lambda x: torch.randint(-2, 5, (4,), dtype=torch.int32),
    "randint_like": lambda x: torch.randint_like(x, 9),
    "randint_like_low": lambda x: torch.randint_like(x, 2, 9),
    "randperm": lambda x: torch.randperm(7),
    "randperm_int": lambda x: torch.randperm(7, dtype=torch.int32),
    "multinomial": lambda x: torch.multinomial(x.sigmoid(), 1),
    "multinomial_some": lambda x: torch.multinomial(x.sigmoid(), 3),
    "multinomial_again": lambda x: torch.multinomial(x[0].sigmoid(), 9, replacement=True),
    "dropout": lambda x: F.dropout(x, 0.3, True),
    "dropout_all": lambda x: F.dropout(x, 1.0, True),
    "dropout_none": lambda x: F.dropout(x, 0.0, True),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.3, True),
    "dropout_channels": lambda x: F.dropout1d(x, 0.3, True),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x, hard=True),
    "sample": lambda x: torch.distributions.Normal(x, 2.0, validate_args=False).rsample(),
    "choice": lambda x: torch.distributions.Categorical(logits=x, validate_args=False).sample(),
}  # fmt: skip


def test_types_are_those_of_pytorch() -> None:
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    model = Operators(FUNCTIONS).eval()
    verify(capture(model, (x,)).program)
    want, found = model(x), compiled(model, x)(x)
    for name, y in want.items():
        assert (found[name].dtype, found[name].shape) == (y.dtype, y.shape), name
        assert torch.isfinite(found[name].double()).all(), name


def test_uniform_numbers() -> None:
    def draw(_: Tensor) -> tuple[Tensor, ...]:
        types = torch.float64, torch.float32, torch.float16, torch.bfloat16
        return (*(torch.rand(MANY, dtype=t) for t in types), torch.empty(MANY).uniform_(-1, 3))

    *plain, wide = compiled(draw, torch.zeros(1))(torch.zeros(1))
    for u, step in zip(plain, (53, 24, 11, 8), strict=True):
        assert 0 <= u.min() <= u.max() < 1
        assert ((u.double() * 2.0**step) % 1 == 0).all()
        assert abs(float(u.double().mean()) - 0.5) < 2.0**-step + 4 / math.sqrt(12 * MANY)
    assert distance(plain[0], lambda v: v) < 2.5
    assert distance(plain[1], lambda v: v) < 2.5
    assert distance(wide, lambda v: (v + 1) / 4) < 2.5


def test_other_distributions() -> None:
    def draw(_: Tensor) -> tuple[Tensor, ...]:
        first, second = torch.empty(2, MANY, dtype=torch.float64).unbind()
        return (
            torch.randn(MANY), torch.randn(MANY, dtype=torch.float64), torch.empty(MANY).normal_(3, 2),
            torch.empty(MANY).exponential_(2.0), first.exponential_(), second.cauchy_(1.0, 2.0), torch.empty(MANY).log_normal_(0.0, 1.0),
        )  # fmt: skip

    def below(v: float) -> float:
        return math.erfc(-v / math.sqrt(2)) / 2

    laws = (
        below, below, lambda v: below((v - 3) / 2), lambda v: -math.expm1(-2 * v), lambda v: -math.expm1(-v),
        lambda v: 0.5 + math.atan((v - 1) / 2) / math.pi, lambda v: below(math.log(v)),
    )  # fmt: skip
    for k, (x, law) in enumerate(zip(compiled(draw, torch.zeros(1))(torch.zeros(1)), laws, strict=True)):  # fmt: skip
        assert distance(x, law) < 2.5, k


def test_normal_numbers_are_independent_of_their_neighbours() -> None:
    x = compiled(lambda x: torch.randn(MANY), torch.zeros(1))(torch.zeros(1)).double()
    for lag in (1, 2, 3, 8):
        assert abs(float((x[lag:] * x[:-lag]).mean())) * math.sqrt(MANY) < 4.5
    assert abs(float((x**4).mean()) - 3) < 4.5 * math.sqrt(96 / MANY)
    assert x.abs().max() > 3.7


def test_whole_numbers() -> None:
    def draw(_: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.randint(7, (MANY,)), torch.randint(-3, 4, (MANY,)), torch.empty(MANY).random_(7),
            torch.empty(MANY, dtype=torch.uint8).random_(), torch.randint(0, 1 << 40, (MANY,)), torch.empty(MANY).geometric_(0.25),
        )  # fmt: skip

    small, low, floats, bytes_, large, trials = compiled(draw, torch.zeros(1))(torch.zeros(1))
    for x in (small, low + 3, floats.long()):
        assert unlike(torch.bincount(x, minlength=7), [1 / 7] * 7) < 38
    assert unlike(torch.bincount(bytes_.long(), minlength=256), [1 / 256] * 256) < 370
    assert distance(large / 2.0**40, lambda v: v) < 2.5
    shares = [0.25 * 0.75**k for k in range(9)]
    counts = torch.bincount(trials.long() - 1)
    assert unlike(torch.cat([counts[:9], counts[9:].sum()[None]]), [*shares, 1 - sum(shares)]) < 45


def test_choices() -> None:
    p = torch.tensor([[0.1, 0.0, 0.3, 0.6], [0.25, 0.25, 0.25, 0.25]])

    def draw(p: Tensor) -> tuple[Tensor, ...]:
        rows = p.expand(3000, 2, 4).reshape(6000, 4)
        return (
            torch.bernoulli(p.expand(5000, 2, 4)), torch.multinomial(rows, 1),
            torch.multinomial(p, 3000, replacement=True), torch.multinomial(rows, 3),
        )  # fmt: skip

    heads, one, again, three = compiled(draw, p)(p)
    assert ((heads.mean(0) - p).abs() <= 4.5 * (p * (1 - p) / 5000).sqrt()).all()
    for drawn in (one.reshape(3000, 2).T, again, three[:, 0].reshape(3000, 2).T):
        assert 1 not in drawn[0]
        assert unlike(torch.bincount(drawn[0], minlength=4)[[0, 2, 3]], [0.1, 0.3, 0.6]) < 28
        assert unlike(torch.bincount(drawn[1], minlength=4), [0.25] * 4) < 31
    assert (three.sort(-1).values[:, 1:] > three.sort(-1).values[:, :-1]).all()


def test_orders() -> None:
    def draw(_: Tensor) -> tuple[Tensor, Tensor]:
        noise = torch.rand(2, 50)  # as a masked autoencoder shuffles its patches
        return torch.randperm(50), torch.argsort(noise, dim=1)

    fast = compiled(draw, torch.zeros(1))
    orders = [y for _ in range(20) for x in fast(torch.zeros(1)) for y in x.reshape(-1, 50)]
    assert all(torch.equal(x.sort().values, torch.arange(50)) for x in orders)
    assert torch.stack(orders).unique(dim=0).shape[0] == len(orders)
    assert unlike(torch.bincount(torch.stack(orders)[:, 0] // 10, minlength=5), [0.2] * 5) < 31


def test_dropout_keeps_its_share_and_scales_it() -> None:
    x = torch.rand(100, 200) + 1
    y, channels = compiled(lambda x: (F.dropout(x, 0.3, True), F.dropout1d(x[None], 0.5, True)), x)(x)  # fmt: skip
    kept = y != 0
    assert abs(float(kept.double().mean()) - 0.7) < 4.5 * math.sqrt(0.21 / x.numel())
    torch.testing.assert_close(y[kept], x[kept] / 0.7)
    whole = channels[0] != 0
    assert torch.equal(whole.all(-1), whole.any(-1))
    assert 20 < int(whole.all(-1).sum()) < 80


def test_a_call_draws_anew_and_a_seed_begins_anew() -> None:
    x = torch.zeros(64)
    fast = compiled(lambda x: (torch.rand_like(x), torch.rand_like(x)), x, seed=5)
    first, second = fast(x), fast(x)
    numbers = torch.cat([*first, *second])
    assert numbers.unique().numel() == numbers.numel()
    assert fast.random_state is not None
    assert fast.random_state.tolist() == [5, 2]
    assert all(map(torch.equal, fast.manual_seed(5)(x), first))
    assert all(map(torch.equal, fast(x), second))
    assert not torch.equal(fast.manual_seed(6)(x)[0], first[0])
    fast.manual_seed(2**64 - 1)
    assert fast.random_state.tolist() == [-1, 0]
    plain = compiled(lambda x: x + 1, x)
    assert plain.random_state is None
    assert plain.manual_seed(3) is plain


def test_the_seed_is_that_of_pytorch(tmp_path: Path) -> None:
    """Also of a module that comes from the cache; one that was saved goes on."""
    x, options = torch.zeros(8), monotile.Options(cache_dir=str(tmp_path / "cache"))
    model = nn.Sequential(nn.Linear(8, 8), Call(lambda y: y + torch.randn_like(y))).eval()
    found: list[Tensor] = []
    for seed in (11, 12, 11):
        torch.manual_seed(seed)
        fast = monotile.compile(model, (x,), target="cpu", options=options)
        assert fast.random_state is not None
        assert fast.random_state.tolist() == [seed, 0]
        found.append(fast(x))
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])
    fast.save(tmp_path / "saved")
    loaded = monotile.load(tmp_path / "saved")
    assert torch.equal(loaded(x), fast(x))


class Noisy(nn.Module):
    """Layers that differ in their weights alone, and draw."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        drawn: list[Tensor] = []
        for layer in self.layers:
            noise = torch.randn_like(x)
            x = torch.tanh(layer(x)) + noise
            drawn.append(x)
        return x, drawn


def test_rolled_layers_draw_different_numbers() -> None:
    x, model = torch.zeros(3, 16), Noisy().eval()
    captured = capture(model, (x,))
    rolled = run(ANY_TARGET, ProgramState(captured.program, NONE, parameters=frozenset(captured.parameters)))  # fmt: skip
    assert any(isinstance(s, Loop) for s in statements(rolled.program.body))
    _, states = compiled(model, x)(x)
    noise = list[Tensor]()
    for layer, y in zip(model.layers, states, strict=True):
        noise.append(y - torch.tanh(layer(x)))
        x = y
    numbers = torch.stack(noise).flatten()
    assert distance(numbers, lambda v: math.erfc(-v / math.sqrt(2)) / 2) < 2.5
    assert torch.corrcoef(torch.stack(noise).reshape(4, -1)).fill_diagonal_(0).abs().max() < 0.6


def test_iterations_draw_different_numbers() -> None:
    def steps(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def step(c: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
            return c + 1, torch.rand(8)

        def more(k: Tensor, _: Tensor) -> Tensor:
            return k < 5

        def another(k: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return k + 1, y.index_copy(0, k[None], torch.rand(1, 8))

        zero = torch.zeros((), dtype=torch.int64)
        stacked = scan(step, torch.zeros(1), x)[1]
        rows = while_loop(more, another, (zero, torch.zeros(5, 8)))[1]
        side = torch.cond(x.sum() > 0, lambda x: torch.rand(8), lambda x: torch.rand(8) + 1, (x,))
        return stacked, rows, side

    fast = compiled(steps, torch.zeros(6, 1))
    numbers = torch.cat([y.flatten() for _ in range(2) for y in fast(torch.zeros(6, 1))])
    assert numbers.unique().numel() == numbers.numel()


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean, self.scale, self.out = (nn.Linear(12, 12) for _ in range(3))

    def forward(self, x: Tensor, by: Tensor) -> tuple[Tensor, ...]:
        mean, deviation = self.mean(x), torch.exp(0.5 * self.scale(x)) * by
        noise = torch.randn_like(deviation)
        z = mean + noise * deviation
        return mean, noise, z, self.out(torch.relu(z))


def test_a_sample_of_a_variational_autoencoder() -> None:
    x, model = torch.randn(5, 12), Encoder().eval()
    fast = compiled(model, x, torch.ones(()))
    mean, noise, z, _ = fast(x, torch.zeros(()))
    assert torch.equal(z, mean)
    mean, noise, z, out = fast(x, torch.ones(()))
    model.double()
    with torch.no_grad():
        deviation = torch.exp(0.5 * model.scale(x.double()))
        want = model.mean(x.double()) + noise.double() * deviation
        torch.testing.assert_close(z.double(), want, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(out.double(), model.out(torch.relu(want)), atol=1e-5, rtol=1e-5)


def test_sizes_of_the_call() -> None:
    """Kernels for classes of sizes go on with one state."""
    shapes = (({0: Dim("n", min=1, max=512)},),)
    fast = compiled(lambda x: (x + torch.rand_like(x), torch.randn(x.shape[0])), torch.zeros(64, 3), dynamic_shapes=shapes)  # fmt: skip
    drawn = [fast(torch.zeros(n, 3)) for n in (500, 2, 100, 1, 500)]
    assert [y.shape[0] for _, y in drawn] == [500, 2, 100, 1, 500]
    firsts = torch.stack([x[0, 0] for x, _ in drawn])
    assert firsts.unique().numel() == len(drawn)
    assert distance(drawn[0][0], lambda v: v) < 2.5


def test_a_generator_is_refused() -> None:
    """It has a seed of its own, that a compiled model could not keep to."""
    generator = torch.Generator()
    model = Call(lambda x: x[torch.randperm(len(x), generator=generator)])
    with pytest.raises(CaptureError, match=r"test_random.*Generator|Generator, at test_random"):
        capture(model, (torch.zeros(4),))


def test_a_model_in_training_mode_is_still_refused() -> None:
    model = Call(lambda x: F.dropout(x, 0.5, True))
    with pytest.raises(CaptureError, match=r"model\.eval\(\)"):
        capture(model.train(), (torch.zeros(3),))
    exported = torch.export.export(model.eval(), (torch.zeros(3),))
    with pytest.raises(CaptureError, match=r"model\.eval\(\)"):
        capture(exported)
    with pytest.raises(CaptureError, match=r"model\.eval\(\)"):
        capture(Call(lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.1)).eval(), (torch.zeros(1, 3, 4),))  # fmt: skip


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
def test_both_targets_draw_alike() -> None:
    def draw(x: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.rand_like(x), torch.rand(5, dtype=torch.float64), torch.randint(9, (7,)), torch.randperm(11),
            torch.multinomial(x[0] + 1, 3), F.dropout(x + 1, 0.5, True), torch.randn_like(x),
        )  # fmt: skip

    x = torch.zeros(9, 33)
    model = Call(draw).eval()
    cuda, cpu = Emulated(model, (x,)), compiled(model, x, seed=0)
    assert cpu.random_state is not None
    *exact, normal = cuda(x)
    *same, close = cpu(x)
    assert all(map(torch.equal, exact, same))
    torch.testing.assert_close(normal, close, atol=2e-6, rtol=2e-6)
    assert cuda.states["monotile.random"].tolist() == cpu.random_state.tolist() == [0, 1]
