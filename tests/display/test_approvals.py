"""Approve and Deny on the card of a chat that `show` has shown with ``block=False``."""

import threading

import pytest

import rxllm
from rxllm import Fake, ToolCall
from rxllm import operators as ops
from rxllm.display import Showing
from rxllm.display._plain import Screen
from tests.waiting import PATIENCE, wait_until

ipywidgets = pytest.importorskip("ipywidgets", reason="widgets need rxllm[notebook]")
from rxllm.display._answer import WidgetCell  # noqa: E402

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning"),
]


@rxllm.tool(approval=True)
def pay(amount: int) -> str:
    return f"paid {amount}"


@rxllm.tool(manual=True)
def sign(document: str) -> str: ...


class Output:
    """The part of ``IPython.display`` that a cell uses. It keeps what is displayed in the end."""

    def __init__(self) -> None:
        self.data: dict[str, str] = {}

    def display(self, widget, display_id):
        return self

    def update(self, data, raw):
        self.data = data


class Cell(WidgetCell):
    def __init__(self) -> None:
        super().__init__()
        self._display = self.output = Output()

    @property
    def html(self) -> str:
        return self._drawn.value

    def buttons(self) -> dict[str, object]:
        """The buttons on the screen, by their texts."""
        lines = [widget for widget in self._box.children if widget is not self._drawn]
        found = [*lines, *(child for line in self._questions.widget.children for child in line.children)]
        return {widget.description: widget for widget in found if getattr(widget, "description", "") and widget.comm}


def paying(*answers, tools=(pay,), **opts):
    model = Fake(["I pay. ", ToolCall("c0", "pay", {"amount": 5})], *(answers or ("All done",)))
    return rxllm.stream(model, "Pay", tools=tools, **opts)


def shown(stream) -> tuple[Showing, Cell]:
    cell = Cell()
    showing = Showing(stream, [], cell).start()
    return showing, cell


def test_approve_continues_the_chat_on_its_card_and_the_handle_has_the_new_result():
    showing, cell = shown(paying(temperature=0.5))
    assert showing.result(PATIENCE).halted_reason == "approval"
    wait_until(lambda: [*cell.buttons()] == ["Approve", "Deny"])
    assert 'data-state="waiting"' in cell.html
    assert "waiting for approval" in cell.html
    cell.buttons()["Approve"].click()
    result = showing.result(PATIENCE)
    assert result.halted_reason == "completed"
    assert result.output_text == "All done"
    wait_until(lambda: bool(cell.output.data))
    html = cell.output.data["text/html"]
    assert html.count('class="rxllm-tool"') == 1
    assert html.index("I pay.") < html.index("paid 5") < html.index("All done")
    assert html.count("I pay.") == 1
    assert cell.output.data["text/plain"] == "I pay. \n\npay(amount=5) → paid 5\n\nAll done"
    assert cell.buttons() == {}
    assert rxllm.display.last is result


def test_deny_tells_the_model_so():
    showing, cell = shown(paying("As you like"))
    wait_until(lambda: "Deny" in cell.buttons())
    cell.buttons()["Deny"].click()
    result = showing.result(PATIENCE)
    assert "denied" in result.thread[2].text
    assert result.output_text == "As you like"


def test_the_engine_and_the_options_are_those_of_the_call():
    model = Fake([ToolCall("c0", "pay", {"amount": 5})], "Done")
    showing, cell = shown(rxllm.stream(rxllm.Engine(model), "Pay", tools=[pay], temperature=0.5, seed=7))
    wait_until(lambda: "Approve" in cell.buttons())
    cell.buttons()["Approve"].click()
    wait_until(lambda: len(model.requests) == 2)
    assert [(request.temperature, request.seed) for request in model.requests] == [(0.5, 7)] * 2
    assert showing.result(PATIENCE).output_text == "Done"


def test_a_chat_may_ask_twice_and_a_manual_call_has_a_field():
    calls = [ToolCall("c0", "pay", {"amount": 5}), ToolCall("c1", "sign", {"document": "deed"})]
    model = Fake([*calls], [ToolCall("c2", "pay", {"amount": 6})], "Done")
    showing, cell = shown(rxllm.stream(model, "Pay", tools=[pay, sign]))
    wait_until(lambda: "Send result" in cell.buttons())
    cell.buttons()["Approve"].click()
    send = cell.buttons()["Send result"]
    lines = cell._questions.widget.children
    [field] = [widget for line in lines for widget in line.children if isinstance(widget, ipywidgets.Text)]
    field.value = "signed"
    send.click()
    wait_until(lambda: [*cell._questions.calls] == ["c2"] and [*cell.buttons()] == ["Approve", "Deny"])
    cell.buttons()["Approve"].click()
    assert showing.result(PATIENCE).output_text == "Done"
    wait_until(lambda: bool(cell.output.data))
    assert cell.output.data["text/html"].count('class="rxllm-tool"') == 3


def test_a_disposed_card_has_no_buttons_and_still_waits():
    showing, cell = shown(paying())
    wait_until(lambda: "Approve" in cell.buttons())
    showing.dispose()
    assert cell.buttons() == {}
    assert "waits for approval" in cell.output.data["text/html"]
    assert showing.result(PATIENCE).halted_reason == "approval"


@pytest.mark.parametrize("add", [ops.tap(print, rxllm.TextDelta), ops.to_chat_result()])
def test_a_stream_with_operators_of_its_own_has_no_buttons(add):
    showing, cell = shown(paying().pipe(add))
    assert showing.result(PATIENCE) is not None
    wait_until(lambda: bool(cell.output.data))
    assert cell.buttons() == {}


def test_a_screen_that_does_not_listen_is_finished():
    finished = threading.Event()

    class Board(Screen):
        def finish(self, cards, now):
            finished.set()

    Showing(paying(), [], Board()).start().result(PATIENCE)
    assert finished.wait(PATIENCE)


@pytest.mark.judges
def test_in_a_kernel_the_buttons_work_after_the_cell(kernel):
    kernel.run("""
from rxllm import ToolCall
@rxllm.tool(approval=True)
def pay(amount: int) -> str:
    return f"paid {amount}"
""")
    start = 'rxllm.stream(Fake([ToolCall("c0", "pay", {"amount": 5})], "All done"), "Pay", tools=[pay])'
    blocking = kernel.run(f"rxllm.show({start})")
    assert "waiting for approval" in blocking[-1][1]
    assert "Approve" not in "".join(text for _, text in blocking)
    kernel.run(f"showing = rxllm.show({start}, block=False)\n_ = await showing")
    wait_until(lambda: kernel.run("len(showing._screen._questions.widget.children)"), lambda out: "'1'" in str(out))
    press = "showing._screen._questions.widget.children[0].children[1].click()"
    outputs = kernel.run(f"{press}\nresult = await showing\nresult.output_text")
    assert ("execute_result", "'All done'") in outputs

    def is_drawn():
        outputs.extend(kernel.run(""))  # also what has come after the cell
        return any(kind == "update_display_data" and "paid 5" in text for kind, text in outputs)

    wait_until(is_drawn)


def test_a_call_inside_an_agent_is_approved_on_the_card_too():
    clerk = rxllm.Engine(Fake(ToolCall("s0", "pay", {"amount": 5}), "Paid."), tools=[pay]).as_tool(name="clerk")
    showing, cell = shown(rxllm.stream(Fake(ToolCall("c0", "clerk", {"prompt": "Pay"}), "Done"), "Pay", tools=[clerk]))
    wait_until(lambda: [*cell.buttons()] == ["Approve", "Deny"])
    cell.buttons()["Approve"].click()
    assert showing.result(PATIENCE).output_text == "Done"
    wait_until(lambda: bool(cell.output.data))
    assert "paid 5" in cell.output.data["text/html"]
