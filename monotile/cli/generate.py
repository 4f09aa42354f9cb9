"""monotile generate FOLDER --prompt TEXT"""

import time

import click

from monotile.config import Options
from monotile.generation.checkpoint import load_checkpoint
from monotile.generation.controls import Sampling
from monotile.generation.generator import Generator, generator
from monotile.generation.packed_cache import FORMATS
from monotile.generation.prompt import LEAST
from monotile.targets.detect import device_of


@click.command()
@click.argument("folder")
@click.option("--prompt", required=True, help="What the model is to go on from.")
@click.option("--max-new-tokens", default=64, show_default=True, help="Tokens to write at most.")
@click.option("--capacity", type=int, help="Tokens that the cache holds; default: as many as are needed.")  # fmt: skip
@click.option("--cache", type=click.Choice(FORMATS), help="Keys and values in 8 bits; default: as the model makes them.")  # fmt: skip
@click.option("--temperature", default=0.0, show_default=True, help="0 takes the likeliest token.")
@click.option("--top-k", default=0, show_default=True, help="The k likeliest alone; 0: all.")
@click.option("--top-p", default=1.0, show_default=True, help="The likeliest that have this share.")
@click.option("--min-p", default=0.0, show_default=True, help="Those of this part of the likeliest.")  # fmt: skip
@click.option("--repetition-penalty", default=1.0, show_default=True, help="1: none.")
@click.option("--seed", default=0, show_default=True, help="Of the random numbers.")
@click.option("--dtype", help="Type of the parameters, such as bfloat16; default: the checkpoint's.")  # fmt: skip
@click.option("--target", default="auto", show_default=True, help='"auto", "cpu" or "cuda".')
@click.option("--no-cache", is_flag=True, help="Neither read nor write the disk cache.")
def command(
    folder: str, prompt: str, max_new_tokens: int, capacity: int | None, cache: str | None, temperature: float, top_k: int, top_p: float,
    min_p: float, repetition_penalty: float, seed: int, dtype: str | None, target: str, no_cache: bool,
) -> None:  # fmt: skip
    """Write on from a prompt with the language model of FOLDER: config.json, safetensors, tokenizer. The answer is one launch, a prompt of more than a few tokens another."""
    options = Options(cache=not no_cache)
    found = load_checkpoint(folder, dtype, device_of(target, options))
    ids = found.ids(prompt)
    room = capacity or ids.shape[1] + max_new_tokens
    chunk = None if ids.shape[1] > LEAST else 1
    lm = generator(found.model, room, chunk=chunk, cache=cache, target=target, options=options)
    sampling = Sampling(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty,
    )  # fmt: skip
    lm.generate(ids, 1, **sampling)  # the first call loads the kernel
    begin = time.perf_counter()
    for text in found.texts(ids, lm.stream(ids, max_new_tokens, seed=seed, **sampling)):
        click.echo(text, nl=False)
    click.echo()
    click.echo(_speed(lm, ids.shape[1], time.perf_counter() - begin), err=True)


def _speed(lm: Generator, given: int, seconds: float) -> str:
    new = lm.length + 1 - given
    return f"{given} tokens read and {new} written in {seconds:.3f} s: {lm.length / seconds:.1f} tokens a second"
