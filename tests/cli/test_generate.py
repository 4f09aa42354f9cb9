"""`monotile generate` with a small checkpoint of its own making."""

import json
import re
from pathlib import Path

import pytest
import torch

from tests.cli.test_cli import invoke

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
WORDS = ["[UNK]", *"the a cat dog sees hears and runs far near . , on under tree".split()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with random weights and a tokenizer of whole words."""
    at = tmp_path_factory.mktemp("checkpoint")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=64, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(at)
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: k for k, w in enumerate(WORDS)}, unk_token="[UNK]"))  # fmt: skip
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]").save_pretrained(at)  # fmt: skip
    return at


def generate(folder: Path, *more: str) -> tuple[int, str]:
    return invoke("generate", str(folder), "--prompt", "the cat sees", "--target", "cpu", *more)


def test_it_writes_what_transformers_does(folder: Path) -> None:
    code, out = generate(folder, "--max-new-tokens", "12")
    assert code == 0, out
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor([tokenizer("the cat sees")["input_ids"]])
    right = model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0)
    assert tokenizer.decode(right[0]) in out
    assert re.search(r"3 tokens read and 12 written in [\d.]+ s: [\d.]+ tokens a second", out)


@pytest.mark.wide
def test_a_seed(folder: Path) -> None:
    how = ["--max-new-tokens", "10", "--temperature", "1.5", "--top-p", "0.95", "--seed"]
    texts = [re.findall("the cat sees .*", generate(folder, *how, seed)[1]) for seed in ("1", "1", "2")]  # fmt: skip
    assert texts[0]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("gone", "words"),
    [("config.json", "has no config.json"), ("model.safetensors", "has no weights")],
)
def test_missing_files(folder: Path, tmp_path: Path, gone: str, words: str) -> None:
    for path in folder.iterdir():
        if path.name != gone:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    code, out = generate(tmp_path)
    assert code == 1
    assert words in out
    assert "Traceback" not in out


@pytest.mark.parametrize(("name", "words"), [("config.json", "damaged"), ("model.safetensors", "the model of"), ("tokenizer.json", "the tokenizer of")])  # fmt: skip
def test_damaged_files(folder: Path, tmp_path: Path, name: str, words: str) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / name).write_bytes(b"\x05{nothing" if name != "config.json" else json.dumps({})[:1].encode())  # fmt: skip
    code, out = generate(tmp_path)
    assert code == 1
    assert words in out


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    code, out = generate(tmp_path / "nowhere")
    assert code == 1
    assert "no folder" in out
    code, out = generate(tmp_path, "--dtype", "float17")
    assert code == 1
