"""`show` in marimo, which puts a card on its page once, at the end."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.judges import absent

NOTEBOOK = """
import marimo
app = marimo.App()

@app.cell
def _():
    import rxllm
    answer = rxllm.show(rxllm.stream_generate(rxllm.Fake([("thinking", "hm"), "It is **so**."]), "Hi"))
    return
"""


@pytest.mark.timeout(180)
def test_a_card_is_on_the_page_without_raw_markdown(tmp_path: Path):
    if importlib.util.find_spec("marimo") is None:
        absent("marimo", "pip install 'rxllm[browser]'", "browser")
    (tmp_path / "notebook.py").write_text(NOTEBOOK)
    command = [sys.executable, "-m", "marimo", "export", "html", "notebook.py", "-o", "page.html"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    page = (tmp_path / "page.html").read_text().encode().decode("unicode_escape", "ignore")
    assert "<summary>Thinking</summary>" in page
    assert "It is <strong>so</strong>.</p>" in page
