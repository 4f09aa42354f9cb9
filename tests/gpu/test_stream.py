"""Tokens of a kernel that runs on a GPU: seen early, the same as without a look, and no slower; and a kernel that stops when told to."""

import time

import pytest
import torch

from monotile.compile import compile_loop
from monotile.errors import InputError
from monotile.generation.generator import Generator, generator
from monotile.runtime.tensors import host_tensor
from monotile.transform.iterate import Iterate
from tests.generation.test_generator import SIZES, prompt, transformers
from tests.runtime.test_begin import ENDLESS, Count, call, until

pytestmark = pytest.mark.gpu
CAPACITY = 8000


@pytest.fixture(scope="module")
def lm() -> Generator:
    torch.manual_seed(0)
    sizes = SIZES | {"hidden_size": 256, "num_hidden_layers": 4, "max_position_embeddings": CAPACITY}  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**sizes))
    return generator(model.eval().requires_grad_(False).cuda(), CAPACITY)


def test_the_host_sees_and_is_seen() -> None:
    how = Iterate(inputs=(0, 1), predicate=1, bound=ENDLESS, watched=(2, 3))
    example = tuple(x.cuda() for x in call())
    count = compile_loop(Count().eval(), example, how)
    device = example[0].device
    news, stop = (
        host_tensor((64,), -1, torch.int64, device),
        host_tensor((), 0, torch.int64, device),
    )
    with pytest.raises(InputError, match="page-locked"):
        count(*example[:2], torch.full((64,), -1), stop, example[4])
    running = count.begin(*example[:2], news, stop, example[4])
    first = until(news, 0)
    later = until(news, first + 1)
    assert not running.finished()
    stop.fill_(1)
    n, goes_on = running.result()
    assert later <= int(n) < ENDLESS
    assert not goes_on
    assert int(news.max()) == int(n) - 1


def test_tokens_come_early_and_are_those_of_generate(lm: Generator) -> None:
    ids = prompt(5).cuda()
    how = {"temperature": 1.0, "top_k": 50, "seed": 3}
    whole = lm.generate(ids, 200, **how)[0, 5:].tolist()
    assert list(lm.stream(ids, 200, **how)) == whole
    tokens = lm.stream(ids, CAPACITY - 5, **how)
    assert [next(tokens) for _ in range(3)] == whole[:3]
    begin = time.perf_counter()
    tokens.close()
    assert time.perf_counter() - begin < 0.1
    assert 7 <= lm.length < CAPACITY // 2
    begun = lm.generate(ids, lm.length - 4, **how)
    more = prompt(3, 2).cuda()
    followed = list(lm.stream(more, 5, follow=True))
    assert followed == lm.generate(torch.cat((begun, more), 1), 5)[0, -5:].tolist()


def test_who_looks_costs_little(lm: Generator) -> None:
    """Against a call that no one looks at; the bound leaves room for a machine that is shared."""
    ids, count = prompt(5).cuda(), 2000

    def seconds(f: object) -> float:
        begin = time.perf_counter()
        f()
        return time.perf_counter() - begin

    lm.generate(ids, 1)
    silent = min(seconds(lambda: lm.generate(ids, count)) for _ in range(5))
    seen = min(seconds(lambda: list(lm.stream(ids, count))) for _ in range(5))
    print(f"{1e6 * silent / count:.1f} us a token, {1e6 * seen / count:.1f} us as a stream")  # noqa: T201
    assert seen < 1.2 * silent
