"""Loads a language model and its tokenizer from a folder: config.json, safetensors, the tokenizer's files. Nothing is downloaded."""

import importlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from monotile.errors import InputError


@dataclass(frozen=True)
class Checkpoint:
    """model: in eval mode. tokenizer: of transformers."""

    model: nn.Module
    tokenizer: Any

    def ids(self, text: str) -> torch.Tensor:
        """The tokens of `text`, [1, n] int64."""
        return torch.tensor([self.tokenizer(text)["input_ids"]], dtype=torch.int64)

    def texts(self, ids: torch.Tensor, tokens: Iterable[int]) -> Iterator[str]:
        """The text of `ids`, [1, n], and the text that each of `tokens` adds to it. A token that ends within a character adds nothing
        yet."""
        written: list[int] = ids[0].tolist()
        text = shown = str(self.tokenizer.decode(written))
        yield shown
        for token in tokens:
            written.append(token)
            text = str(self.tokenizer.decode(written))
            if not text.endswith("\ufffd"):
                yield text[len(shown) :]
                shown = text
        yield text[len(shown) :]


def load_checkpoint(folder: str | Path, dtype: str | None, device: torch.device) -> Checkpoint:
    """The model, on `device`, and the tokenizer. dtype: of the parameters, such as "bfloat16"; None: the checkpoint's own.

    Raises InputError that says which file is missing or damaged.
    """
    at = Path(folder)
    if not at.is_dir():
        raise InputError(f"{at} is no folder: give the folder of a checkpoint on this machine")
    config = at / "config.json"
    if not config.is_file():
        raise InputError(f"{at} has no config.json: it is no checkpoint of transformers")
    try:
        json.loads(config.read_text())
    except ValueError as error:
        raise InputError(f"{config} is damaged: {error}") from error
    if not any(at.glob("*.safetensors")):
        raise InputError(f"{at} has no weights: no file there ends in .safetensors")
    wanted = getattr(torch, dtype, None) if dtype else "auto"
    if not (wanted == "auto" or isinstance(wanted, torch.dtype)):
        raise InputError(f"{dtype} is no type of PyTorch: take float32, bfloat16 or float16")
    try:
        library = importlib.import_module("transformers")
    except ImportError as error:
        raise InputError("a checkpoint needs transformers: pip install transformers") from error
    model = _loaded("the model", at, lambda: library.AutoModelForCausalLM.from_pretrained(at, dtype=wanted, local_files_only=True))  # fmt: skip
    tokenizer = _loaded("the tokenizer", at, lambda: library.AutoTokenizer.from_pretrained(at, local_files_only=True))  # fmt: skip
    return Checkpoint(model.eval().requires_grad_(False).to(device), tokenizer)


def _loaded(what: str, at: Path, load: Any) -> Any:
    """The result of `load`. A damaged or missing file may raise anything in the libraries that read it."""
    try:
        return load()
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(
            f"{what} of {at} cannot be read: {type(error).__name__}: {reason}"
        ) from error
