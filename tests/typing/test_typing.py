from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs import python


@pytest.mark.judges
def test_pyright_infers_what_the_design_says() -> None:
    here = Path(__file__).parent
    files = [str(here / name) for name in ("inferred.py", "refused.py", "programs")]
    ran = python("-m", "pyright", *files, cwd=here.parents[1])
    assert ran.returncode == 0, ran.stdout
