"""The record and the page of bench.model_table."""

from pathlib import Path

import msgspec

from bench.model_table import Row, line, merged, read, write_docs

GOOD = Row(model="gpt2:float16", target="cuda", device="H100", kernels=1, error=3e-4, eager=4e-4)
BAD = Row(model="gpt2:float32", target="cuda", device="H100", kernels=1, error=2e-5, eager=4e-7)
FAILED = Row(model="opt_125m:float16", target="cuda", failure="out of | memory\n")
AHEAD = Row(model="gpt2:float32", target="cuda:sm_90a", kernels=1)


def test_later_rows_replace_earlier_ones(tmp_path: Path) -> None:
    better = msgspec.structs.replace(BAD, error=3e-7)
    record = tmp_path / "record.jsonl"
    record.write_bytes(msgspec.json.Encoder().encode_lines([AHEAD, BAD, GOOD]))
    assert merged(read(record), [better]) == [GOOD, better, AHEAD]
    assert read(tmp_path / "none.jsonl") == []


def test_page(tmp_path: Path) -> None:
    page = tmp_path / "models.md"
    page.write_text("before\n<!-- models -->\nold\n<!-- /models -->after")
    write_docs([GOOD, BAD, FAILED, AHEAD], page)
    text = page.read_text()
    assert text.startswith("before\n<!-- models -->\n\n### cuda, H100\n")
    assert text.endswith("<!-- /models -->after")
    assert text.count("###") == 2
    assert "| `gpt2`, float16 | 1 | 3.0e-04 | 4.0e-04 |" in text
    assert "| `gpt2`, float32 | 1 | **2.0e-05** |" in text
    assert "| `opt_125m`, float16 | none: out of / memory |" in text


def test_line() -> None:
    assert "TOO LARGE" in line(BAD)
    assert "TOO LARGE" not in line(GOOD)
    assert "memory" in line(FAILED)
