from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_pyright_infers_what_the_design_says() -> None:
    here = Path(__file__).parent
    files = [str(here / "inferred.py"), str(here / "refused.py")]
    ran = subprocess.run(
        [sys.executable, "-m", "pyright", *files], capture_output=True, text=True, check=False, cwd=here.parents[1]
    )
    assert ran.returncode == 0, ran.stdout
