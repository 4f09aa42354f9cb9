"""Whether two states of the compiler generate the same sources: keeps hashes of them in a file, and compares with such a file.

    python -m bench.sources record FILE [--write DIR] [--quick] [--target TARGET ...] [name ...]
    python -m bench.sources compare FILE [--write DIR] [--texts DIR] [--quick] [--target TARGET ...] [name ...]
    python -m bench.sources methods FILE
    python -m bench.sources roundtrip [--quick] [--target TARGET ...] [name ...]

Nothing is built, run or kept in the cache, and no GPU or C compiler is needed. A name is one of bench/networks.py, or what stands before its
first colon; --quick takes a part that has every method of the Plan. FILE is JSON: versions, and for each network and target

exact:      sha256 of the source.
structure:  the same, blind to comments, spaces and consistent renaming: every name counts as the number of its first appearance.
launch:     sha256 of what a call needs besides: figures of the launch, shapes, values of constants, orders in memory, checks.
functions, characters, seconds: of the source; from module to source.
methods:    what the Plan uses.

record leaves out what fails to compile; --write keeps the sources' texts in DIR. compare writes there those that differ. Where the texts of the
record still are where they were written, or in --texts, it says which names have become which others. It exits with 1 if a structure or a
launch differs, or if one of the record's sources cannot be made.

roundtrip looks whether a compilation can be written down: its Plan, decoded from JSON, has to give the same source to the byte, and what was
chosen, replayed from JSON, the same Plan and the same source. It exits with 1 where one of them does not.
"""

import argparse
import gc
import hashlib
import json
import platform
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch

import monotile
from bench.c_text import functions, renamed, structure
from bench.networks import NETWORKS, QUICK, make, options
from bench.roundtrip import differences
from bench.to_source import Made, to_source
from monotile.runtime.reference import Call

TARGETS = ["cpu", "cuda:sm_80", "cuda:sm_90a"]
DEVICE = Path(monotile.__file__).parent / "targets"  # */device/ below it
NUMBERS = frozenset(  # which every Plan has, so that they tell nothing
    "block_k block_m block_n extent first m n nbytes offset outer pitch result scratch scratch_bytes slot stage stride tile".split()
)
Found = dict[str, Any]
T = TypeVar("T")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("command", choices=["record", "compare", "methods", "roundtrip"])
    parser.add_argument("words", nargs="*", metavar="FILE|name")
    parser.add_argument("--quick", action="store_true", help="a part of the networks: minutes")
    parser.add_argument("--target", action="append", choices=[*TARGETS, "cuda:sm_86", "cuda:sm_89"])
    parser.add_argument("--write", type=Path, metavar="DIR", help="sources' texts go here")
    parser.add_argument("--texts", type=Path, metavar="DIR", help="of the record")
    chosen = parser.parse_intermixed_args()
    file, names = None, chosen.words
    if chosen.command != "roundtrip":
        if not names:
            parser.error(f"{chosen.command} needs a FILE")
        file, names = Path(names[0]), names[1:]
    wanted = [
        text
        for text in (QUICK if chosen.quick else NETWORKS)
        if not names or text in names or text.partition(":")[0] in names
    ]
    if chosen.command == "methods" and file:
        print(methods_table(json.loads(file.read_text())))
        return
    print(f"monotile of {Path(monotile.__file__).parent}, {len(wanted)} networks", flush=True)
    targets = chosen.target or TARGETS
    if file is None:
        same = roundtrip(wanted, targets)
    elif chosen.command == "record":
        same = record(file, wanted, targets, chosen.write)
    else:
        same = compare(file, wanted, targets, chosen.write, chosen.texts)
    sys.exit(not same)


def record(file: Path, wanted: list[str], targets: list[str], folder: Path | None) -> bool:
    """Writes `file`, anew after every network; the texts to `folder`. Always True."""
    start = time.perf_counter()
    content: Found = {"versions": versions(), "texts": str(folder.resolve()) if folder else None}
    content |= {"device": device(), "sources": {}, "failures": {}}
    for name, target, made, failure in each(wanted, targets, timed):
        if made is None:
            content["failures"][f"{name} {target}"] = failure
            print(f"{name} {target}: LEFT OUT, {failure}", flush=True)
        else:
            found = content["sources"].setdefault(name, {})[target] = made[1]
            print(f"{name} {target}: {_words(found)}", flush=True)
            if folder:
                write(folder, name, target, made[0].text)
        content["seconds"] = round(time.perf_counter() - start, 1)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    print(methods_table(content))
    count = sum(map(len, content["sources"].values()))
    print(f"{count} sources of {len(content['sources'])} networks, {len(content['failures'])} left out, {content['seconds']:.0f} s")  # fmt: skip
    return True


def compare(
    file: Path, wanted: list[str], targets: list[str], folder: Path | None, texts: Path | None
) -> bool:
    """Whether what `file` has of the wanted is the same but for names; prints what is not."""
    content = json.loads(file.read_text())
    kept = texts or (Path(content["texts"]) if content["texts"] else None)
    for what, now in versions().items():
        if what != "commit" and now != content["versions"][what]:
            print(f"{what} is {now}, in the record {content['versions'][what]}")
    for path in sorted(content["device"].keys() | device().keys()):
        before, after = content["device"].get(path), device().get(path)
        if before != after:
            how = "is new" if before is None else "is gone" if after is None else "differs"
            same = before and after and before["structure"] == after["structure"]
            print(f"{path} {how}{' in names or comments alone' if same else ''} (not counted)")  # fmt: skip
    recorded = {n: found for n, found in content["sources"].items() if n in wanted}
    for name in wanted:
        if name not in recorded:
            print(f"{name}: not in the record (not counted)")
    counts, names = Counter[str](), Counter[tuple[str, str]]()
    for name, target, made, failure in each(list(recorded), targets, timed):
        if target not in recorded[name]:
            continue
        if made is None:
            counts["cannot be made"] += 1
            print(f"{name} {target}: CANNOT BE MADE, {failure}", flush=True)
            continue
        before, after = recorded[name][target], made[1]
        differs = [w for w in ("exact", "structure", "launch") if before[w] != after[w]]
        counts["as they were" if not differs else "other names alone" if differs == ["exact"] else "differ"] += 1  # fmt: skip
        if not differs:
            continue
        print(f"{name} {target}: {', '.join(differs)}: {_words(before)} -> {_words(after)}", flush=True)  # fmt: skip
        if folder:
            write(folder, name, target, made[0].text)
        old = kept and place(kept, name, target)
        if old and old.exists() and "structure" not in differs:
            names.update(renamed(old.read_text(), made[0].text).items())
    for (before, after), count in names.most_common():
        print(f"name {before} -> {after} in {count}")
    print("sources: " + (", ".join(f"{n} {what}" for what, n in sorted(counts.items())) or "none"))
    return not counts["differ"] and not counts["cannot be made"]


def roundtrip(wanted: list[str], targets: list[str]) -> bool:
    """Whether all that can be compiled can be written down; prints what cannot."""
    counts, start = Counter[str](), time.perf_counter()
    for name, target, found, failure in each(wanted, targets, differences):
        if found is None:
            counts["left out"] += 1
            print(f"{name} {target}: LEFT OUT, {failure}", flush=True)
            continue
        counts["differ" if found else "the same"] += 1
        for line in found:
            print(f"{name} {target}: {line}", flush=True)
    seconds = time.perf_counter() - start
    print(f"round trips: {', '.join(f'{n} {what}' for what, n in sorted(counts.items())) or 'none'}, {seconds:.0f} s")  # fmt: skip
    return not counts["differ"]


def timed(model: torch.nn.Module, call: Call, target: str, chosen: dict[str, Any]) -> tuple[Made, Found]:  # fmt: skip
    """A source, with what is recorded of it."""
    start = time.perf_counter()
    made = to_source(model, call, target, chosen)
    return made, entry(made, time.perf_counter() - start)


def each(
    wanted: list[str],
    targets: list[str],
    work: Callable[[torch.nn.Module, Call, str, dict[str, Any]], T],
) -> Iterator[tuple[str, str, T | None, str]]:
    """Network, target, what `work` makes of them, or None and why not; one model in memory at a time."""
    for name in wanted:
        model = call = None
        for target in targets:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    if model is None or call is None:
                        model, call = make(name)
                    found = work(model, call, target, options(name))
            except Exception as problem:
                line = str(problem).partition("\n")[0][:300]
                yield name, target, None, f"{type(problem).__name__}: {line}"
            else:
                yield name, target, found, ""
            gc.collect()


def entry(made: Made, seconds: float) -> Found:
    return {
        "exact": _sha(made.text),
        "structure": structure(made.text),
        "launch": _sha(json.dumps(made.beside, sort_keys=True)),
        "functions": functions(made.text),
        "characters": len(made.text),
        "seconds": round(seconds, 2),
        "methods": sorted(
            set(features([made.plan["body"], list(made.plan["places"].values())], ""))
        ),
    }


def features(node: Any, path: str) -> Iterator[str]:
    """Kinds of nodes in a Plan's JSON, and which of their fields say more than nothing, such as "contract.left.copy=async"."""
    if isinstance(node, list):
        for x in node:
            yield from features(x, path)
    elif isinstance(node, dict):
        path = node.get("type", path)
        if "type" in node:
            yield path
        if node.get("outputs", 1) > 1 and node.get("lanes", 1) > 1:
            yield f"{path}.by_columns"
        for key, value in node.items():
            if key in ("instruction", "copy", "major", "handoff") and isinstance(value, str):
                yield f"{path}.{key}={value}"
            elif isinstance(value, bool | int) and key not in NUMBERS:
                least = 0 if isinstance(value, bool) or key in ("following", "ahead", "lead") else 1
                if value > least:
                    yield f"{path}.{key}"
            elif isinstance(value, list | dict) and value:
                kept = key in ("resident", "messages", "receives", "parallel", "moments")
                yield from [f"{path}.{key}"] if kept else []
                tagged = isinstance(value, dict) and "type" not in value
                yield from features(value, f"{path}.{key}" if tagged or kept else path)


def methods_table(content: Found) -> str:
    """In how many sources of each kind of target each feature of Plans is."""
    counts: dict[str, Counter[str]] = {}
    for found in content["sources"].values():
        for target, one in found.items():
            for feature in one["methods"]:
                counts.setdefault(feature, Counter())[target] += 1
    targets = sorted({t for found in content["sources"].values() for t in found})
    rows = [["method", *targets], *([f, *(str(counts[f][t]) for t in targets)] for f in sorted(counts))]  # fmt: skip
    return "\n".join(f"{row[0]:36s}" + "".join(f"{cell:>12s}" for cell in row[1:]) for row in rows)


def versions() -> dict[str, str]:
    root = Path(monotile.__file__).parents[1]
    git = ["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    found = {name: version(name) for name in ("torch", "transformers", "numpy")}
    return {"commit": commit, "python": platform.python_version(), **found}


def device() -> dict[str, dict[str, str]]:
    """The headers that sources include."""
    files = DEVICE.glob("*/device/**/*.*h")
    texts = {p.relative_to(DEVICE).as_posix(): p.read_text() for p in files}
    return {path: {"exact": _sha(t), "structure": structure(t)} for path, t in texts.items()}


def place(folder: Path, name: str, target: str) -> Path:
    file = name.replace(":", "_") + (".c" if target == "cpu" else ".cu")
    return folder / target.replace(":", "_") / file


def write(folder: Path, name: str, target: str, text: str) -> None:
    path = place(folder, name, target)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _words(found: Found) -> str:
    return f"{found['functions']} functions, {found['characters']} characters, {found['seconds']} s"


if __name__ == "__main__":
    main()
