"""A call that goes on while the host watches it, tells it to stop, or leaves."""

import subprocess
import sys
import time

import pytest
import torch
from torch import Tensor, nn

import monotile
from monotile.compile import compile_loop
from monotile.errors import IndexOutOfRangeError, InputError
from monotile.runtime.module import CompiledModule
from monotile.targets.backend import Running
from monotile.transform.iterate import Iterate

OPTIONS = monotile.Options(cache=False)
ENDLESS = (1 << 31) - 1


class Count(nn.Module):
    """Counts from n on, and looks each number modulo 64 up in a table."""

    def forward(self, n: Tensor, goes_on: Tensor, news: Tensor, stop: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:  # fmt: skip
        del goes_on
        place = table.index_select(0, (n % 64).reshape(1))
        news.index_copy_(0, place, n.reshape(1))
        return n + 1, stop == 0


def call(table: Tensor | None = None) -> tuple[Tensor, ...]:
    table = torch.arange(64) if table is None else table
    return torch.tensor(0), torch.tensor(True), torch.full((64,), -1), torch.tensor(0), table


@pytest.fixture(scope="module")
def count() -> CompiledModule:
    how = Iterate(inputs=(0, 1), predicate=1, bound=ENDLESS, watched=(2, 3))
    return compile_loop(Count().eval(), call(), how, target="cpu", options=OPTIONS)


def until(news: Tensor, least: int) -> int:
    """The greatest number once it is at least that."""
    end = time.monotonic() + 60
    while (found := int(news.max())) < least:
        assert time.monotonic() < end, "nothing is seen of a kernel that runs"
        time.sleep(1e-3)
    return found


def test_the_host_sees_and_is_seen(count: CompiledModule) -> None:
    args = call()
    running: Running = count.begin(*args)
    first = until(args[2], 0)
    later = until(args[2], first + 1)
    assert not running.finished()
    args[3].fill_(1)
    n, goes_on = running.result()
    assert running.finished()
    assert later <= n < ENDLESS
    assert not goes_on
    assert args[2].max() == n - 1


def test_a_call_that_waits_takes_the_same(count: CompiledModule) -> None:
    args = call()
    args[3].fill_(1)
    assert count(*args)[0] == 1
    assert args[2][0] == 0


def test_what_goes_wrong_is_raised_with_the_result(count: CompiledModule) -> None:
    args = call(torch.full((64,), 64))
    args[3].fill_(1)
    running = count.begin(*args)
    with pytest.raises(IndexOutOfRangeError):
        running.result()
    assert running.finished()


def test_a_copy_would_not_be_seen(count: CompiledModule) -> None:
    n, goes_on, _, stop, table = call()
    for news in (torch.full((128,), -1)[::2], torch.full((65,), -1)[1:]):
        with pytest.raises(InputError, match="is used during the call"):
            count(n, goes_on, news, stop, table)


def test_what_is_watched_is_saved(count: CompiledModule, tmp_path) -> None:
    count.save(tmp_path / "count")
    loaded = monotile.load(tmp_path / "count")
    assert loaded.artifact.watched == count.artifact.watched == ("news_1", "stop")


def test_the_process_ends_while_a_kernel_runs(count: CompiledModule, tmp_path) -> None:
    count.save(tmp_path / "count")
    code = f"""
import time, torch, monotile
args = (torch.tensor(0), torch.tensor(True), torch.full((64,), -1), torch.tensor(0), torch.arange(64))
monotile.load({str(tmp_path / "count")!r}).begin(*args)
while args[2].max() < 1000:
    time.sleep(1e-3)
args[3].fill_(1)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
