"""The tensors of a checkpoint: a file, a folder of files, or a state dict."""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from monotile.errors import InputError

CONFIGS = ("config.json", "quantize_config.json")


class Checkpoint(NamedTuple):
    """The tensors of a checkpoint. gptq: the version of GPTQ's layer format; version 2 stores zeros as they are."""

    tensors: dict[str, Tensor]
    gptq: int


def read_checkpoint(source: str | Path | Mapping[str, Tensor]) -> Checkpoint:
    """Reads a file, a folder of files or a state dict. Raises InputError for files that are missing or damaged."""
    if isinstance(source, Mapping):
        return Checkpoint(dict(source), 1)
    at = Path(source)
    files = sorted(at.glob("*.safetensors")) if at.is_dir() else [at]
    if not files or not all(f.is_file() for f in files):
        raise InputError(f"{at} has no weights: give a file or folder of .safetensors")
    try:
        library = importlib.import_module("safetensors.torch")
    except ImportError as error:
        raise InputError(
            "reading .safetensors needs safetensors: pip install safetensors"
        ) from error
    tensors = dict[str, Tensor]()
    for file in files:
        try:
            tensors |= library.load_file(file)
        except Exception as error:  # the library's own, which is no other's
            raise InputError(f"{file} cannot be read: {error}") from error
    return Checkpoint(tensors, _version(files[0].parent))


def _version(folder: Path) -> int:
    for name in CONFIGS:
        if (folder / name).is_file():
            try:
                config: dict[str, Any] = json.loads((folder / name).read_text())
            except ValueError as error:
                raise InputError(f"{folder / name} is damaged: {error}") from error
            config = config.get("quantization_config", config)
            if config.get("checkpoint_format") == "gptq_v2":
                return 2
    return 1
