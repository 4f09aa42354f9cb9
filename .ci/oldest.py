"""Makes an environment with the oldest releases that pyproject.toml names: `python .ci/oldest.py FOLDER`.

PyPI's PyTorch for x86 is built for CUDA, whose libraries are 3 GB. Without a GPU nothing is computed by these, so all but the smallest are replaced by
one whose functions do nothing; pip reports them as missing. Needs `nm` and `readelf` of binutils.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEPT = "cudart,cupti"  # small, and PyTorch calls these without a GPU too
FUNCTION = re.compile(r"(?!cuda|cupti)(?:cu|nccl|nvshmem)\w+")
LIBRARY = re.compile(r"NEEDED.*\[(lib(?!cuda|cupti)(?:cu|nccl|nvshmem)\S+)\]")
FAILED = 1  # most of the functions return a status


def main(folder: Path) -> None:
    if sys.version_info[:2] != (3, 11):
        sys.exit("These releases go with the oldest Python: make test-oldest PYTHON=python3.11")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder.absolute() / "bin" / "python"
    torch, *others = oldest()
    install(python, "--no-deps", torch)
    install(python, *others, *tools(), *required_by_torch(python))
    install(python, "--no-deps", "--editable", str(ROOT))
    (libraries,) = folder.glob("lib/python*/site-packages/torch/lib")
    replace_cuda(python, libraries)


def oldest() -> list[str]:
    """The requirements of pyproject.toml and of its examples, each as the oldest release that is allowed; PyTorch first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *project["optional-dependencies"]["examples"]]
    return [re.sub(r">=([^,]+).*", r"==\1", x) for x in named]


def tools() -> list[str]:
    """What runs the tests, in the releases that they otherwise run with."""
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    return [x for x in pinned if x.partition("==")[0] in ("pytest", "pytest-xdist", "hypothesis")]


def required_by_torch(python: Path) -> list[str]:
    """What PyTorch requires, of CUDA's libraries only those that are kept."""
    code = "import importlib.metadata as m; print(*m.requires('torch'), sep='\\n')"
    found = re.sub(r"cuda-toolkit\[.*?\]", f"cuda-toolkit[{KEPT}]", output(python, "-c", code))
    left_out = re.compile("nvidia|cuda-bindings|triton|.*extra ==")
    return [x for x in found.splitlines() if not left_out.match(x)]


def replace_cuda(python: Path, libraries: Path) -> None:
    """Puts beside PyTorch's libraries one with the functions that they call, and, by the names of those that they are linked with, empty ones that lead to
    it: in a library of such a name, the loader expects functions with versions."""
    own = [*libraries.glob("*.so")]
    called = output("nm", "-D", "--undefined-only", "--format=just-symbols", *own).split()
    names = {n for x in called if FUNCTION.fullmatch(n := x.partition("@")[0])}
    functions = "".join(f"int {n}(void) {{ return {FAILED}; }}\n" for n in sorted(names))
    library(python, libraries / "libfailing.so", functions)
    for name in {*LIBRARY.findall(output("readelf", "-d", *own))}:
        library(python, libraries / name, "", "-L", libraries, "-lfailing")


def library(python: Path, path: Path, text: str, *more: object) -> None:
    compiler = (python, "-m", "ziglang", "cc", "-w", "-shared", "-nostdlib", "-x", "c", "-")
    options = ("-Wl,--no-as-needed", f"-Wl,-soname,{path.name}", "-o", path)
    subprocess.run([*map(str, (*compiler, *options, *more))], input=text, check=True, text=True)


def install(python: Path, *what: str) -> None:
    subprocess.run([python, "-m", "pip", "install", "--quiet", *what], check=True)


def output(*command: object) -> str:
    return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]))
