"""The card in JupyterLab, in a real browser: what a person sees at each moment. Providers are real servers.

RXLLM_PICTURES names a folder for pictures of the page, light and dark.
"""

import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from rxllm.testing.loopback import (
    DONE,
    STALL,
    Connection,
    Loopback,
    Pause,
    Reply,
    Request,
    chat,
    chat_chunk,
    chat_event,
    chat_finish,
)
from tests.closing import assert_closed
from tests.judges import absent, judge
from tests.waiting import PATIENCE, wait_until

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
    pytest.mark.judges,
]

SETUP = """
import pathlib
import rxllm
from reactivex import Subject
from rxllm import operators as ops

engine = rxllm.Engine(rxllm.OpenAIChat(base_url={url!r}, api_key="k"), model="m")
gate, decisions = pathlib.Path({gate!r}), Subject()

@rxllm.tool
async def weather(city: str, context: rxllm.ToolContext) -> dict:
    import asyncio
    context.progress(f"asking {{city}}")
    while not gate.exists():
        await asyncio.sleep(0.01)
    if city == "Oslo":
        raise rxllm.ToolError("handler_raised", "no station in Oslo; ask for Bergen")
    return {{"sky": "sunny in " + city}}

@rxllm.tool(approval=True)
def pay(amount: int) -> str:
    return f"paid {{amount}}"

@rxllm.tool(manual=True)
def sign(document: str) -> str: ...

def ask(prompt, **options):
    return rxllm.stream(engine, prompt, **options)
"""

CELLS = {
    "silence": 'rxllm.show(ask("silence"))',
    "arguments": 'rxllm.show(ask("arguments", tools=[weather]))',
    "approval": 'paying = rxllm.show(ask("approval", tools=[pay], approve=lambda call: decisions), block=False)',
    "buttons": 'deciding = rxllm.show(ask("approval", tools=[pay]), block=False)',
    "decided": "(await deciding).halted_reason",
    "yes": "decisions.on_next(True); decisions.on_completed(); (await paying).halted_reason",
    "stop": 'rxllm.show(ask("stalled"))',
    "after": 'kept = rxllm.display.last; rxllm.chat(engine, "next").run().output_text, kept.output_text',
    "three": 'results = rxllm.show({name: ask(name) for name in ("ann", "bob", "broken")})',
    "nasty": 'rxllm.show(ask("nasty"))',
    "button": 'handle = rxllm.show(ask("stalled"), block=False)',
    "partial": 'rxllm.chat(engine, "next").run().output_text, (await handle).output_text',
    "values": "rxllm.show(ask('silence').pipe(ops.snapshots(0.01))).output_text",
    "rest": 'rxllm.show(ask("thinking"))',
    "thoughts": 'rxllm.show(ask("thoughts"))',
    "panel": "import rxllm.display; panel = rxllm.display.chat(engine, tools=[pay, sign]); panel",
    "anywidget": """
import anywidget, traitlets
class Counter(anywidget.AnyWidget):
    _esm = "export default {render({model, el}) {" \
        "const button = document.createElement('button'); button.textContent = 'count'; el.append(button);" \
        "button.onclick = () => {model.set('count', model.get('count') + 1); model.save_changes()}}}"
    count = traitlets.Int(3).tag(sync=True)
counter = Counter()
counting = rxllm.show(rxllm.display.from_widget(counter, "count"), block=False)
counter
""",
}

NASTY = """1. It costs $5 and $6, not $$7$$ or \\\\(x\\\\).
2. <script>document.title = "hacked"</script><img src=x onerror="document.title='hacked'">

![pixel](http://127.0.0.1:9/pixel.png) [bad](javascript:alert(1)) [good](https://example.org)

- an open list
  ```python
  and an open fence"""


def call(id: str, index: int, *pieces: str, name: str) -> list[bytes]:
    def delta(**function: str) -> bytes:
        more = {"id": id, "type": "function"} if "name" in function else {}
        return chat_event({"tool_calls": [{"index": index, **more, "function": function}]})

    return [delta(name=name, arguments=""), *(delta(arguments=piece) for piece in pieces)]


THOUGHTS = [chat_event({"reasoning_content": f"{n}. A thought.\n"}) for n in range(1, 60)]

seen = {prompt: threading.Event() for prompt in ("silence", "arguments", "thoughts")}
"""Set once the test has looked at the first part of an answer. The second part comes only then."""


def in_two_parts(prompt: str, first: Iterable[bytes], second: Iterable[bytes]) -> Iterator[bytes | Pause]:
    yield from first
    while not seen[prompt].is_set():
        yield Pause(0.02)
    yield from second


def reply(request: Request) -> Reply:
    messages = request.json["messages"]
    prompts = [message["content"] for message in messages if message["role"] == "user"]
    if messages[-1]["role"] == "tool":
        usage = {"prompt_tokens": 120, "completion_tokens": 30, "total_tokens": 150}
        frames = [chat_chunk("It is **"), Pause(0.1), chat_chunk("sunny**."), chat_finish("stop", usage=usage), DONE]
        return Reply(frames)
    return {
        "silence": lambda: Reply(in_two_parts("silence", [], chat("after ", "silence"))),
        "arguments": lambda: Reply(
            in_two_parts(
                "arguments",
                call("c0", 0, '{"city": "Ro', name="weather"),
                [
                    *call("c0", 0, 'me"}', name="weather")[1:],
                    *call("c1", 1, '{"city": "Oslo"}', name="weather"),
                    chat_finish("tool_calls"),
                    DONE,
                ],
            )
        ),
        "approval": lambda: Reply([*call("c0", 0, '{"amount": 5}', name="pay"), chat_finish("tool_calls"), DONE]),
        "thoughts": lambda: Reply(in_two_parts("thoughts", THOUGHTS, chat("Done."))),
        "both": lambda: Reply(
            [
                chat_chunk("Two things. "),
                *call("c0", 0, '{"amount": 5}', name="pay"),
                *call("c1", 1, '{"document": "<b>deed</b>"}', name="sign"),
                chat_finish("tool_calls"),
                DONE,
            ]
        ),
        "which": lambda: Reply(chat(f"They were: {', '.join(prompts)}.")),
        "stalled": lambda: Reply([chat_chunk("0 "), chat_chunk("1 "), chat_chunk("2 "), STALL]),
        "next": lambda: Reply(chat("Next.")),
        "nasty": lambda: Reply(chat(*re.findall(r"(?s).{1,7}", NASTY))),
        "broken": lambda: Reply.of_json({"error": {"message": "no such model: m; pass model='n'"}}, status=404),
        "thinking": lambda: Reply(
            [
                chat_event({"reasoning_content": "The user wants a table. "}),
                chat_chunk(
                    "# Primes\n\n| n | prime |\n|---|---|\n| 2 | yes |\n\n```python\nprint(2)\n```\n\nSee `sympy`."
                ),
                chat_finish("stop", usage={"prompt_tokens": 9, "completion_tokens": 40, "total_tokens": 49}),
                DONE,
            ]
        ),
    }.get(prompts[-1], lambda: Reply([chat_chunk(f"I am {prompts[-1]}. "), Pause(0.3), *chat("Done.")]))()


@pytest.fixture(scope="module")
def server() -> Iterator[Loopback]:
    with Loopback(reply) as server:
        yield server


@pytest.fixture(scope="module")
def chromium() -> str:
    for package in ("jupyterlab", "playwright", "ipywidgets"):
        if importlib.util.find_spec(package) is None:
            absent(package, "pip install 'rxllm[browser]'", "browser")
    return judge("chromium", "browser")


@pytest.fixture(scope="module")
def gate_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tools of the notebook wait until this file is there."""
    return tmp_path_factory.mktemp("gate") / "open"


@pytest.fixture
def gate(gate_file: Path) -> Iterator[Path]:
    """The gate, which is open after a test that fails, too. Otherwise, all later cells would wait."""
    yield gate_file
    gate_file.touch()


@pytest.fixture(scope="module")
def lab(chromium: str, server: Loopback, gate_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the notebook in a JupyterLab of its own."""
    import nbformat

    folder = tmp_path_factory.mktemp("lab")
    sources = [SETUP.format(url=server.url, gate=str(gate_file)), *CELLS.values()]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, folder / "cards.ipynb")
    settings = folder / "settings/@jupyterlab/apputils-extension"
    settings.mkdir(parents=True)
    (settings / "themes.jupyterlab-settings").write_text('{"adaptive-theme": true}')
    (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false", "checkForUpdates": false}')
    homes = {"JUPYTER_RUNTIME_DIR": "runtime", "JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data"}
    homes |= {"JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "workspaces", "IPYTHONDIR": "ipython"}
    environment = {**os.environ, **{name: str(folder / home) for name, home in homes.items()}}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    options = ("--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0", "--IdentityProvider.token=t0ken")
    command = [sys.executable, "-m", "jupyterlab", *options, f"--ServerApp.root_dir={folder}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            yield f"{_address(folder / 'runtime', process)}doc/tree/cards.ipynb?token=t0ken"
        finally:
            process.terminate()
            process.wait(PATIENCE)


def _address(runtime: Path, process: subprocess.Popen) -> str:
    def look() -> str | None:
        assert process.poll() is None, "JupyterLab has not started"
        for file in runtime.glob("jpserver-*.json"):
            with contextlib.suppress(ValueError):  # it is being written
                return json.loads(file.read_text())["url"]
        return None

    return wait_until(look) or ""


class Notebook:
    """The notebook's page; cells by the names of `CELLS`."""

    def __init__(self, page):
        self.page = page
        self.names = ["setup", *CELLS]

    def cell(self, name):
        return self.page.locator(".jp-Notebook-cell").nth(self.names.index(name))

    def run(self, name):
        cell = self.cell(name)
        cell.locator(".cm-content").click()
        self.page.keyboard.press("Control+Enter")
        return cell.locator(".jp-OutputArea-output")

    def card(self, name):
        return self.cell(name).locator(".rxllm-output")

    def idle(self):
        from playwright.sync_api import expect

        expect(self.page.locator(".jp-InputPrompt", has_text="[*]")).to_have_count(0)

    def picture(self, name):
        folder = os.environ.get("RXLLM_PICTURES")
        for scheme in ("dark", "light") if folder else ():
            self.page.emulate_media(color_scheme=scheme)
            self.page.wait_for_timeout(1500)
            self.cell(name.split("-")[0]).screenshot(path=f"{folder}/{name}-{scheme}.png")


@pytest.fixture(scope="module")
def notebook(lab: str, chromium: str) -> Iterator[Notebook]:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=1000 * PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        page = browser.new_page(viewport={"width": 1100, "height": 2400}, color_scheme="light")
        page.set_default_timeout(1000 * PATIENCE)
        page.goto(lab)
        notebook = Notebook(page)
        expect(notebook.cell("setup")).to_be_visible()
        prompt = notebook.cell("setup").locator(".jp-InputPrompt")

        def run_setup() -> str:
            notebook.run("setup")  # does nothing before the kernel is there
            return prompt.inner_text()

        wait_until(run_setup, lambda text: "[ ]" not in text)
        expect(prompt).to_have_text(re.compile(r"\[\d+\]"))
        yield notebook
        browser.close()


def test_a_card_is_there_while_the_model_is_silent_and_the_answer_is_shown_once(notebook):
    from playwright.sync_api import expect

    outputs = notebook.run("silence")
    card = notebook.card("silence")
    expect(card.locator("footer")).to_contain_text("waiting for the first token")
    first = card.locator("footer").inner_text()
    expect(card.locator("footer")).not_to_have_text(first)  # its time ticks
    expect(card.locator("footer")).to_contain_text("waiting for the first token")
    seen["silence"].set()
    expect(card.locator(".rxllm-text")).to_have_text("after silence")
    expect(card.locator("footer")).to_have_text(re.compile(r"^done · \d+(\.\d)? s · loopback · "))
    notebook.idle()
    expect(outputs).to_have_count(1)


def test_arguments_show_while_they_stream_then_two_tools_run_each_with_its_own_end(notebook, gate):
    from playwright.sync_api import expect

    notebook.run("arguments")
    tools = notebook.card("arguments").locator(".rxllm-tool")
    expect(tools).to_have_attribute("data-state", "arguments")
    expect(tools.locator("code")).to_have_text('{"city": "Ro')
    seen["arguments"].set()
    expect(tools).to_have_count(2)
    expect(tools.nth(0)).to_contain_text("asking Rome")
    expect(tools.nth(1)).to_contain_text("asking Oslo")
    before = tools.nth(0).locator("span").first.inner_text()
    assert before.startswith("running")
    expect(tools.nth(0).locator("span").first).not_to_have_text(before)
    notebook.picture("arguments")
    gate.touch()
    expect(tools.nth(0)).to_have_attribute("data-state", "done")
    expect(tools.nth(0)).to_contain_text("sunny in Rome")
    expect(tools.nth(1)).to_have_attribute("data-state", "failed")
    expect(tools.nth(1)).to_contain_text("no station in Oslo; ask for Bergen")
    expect(notebook.card("arguments").locator("footer")).to_contain_text("150 tokens")


def test_an_approval_waits_and_is_answered(notebook):
    from playwright.sync_api import expect

    notebook.run("approval")
    tool = notebook.card("approval").locator(".rxllm-tool")
    expect(tool).to_have_attribute("data-state", "waiting")
    expect(tool).to_contain_text("waits for approval")
    notebook.picture("approval")
    notebook.run("yes")
    expect(tool).to_have_attribute("data-state", "done")
    expect(tool).to_contain_text("paid 5")
    expect(notebook.card("approval").locator(".rxllm-text")).to_have_text("It is sunny.")
    expect(notebook.cell("yes").locator(".jp-OutputArea-output")).to_contain_text("completed")
    expect(notebook.cell("approval").locator("button")).to_have_count(0)


def test_a_card_that_waits_has_buttons_that_continue_its_chat(notebook):
    from playwright.sync_api import expect

    notebook.run("buttons")
    cell = notebook.cell("buttons")
    approve, deny = (cell.get_by_role("button", name=name, exact=True) for name in ("Approve", "Deny"))
    expect(approve).to_be_visible()
    expect(deny).to_be_visible()
    expect(cell.get_by_role("button", name="Stop")).to_have_count(0)
    card = cell.locator("article").first
    expect(card).to_have_attribute("data-state", "waiting")
    expect(card.locator("footer")).to_contain_text("waiting for approval")
    notebook.picture("buttons")
    approve.click()
    expect(cell.locator(".rxllm-tool")).to_contain_text("paid 5")
    expect(cell.locator(".rxllm-text")).to_have_text("It is sunny.")
    expect(cell.locator("article")).to_have_attribute("data-state", "done")
    expect(approve).to_have_count(0)
    expect(deny).to_have_count(0)
    expect(notebook.run("decided")).to_contain_text("completed")


def test_the_stop_button_closes_the_connection_marks_the_card_and_raises_one_line(notebook, server):
    from playwright.sync_api import expect

    outputs = notebook.run("stop")
    expect(notebook.card("stop").locator(".rxllm-text")).to_contain_text("0 1 2")
    notebook.page.locator('[data-command="notebook:interrupt-kernel"]').click()
    expect(notebook.card("stop").locator("article")).to_have_attribute("data-state", "stopped")
    expect(notebook.card("stop").locator("footer")).to_contain_text("stopped")
    expect(outputs).to_have_count(2)
    expect(outputs.nth(1)).to_have_text("Stopped. The partial result is in rxllm.display.last.")
    notebook.picture("stop")
    after = notebook.run("after")
    expect(after).to_have_text("('Next.', '0 1 2 ')")
    assert_closed(connection_of(server, "stalled"))


def test_three_streams_stand_side_by_side_and_one_that_fails_says_why(notebook):
    from playwright.sync_api import expect

    notebook.run("three")
    cards = notebook.card("three").locator("article")
    expect(cards).to_have_count(3)
    expect(cards.nth(0)).to_contain_text("I am ann. Done.")
    expect(cards.nth(1)).to_contain_text("I am bob. Done.")
    expect(cards.nth(2)).to_contain_text("pass model='n'")
    boxes = [cards.nth(n).bounding_box() for n in range(3)]
    expect(notebook.card("three").locator('[data-state="failed"]')).to_have_count(1)
    assert len({box["y"] for box in boxes}) == 1
    assert boxes[0]["x"] < boxes[1]["x"] < boxes[2]["x"]
    notebook.idle()
    notebook.picture("three")


def test_nothing_a_model_writes_is_run_fetched_or_typeset(notebook):
    from playwright.sync_api import expect

    requests = []
    notebook.page.on("request", lambda request: requests.append(request.url))
    notebook.run("nasty")
    card = notebook.card("nasty")
    expect(card.locator("footer")).to_contain_text("done")
    notebook.page.wait_for_timeout(1000)
    text = card.locator(".rxllm-text").inner_text()
    assert "It costs $5 and $6, not $$7$$ or \\(x\\)." in text
    assert "<script>" in text
    assert card.locator("mjx-container, script, img").count() == 0
    assert card.locator("a").count() == 2
    assert not any("pixel" in url or ":9/" in url for url in requests)
    assert "hacked" not in notebook.page.title()
    notebook.picture("nasty")


def connection_of(server: Loopback, prompt: str) -> Connection:
    """The connection of the latest call with this prompt."""

    def asks(request: Request) -> bool:
        return request.json["messages"][-1]["content"] == prompt

    return next(each for each in reversed(server.connections) if any(map(asks, each.requests)))


def test_the_button_on_the_card_stops_it(notebook, server):
    from playwright.sync_api import expect

    notebook.run("button")
    cell = notebook.cell("button")
    expect(cell.locator("article .rxllm-text")).to_contain_text("0 1 2")
    notebook.picture("button")
    cell.get_by_role("button", name="Stop").click()
    expect(cell.locator("article")).to_have_attribute("data-state", "stopped")
    expect(cell.get_by_role("button", name="Stop")).to_have_count(0)
    expect(notebook.run("partial")).to_have_text("('Next.', '0 1 2 ')")
    assert_closed(connection_of(server, "stalled"))


def test_snapshots_are_one_value_in_place(notebook):
    from playwright.sync_api import expect

    outputs = notebook.run("values")
    expect(outputs.first).to_contain_text("after silence")
    expect(outputs.filter(has=notebook.page.locator(".rxllm-output"))).to_have_count(1)


def test_a_whole_card_in_the_theme_of_the_page(notebook):
    from playwright.sync_api import expect

    notebook.run("rest")
    card = notebook.card("rest")
    expect(card.locator("summary")).to_have_text("Thinking")
    expect(card.locator("details > div")).to_be_hidden()
    expect(card.locator("td").first).to_have_text("2")
    notebook.picture("rest")
    notebook.page.emulate_media(color_scheme="light")
    expect(notebook.page.locator("body")).to_have_attribute("data-jp-theme-light", "true")
    text = card.locator("p").last
    light = text.evaluate("element => getComputedStyle(element).color")
    notebook.page.emulate_media(color_scheme="dark")
    expect(notebook.page.locator("body")).to_have_attribute("data-jp-theme-light", "false")
    expect(text).not_to_have_css("color", light)


def test_thinking_is_open_at_its_end_while_it_streams_and_folded_afterwards(notebook):
    from playwright.sync_api import expect

    notebook.run("thoughts")
    thoughts = notebook.card("thoughts").locator("details > div")
    expect(thoughts).to_be_visible()
    expect(thoughts.locator("li").last).to_be_in_viewport()
    expect(thoughts.locator("li").first).not_to_be_in_viewport()
    notebook.picture("thoughts")
    seen["thoughts"].set()
    expect(notebook.card("thoughts").locator(".rxllm-text")).to_have_text("Done.")
    expect(thoughts).to_be_hidden()


def test_the_panel_waits_for_decisions_stops_and_remembers(notebook, server):
    from playwright.sync_api import expect

    notebook.run("panel")
    cell = notebook.cell("panel")
    cards, tools, box = cell.locator("article"), cell.locator(".rxllm-tool"), cell.get_by_placeholder("Message")
    approve, stop = (cell.get_by_role("button", name=name, exact=True) for name in ("Approve", "Stop"))

    def send(text):
        box.fill(text)
        box.press("Enter")

    expect(stop).to_be_disabled()
    send("both")
    expect(approve).to_have_count(1)
    expect(tools).to_have_count(2)  # each call once: beside its buttons, or its field
    assert {tools.nth(n).get_attribute("data-state") for n in range(2)} == {"waiting", "needed"}
    paying, of_paying = tools.filter(has_text="pay").bounding_box(), approve.bounding_box()
    assert abs((paying["y"] + paying["height"] / 2) - (of_paying["y"] + of_paying["height"] / 2)) < 3  # in one line
    notebook.picture("panel")
    approve.click()
    expect(approve).to_have_count(0)
    expect(cell.get_by_role("button", name="Approved")).to_be_disabled()
    expect(cell).not_to_contain_text("waits for approval")
    field = cell.get_by_placeholder("Result of sign")
    field.fill("signed")
    field.press("Enter")
    expect(cards).to_have_count(2)
    expect(cards.nth(1).locator(".rxllm-text")).to_have_text(["Two things.", "It is sunny."])
    expect(tools).to_have_count(2)
    expect(tools.nth(0)).to_contain_text("paid 5")
    expect(tools.nth(1)).to_contain_text("signed")
    expect(cell).not_to_contain_text("waits for approval")
    expect(cell).not_to_contain_text("needs a result")

    send("stalled")
    expect(cards.nth(3).locator(".rxllm-text")).to_contain_text("0 1 2")
    stop.click()
    expect(cards.nth(3)).to_have_attribute("data-state", "stopped")
    expect(stop).to_be_disabled()

    send("which")
    expect(cards.nth(5).locator(".rxllm-text")).to_have_text("They were: both, stalled, which.")
    assert_closed(connection_of(server, "stalled"))
    notebook.picture("panel-after")


def test_a_change_in_an_anywidget_arrives(notebook):
    from playwright.sync_api import expect

    if importlib.util.find_spec("anywidget") is None:
        absent("anywidget", "pip install 'rxllm[browser]'", "browser")
    notebook.run("anywidget")
    cell = notebook.cell("anywidget")
    value = cell.locator("article .rxllm-value")
    expect(value).to_have_text("3")
    for count in (4, 5):
        cell.get_by_role("button", name="count").click()
        expect(value).to_have_text(f"{count}")
