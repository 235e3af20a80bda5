"""`show` in marimo: a card on an exported page, and one that is redrawn while its cell runs."""

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.judges import absent, judge
from tests.waiting import PATIENCE

pytestmark = pytest.mark.judges

NOTEBOOK = """
import marimo
app = marimo.App()

@app.cell
def _():
    import rxllm
    answer = rxllm.show(rxllm.stream_generate(rxllm.Fake([("thinking", "hm"), "It is **so**."]), "Hi"))
    return
"""

LIVE = """
import marimo
app = marimo.App()

@app.cell
def _():
    import pathlib
    from asyncio import sleep
    import rxllm

    async def slow(request, call):
        yield rxllm.events.TextDelta("Half ")
        while not pathlib.Path("gate").exists():
            await sleep(0.01)
        yield rxllm.events.TextDelta("**whole**.")

    first = rxllm.show(rxllm.stream_generate(rxllm.Fake("It is the first."), "Hi"))
    second = rxllm.show(rxllm.stream_generate(slow, "Hi"))
    return rxllm, slow

@app.cell
def _(rxllm, slow):
    third = rxllm.show(rxllm.stream_generate(slow, "Hi"), block=False)
    return
"""

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}


def needs(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            absent(package, "pip install 'rxllm[browser]'", "browser")


@pytest.mark.timeout(180)
def test_a_card_is_on_the_page_without_raw_markdown(tmp_path: Path):
    needs("marimo")
    (tmp_path / "notebook.py").write_text(NOTEBOOK)
    command = [sys.executable, "-m", "marimo", "export", "html", "notebook.py", "-o", "page.html"]
    environment = {**ENVIRONMENT, "HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    page = (tmp_path / "page.html").read_text().encode().decode("unicode_escape", "ignore")
    assert "<summary>Thinking</summary>" in page
    assert "It is <strong>so</strong>.</p>" in page


@pytest.mark.timeout(180)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_cards_are_redrawn_while_their_cells_run(tmp_path: Path):
    needs("marimo", "playwright")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=1000 * PATIENCE)
    chromium = judge("chromium", "browser")
    (tmp_path / "notebook.py").write_text(LIVE)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "marimo", "run", "notebook.py", "--headless", "--no-token", f"--port={port}"]
    environment = {**ENVIRONMENT, "HOME": str(tmp_path)}
    with (tmp_path / "log").open("w") as log, sync_playwright() as playwright:
        server = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
        browser = playwright.chromium.launch(executable_path=chromium)
        try:
            page = browser.new_page()
            _go(page, f"http://127.0.0.1:{port}")
            cards = page.locator("article")
            expect(cards).to_have_count(2)
            expect(cards.nth(0)).to_contain_text("It is the first.")
            expect(cards.nth(1)).to_have_attribute("data-state", "running")
            expect(cards.nth(1).locator(".rxllm-text")).to_have_text("Half")
            (tmp_path / "gate").touch()
            expect(cards).to_have_count(3)
            expect(cards.nth(0)).to_contain_text("It is the first.")
            expect(cards.nth(1).locator("strong")).to_have_text("whole")
            expect(cards.nth(2).locator("strong")).to_have_text("whole")
            expect(page.locator("article[data-state=done]")).to_have_count(3)
        finally:
            browser.close()
            server.terminate()
            server.wait(PATIENCE)


def _go(page, address: str) -> None:
    from playwright.sync_api import Error

    for _ in range(300):
        try:
            page.goto(address)
            return
        except Error:  # the server is starting
            page.wait_for_timeout(200)
    raise TimeoutError("marimo has not started")
