"""What a release is checked for, without a checkout beside it.

python .ci/release.py contents dist/*     # fail on a file that does not belong into a wheel or an sdist
python .ci/release.py lowest local        # print the lowest versions that pyproject.toml allows, as constraints
python .ci/release.py program             # print the first program of the README
"""

from __future__ import annotations

import re
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
OURS = r"rxllm/.+|_rxllm_pytestplugin\.py"
WHEEL = rf"{OURS}|rxllm-[\d.]+\.dist-info/.+"
SDIST = rf"{OURS}|LICENSE|MANIFEST\.in|PKG-INFO|README\.md|pyproject\.toml|setup\.cfg|rxllm\.egg-info/.+"


def contents(*paths: str) -> None:
    for path in paths:
        if path.endswith(".whl"):
            with zipfile.ZipFile(path) as wheel:
                names, allowed = wheel.namelist(), WHEEL
            required = {"rxllm/__init__.py", "rxllm/py.typed", "_rxllm_pytestplugin.py"}
            assert any(name.endswith("/licenses/LICENSE") for name in names), f"{path} has no licence"
        else:
            with tarfile.open(path) as archive:
                files = [member.name for member in archive.getmembers() if not member.isdir()]
            names, allowed = [name.partition("/")[2] for name in files], SDIST
            required = {"rxllm/__init__.py", "LICENSE", "README.md", "pyproject.toml"}
        odd = [name for name in names if not re.fullmatch(allowed, name) or "__pycache__" in name]
        if odd or required - {*names}:
            sys.exit(f"{path}: does not belong there: {odd}; is missing: {sorted(required - {*names})}")
        print(f"{path}: {len(names)} files")


def lowest(*extras: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = [*project["dependencies"], *(one for extra in extras for one in project["optional-dependencies"][extra])]
    for requirement in required:
        print(requirement.replace(">=", "=="))


def program() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    print(blocks[0])


if __name__ == "__main__":
    {"contents": contents, "lowest": lowest, "program": program}[sys.argv[1]](*sys.argv[2:])
