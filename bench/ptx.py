"""Whether two states of the compiler give the same PTX, or the same assembly of the CPU.

    python -m bench.ptx --with TREE [--texts DIR] [--target TARGET ...] [--write DIR] [name ...]

TREE: another checkout. Its device headers are used, and the sources that its emitter writes; where it is older than `bench/to_source.py`, the
texts that `bench.sources record --write DIR` kept of it. A name is one of bench/networks.py, as for `bench.sources`; without names, those of
CHOSEN below. CUDA sources are compiled by NVRTC, sources for the CPU by `gcc -O2 -S`; no GPU is needed.

Compared is the text without comments, debug lines and variables that nothing uses (NVRTC defines each constant of a struct as one), every
mangled name as the number of its first appearance. Where that differs, the number of differing lines is told, and how often each instruction
stands in either. --write: both texts go there. Exits with 1 where any differ.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from difflib import unified_diff
from pathlib import Path

from cuda.bindings import nvrtc  # pyright: ignore[reportAttributeAccessIssue]  # no stubs

from bench.networks import NETWORKS, QUICK
from bench.sources import place

HERE = Path(__file__).resolve().parents[1]
FLAGS = ["-std=gnu11", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-fno-tree-slp-vectorize"]  # fmt: skip
TARGETS = ["cuda:sm_80", "cuda:sm_90a", "cpu"]
# Products by wgmma, mma and fma, of runs, by teams and with the next task's chunks; both attentions; rowwise, reductions, messages, transposes.
CHOSEN = """
    mlp:float16 mlp:float64 products_in_rounds:float16 products_of_odd_rows:float16 columns:float16 convolutions_of_groups:float16
    long_attention:float16 causal_attention:float32 masked_attention:float16 transformer:float16 bert_base:float16:layers=2
    bert_base:float16:layers=2:profile=True decoder_step:float16 lstm:float32:layers=3,steps=20 reductions:float32
    squeeze_excite:float16 moves:float16 gated:bfloat16 weight_first:float16
""".split()
VARIABLE = re.compile(r"(?:\.visible |\.weak )?\.(?:global|const) .*?(_Z\w[\w$]*)")
EMITTER = """
import gc, sys, warnings
from pathlib import Path
from bench.networks import make, options
from bench.sources import write
from bench.to_source import to_source
folder, targets, names = Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:]
warnings.simplefilter("ignore")
for name in names:
    model, call = make(name)
    for target in targets:
        write(folder, name, target, to_source(model, call, target, options(name)).text)
    gc.collect()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("names", nargs="*")
    parser.add_argument("--with", dest="tree", type=Path, required=True, help="the other checkout")
    parser.add_argument("--texts", type=Path, metavar="DIR", help="its sources, if it cannot give them")  # fmt: skip
    parser.add_argument("--target", action="append", choices=TARGETS)
    parser.add_argument("--write", type=Path, metavar="DIR", help="what was compared goes here")
    chosen = parser.parse_intermixed_args()
    names = [
        n
        for n in dict.fromkeys(QUICK + NETWORKS)
        if n in chosen.names or n.partition(":")[0] in chosen.names
    ]
    names = names if chosen.names else list(CHOSEN)
    targets: list[str] = chosen.target or TARGETS
    kept = chosen.write or Path(tempfile.mkdtemp(prefix="monotile-ptx-"))
    texts = chosen.texts or emitted(chosen.tree, kept / "their_sources", targets, names)
    own = emitted(HERE, kept / "sources", targets, names)
    same = True
    for name in names:
        for target in targets:
            before, slow = compiled(place(texts, name, target), chosen.tree, target)
            after, fast = compiled(place(own, name, target), HERE, target)
            found = difference(before, after)
            same = same and not found
            print(f"{name} {target}: {found or 'the same'} ({slow:.1f} s, {fast:.1f} s)", flush=True)  # fmt: skip
            for side, text in (("before", before), ("after", after)):
                path = place(kept / side, name, target).with_suffix(".txt")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
    sys.exit(0 if same else 1)


def emitted(tree: Path, folder: Path, targets: list[str], names: list[str]) -> Path:
    """Where the sources are that the emitter of `tree` has written."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-P", "-c", EMITTER, str(folder), ",".join(targets), *names]
    subprocess.run(command, cwd=tree, env=environment, check=True)
    return folder


def compiled(source: Path, tree: Path, target: str) -> tuple[str, float]:
    """What a compiler makes of `source` with the headers of `tree`, normalised, and in how many seconds."""
    start = time.perf_counter()
    text = assembly(source, tree) if target == "cpu" else ptx(source.read_text(), tree, target)
    return normalised(text), time.perf_counter() - start


def headers(tree: Path) -> Path:
    """The folder that the device headers' names begin at."""
    found = (tree / "monotile" / "targets", tree / "monotile" / "device")
    return next(p for p in found if (p / "cuda").is_dir())


def assembly(source: Path, tree: Path) -> str:
    """At -O2, for the vectors of one machine whatever this one is."""
    folder, flags = headers(tree), [*FLAGS, "-O2", "-march=x86-64-v3", "-w", "-S", "-o", "-"]
    done = subprocess.run(["gcc", *flags, f"-I{folder}", str(source)], capture_output=True, text=True, check=False)  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"{source}: {done.stderr[:2000]}")
    return done.stdout


def ptx(text: str, tree: Path, target: str) -> str:
    folder, flags = headers(tree), ["--std=c++20", "--device-as-default-execution-space"]
    flags.append(f"--gpu-architecture={target.removeprefix('cuda:').replace('sm_', 'compute_')}")
    if "#define MT_APART" in text:
        flags.append("--relocatable-device-code=true")
    found = [p for p in sorted(folder.rglob("*")) if p.suffix in (".cuh", ".h")]
    names = [str(p.relative_to(folder)).encode() for p in found]
    made = nvrtc.nvrtcCreateProgram(text.encode(), b"monotile.cu", len(found), [p.read_bytes() for p in found], names)  # fmt: skip
    program = made[1]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), [f.encode() for f in flags])
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = bytearray(nvrtc.nvrtcGetProgramLogSize(program)[1])
        nvrtc.nvrtcGetProgramLog(program, log)
        raise SystemExit(log.rstrip(b"\0").decode()[:4000])
    out = bytearray(nvrtc.nvrtcGetPTXSize(program)[1])
    nvrtc.nvrtcGetPTX(program, out)
    nvrtc.nvrtcDestroyProgram(program)
    return out.rstrip(b"\0").decode()


def normalised(text: str) -> str:
    numbers: dict[str, str] = {}
    lines = (line.partition("//")[0].rstrip() for line in text.splitlines())
    uses = Counter(re.findall(r"_Z\w[\w$]*", text))
    kept = (x for x in lines if x and not re.match(r"\s*\.(loc|file|ident)\b", x))
    kept = (x for x in kept if not ((v := VARIABLE.match(x)) and uses[v[1]] == 1))
    rename = re.compile(r"\b(_Z\w[\w$]*|(?:mt|stage|fill|apply|layer)_\w[\w.$]*)")
    return "\n".join(
        rename.sub(lambda m: numbers.setdefault(m[0], f"name{len(numbers)}"), x) for x in kept
    )


def difference(before: str, after: str) -> str:
    """In words, "" if there is none."""
    if before == after:
        return ""
    lines = list(unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))
    counts = [Counter(re.findall(r"^\s+(?:@!?%p\d+ )?([a-z][\w.:]*)", t, re.M)) for t in (before, after)]  # fmt: skip
    others = {k: (counts[0][k], counts[1][k]) for k in counts[0] | counts[1] if counts[0][k] != counts[1][k]}  # fmt: skip
    return f"DIFFERS in {len(lines)} lines; instructions: {json.dumps(others) if others else 'equally many'}"


if __name__ == "__main__":
    main()
