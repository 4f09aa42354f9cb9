"""Makes an environment with the oldest releases that pyproject.toml names: `python .ci/oldest.py FOLDER`. PyPI's PyTorch brings CUDA: 5 GB."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(folder: Path) -> None:
    if sys.version_info[:2] != (3, 11):
        sys.exit("These releases go with the oldest Python: make test-oldest PYTHON=python3.11")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder.absolute() / "bin" / "python", "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, *oldest(), *tools(), "--editable", ROOT], check=True)


def oldest() -> list[str]:
    """The requirements of pyproject.toml and of its examples, each as the oldest release that is allowed; PyTorch first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *project["optional-dependencies"]["examples"]]
    return [re.sub(r">=([^,]+).*", r"==\1", x) for x in named]


def tools() -> list[str]:
    """What runs the tests, in the releases that they otherwise run with."""
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    return [x for x in pinned if x.partition("==")[0] in ("pytest", "pytest-xdist", "hypothesis")]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
