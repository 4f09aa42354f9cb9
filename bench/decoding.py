"""Decoding with language models: one token with a static cache, whole answers, prompts; beside PyTorch on the same cache.

    python -m bench.decoding [CASE ...] [--rival eager|compile|max-autotune]... [--out FILE]

Each time stands beside what its bytes take at the bandwidth of device memory as measured in the same run: all parameters but
embeddings that are only looked up, and the live part of the cache. An answer is compared with float32 first.
"""

import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
import torch
import transformers
from torch import nn

import monotile
from bench.zoo.decoders import gpt2, llama_1b
from bench.zoo.weights import build
from monotile.compare.results import Entry, Floor, Log, Timing
from monotile.compare.worker import about_device
from monotile.generation.decoder import Decoder
from monotile.runtime.accuracy import error
from monotile.runtime.measure import Times, graphed, measure

PROMPT, ANSWER = 32, 128  # tokens


class Case(NamedTuple):
    """make: of the model. capacity, position: of the cache, and of the token that is read; position 0: a whole answer; less: a prompt of so many."""

    make: Callable[[torch.dtype], nn.Module]
    dtype: torch.dtype
    capacity: int
    position: int


def qwen3(dtype: torch.dtype) -> nn.Module:
    """The shape of Qwen3 0.6B."""
    c = transformers.Qwen3Config(
        vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, tie_word_embeddings=True,
    )  # fmt: skip
    return build(lambda: transformers.Qwen3ForCausalLM(c), dtype)


def llama_8b(dtype: torch.dtype) -> nn.Module:
    """The shape of Llama 3.1 8B."""
    c = transformers.LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, rms_norm_eps=1e-5, max_position_embeddings=8192,
    )  # fmt: skip
    return build(lambda: transformers.LlamaForCausalLM(c), dtype)


def llama(dtype: torch.dtype) -> nn.Module:
    return llama_1b(dtype, max_position_embeddings=8192)[0]


CASES = {
    "llama_1b": Case(llama, torch.bfloat16, 1024, 511),
    "llama_1b_4000": Case(llama, torch.bfloat16, 4096, 4000),
    "llama_1b_answer": Case(llama, torch.bfloat16, 1024, 0),
    "llama_1b_prompt": Case(llama, torch.bfloat16, 1024, -128),
    "qwen3_0_6b": Case(qwen3, torch.bfloat16, 1024, 511),
    "gpt2": Case(lambda dtype: gpt2(dtype)[0], torch.float16, 1024, 511),
    "llama_8b": Case(llama_8b, torch.bfloat16, 1024, 511),
}


def bandwidth(device: torch.device) -> float:
    """Bytes a second that a sum over 2 GB reads."""
    x = torch.empty(1 << 28, dtype=torch.int64, device=device)
    return x.nbytes / measure(x.sum, device, 0.3).median


def floor(decoder: Decoder, case: Case, rate: float) -> Floor:
    """The bytes of a token: weights, and keys and values up to it."""
    tied = (
        decoder.model.get_output_embeddings().weight is decoder.model.get_input_embeddings().weight
    )  # type: ignore[operator]
    held = sum(p.nbytes for p in decoder.parameters())
    held -= 0 if tied else decoder.model.get_input_embeddings().weight.nbytes  # type: ignore[operator]
    caches = sum(b.nbytes for n, b in decoder.named_buffers() if n.startswith(("key_cache", "value_cache")))  # fmt: skip
    total = held + caches * max(case.position, 1) // case.capacity
    return Floor(total, 2 * held // case.dtype.itemsize, total / rate * 1e6)


def timing(found: Times, compile_seconds: float | None = None) -> Timing:
    took = None if compile_seconds is None else compile_seconds * 1e6
    return Timing(found.median * 1e6, found.median * 1e6, took, None, found.samples, None)


def one_token(
    case: Case, rivals: tuple[str, ...], rate: float, device: torch.device
) -> dict[str, Any]:
    """A token at its position, every call in a CUDA graph."""
    with device:
        model = case.make(case.dtype)
    decoder = Decoder(model, 1, case.capacity)
    for name, b in decoder.named_buffers():
        if name.startswith(("key_cache", "value_cache")):
            b.normal_()
    call = {
        "input_ids": torch.full((1, 1), 17, device=device),
        "cache_position": torch.tensor([case.position], device=device),
    }
    with torch.no_grad():
        right = rebound(copy.deepcopy(decoder).float())(**call)
        began = time.perf_counter()
        fast = monotile.compile(decoder, (), kwargs=call)
        took = time.perf_counter() - began
        runs: dict[str, Callable[[], Any]] = {"ours": lambda: fast(**call)}
        for rival in rivals:
            mode = {"max-autotune": "max-autotune-no-cudagraphs"}.get(rival)
            other = decoder if rival == "eager" else torch.compile(decoder, mode=mode)
            runs[rival] = lambda other=other: other(**call)
        errors = {n: error(run().float(), right) for n, run in runs.items()}
        del right
        times = {n: measure(graphed(run), device, 0.5, 20) for n, run in runs.items()}
    return {
        "ours": timing(times["ours"], took),
        "rivals": {n: timing(times[n]) for n in rivals},
        "errors": errors,
        "floor": floor(decoder, case, rate),
    }


def rebound(wide: Any) -> Any:
    """A copied decoder whose cache has the copied buffers."""
    for i, layer in enumerate(wide.cache.layers):
        for kind, name in (("keys", "key_cache"), ("values", "value_cache"), ("cumulative_length", "cumulative_length")):  # fmt: skip
            setattr(layer, kind, getattr(wide, f"{name}_{i}"))
    return wide


def answer(case: Case, rate: float, device: torch.device) -> dict[str, Any]:
    """Microseconds for each token of whole calls; transformers' eager `generate` beside it."""
    with device:
        model = case.make(case.dtype)
    began = time.perf_counter()
    lm = monotile.generator(model, case.capacity)
    took = time.perf_counter() - began
    ids = torch.randint(0, 1000, (1, PROMPT), device=device)
    ours = lm.generate(ids, ANSWER, eos_token_id=[])

    def theirs() -> Any:
        return model.generate(
            ids, max_new_tokens=ANSWER, do_sample=False, eos_token_id=None, pad_token_id=0
        )  # type: ignore[operator]

    same = (ours[0] == theirs()[0, : ours.shape[1]]).float().mean().item()
    both = [measure(run, device, 1.0, 3) for run in (lambda: lm.generate(ids, ANSWER, eos_token_id=[]), theirs)]  # fmt: skip
    each = [Timing(t.median * 1e6 / ANSWER, None, None, None, t.samples, None) for t in both]
    each[0] = msgspec.structs.replace(each[0], compile=took * 1e6)
    return {
        "ours": each[0], "rivals": {"transformers": each[1]},
        "errors": {"ours": 1 - same, "transformers": 0.0}, "floor": floor(lm.decoder, case, rate),
    }  # fmt: skip


def prompt(
    case: Case, rivals: tuple[str, ...], rate: float, device: torch.device
) -> dict[str, Any]:
    """A whole prompt into the cache."""
    with device:
        model = case.make(case.dtype)
    count = -case.position
    lm = monotile.generator(model, case.capacity)
    assert lm.reader is not None
    ids = torch.randint(0, 1000, (case.capacity,), device=device)
    decoder = Decoder(model, 1, case.capacity)
    where = torch.arange(count, device=device)
    begin, more, end = torch.tensor(0, device=device), torch.tensor(True, device=device), torch.tensor(count, device=device)  # fmt: skip
    with torch.no_grad():
        kernel = lm.reader.kernel
        runs: dict[str, Callable[[], Any]] = {"ours": lambda: kernel(ids, begin, more, end)}
        for rival in rivals:
            mode = {"max-autotune": "max-autotune-no-cudagraphs"}.get(rival)
            other = decoder if rival == "eager" else torch.compile(decoder, mode=mode)
            runs[rival] = lambda other=other: other(ids[None, :count], where)
        times = {n: measure(graphed(run), device, 0.5, 20) for n, run in runs.items()}
    ours, theirs = lm.decoder.key_cache_3[0, :, :count], decoder.key_cache_3[0, :, :count]
    off = error(ours.float(), theirs.float())
    return {
        "ours": timing(times["ours"]), "rivals": {n: timing(times[n]) for n in rivals},
        "errors": {"ours": off} | dict.fromkeys(rivals, 0.0), "floor": floor(lm.decoder, case, rate),
    }  # fmt: skip


@click.command()
@click.argument("cases", nargs=-1)
@click.option("--rival", "rivals", multiple=True, default=("eager", "compile"))
@click.option("--out", type=click.Path(path_type=Path), help="The log, rewritten after every case.")
@click.option("--commit", help="Of this checkout, where git does not say it.")
def main(
    cases: tuple[str, ...], rivals: tuple[str, ...], out: Path | None, commit: str | None
) -> None:
    """Time CASES, or all."""
    device = torch.device("cuda")
    rate = bandwidth(device)
    log = Log.new(commit or "unknown", f"device memory: {rate / 1e12:.2f} TB/s; 'errors' of answers: part of the ids that differ from transformers'; of prompts: keys of a layer against eager")  # fmt: skip
    about = about_device(device)
    log.device, log.versions = about["device"], about["versions"]
    click.echo(log.notes)
    for name in cases or CASES:
        case = CASES[name]
        try:
            if case.position > 0:
                found = one_token(case, rivals, rate, device)
            else:
                found = answer(case, rate, device) if case.position == 0 else prompt(case, rivals, rate, device)  # fmt: skip
        except Exception as reason:  # the others are still of use
            click.echo(f"{name}: {type(reason).__name__}: {str(reason)[:300]}")
            continue
        where = {"capacity": case.capacity, "position": case.position}
        e = Entry(
            model=name, arguments=where, dtype=str(case.dtype).removeprefix("torch."), **found
        )
        log.entries.append(e)
        least = e.floor.time if e.floor else 0.0
        beside = "  ".join(f"{n} {t.call:.0f}" for n, t in e.rivals.items())
        assert e.ours is not None
        click.echo(f"{name}: ours {e.ours.call:.0f}  {beside}  floor {least:.0f} ({e.ours.call / least:.2f} x)  errors {e.errors}")  # fmt: skip
        if out is not None:
            out.write_bytes(msgspec.json.format(msgspec.json.encode(log), indent=1))
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
