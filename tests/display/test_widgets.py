"""Widgets as streams, and the chat panel: with ipywidgets in this process, and in a real kernel."""

import asyncio
import sys
import threading

import pytest
from reactivex import operators as rx

import rxllm
from rxllm import EngineError, Fake, SessionError, ToolCall, ValidationError
from rxllm.display import chat, from_widget
from rxllm.testing.loopback import STALL, Loopback, Reply, Request, chat_chunk
from rxllm.testing.loopback import chat as chat_frames
from tests.closing import STALLED, also_next, assert_closed, next_call
from tests.waiting import PATIENCE, wait_until

ipywidgets = pytest.importorskip("ipywidgets", reason="widgets need rxllm[notebook]")

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning"),
]


def observers(widget) -> list:
    return widget._trait_notifiers.get("value", {}).get("change", [])


def test_a_slider_emits_its_value_and_then_its_changes_until_it_is_disposed():
    slider, seen, later = ipywidgets.IntSlider(3), [], []
    before = len(observers(slider))
    subscription = from_widget(slider).subscribe(seen.append)
    other = from_widget(slider).subscribe(later.append)
    for value in (4, 4, 5):
        slider.value = value
    wait_until(lambda: seen == [3, 4, 5])
    subscription.dispose()
    slider.value = 6
    wait_until(lambda: later[-1] == 6)
    other.dispose()
    assert seen == [3, 4, 5]
    assert len(observers(slider)) == before


def test_nothing_is_delivered_after_a_dispose_inside_on_next_or_from_another_subscription():
    slider, seen = ipywidgets.IntSlider(0), []
    from_widget(slider).pipe(rx.take(2)).subscribe(seen.append)
    other = []
    second = from_widget(slider).subscribe(other.append)
    for value in range(1, 6):
        slider.value = value
    wait_until(lambda: other == [0, 1, 2, 3, 4, 5])
    second.dispose()
    assert seen == [0, 1]


def test_changes_from_other_threads_come_one_at_a_time_on_the_loop_of_the_subscription():
    sliders = ipywidgets.IntSlider(0, max=10_000)
    seen, threads = [], set()

    def add(value):
        threads.add(threading.get_ident())
        seen.append(value)

    subscription = from_widget(sliders).subscribe(add)

    def change(start):
        for value in range(start, 400, 4):
            sliders.value = value

    changers = [threading.Thread(target=change, args=(start,)) for start in range(1, 5)]
    for changer in changers:
        changer.start()
    for changer in changers:
        changer.join(PATIENCE)
        assert not changer.is_alive()
    wait_until(lambda: len(seen) > 100)
    subscription.dispose()
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_in_virtual_time():
    from reactivex.testing import TestScheduler

    scheduler, seen, slider = TestScheduler(), [], ipywidgets.IntSlider(1)
    from_widget(slider).pipe(rx.debounce(10)).subscribe(seen.append, scheduler=scheduler)
    for at, value in ((5, 2), (8, 3), (30, 4)):
        scheduler.schedule_absolute(at, lambda *_, value=value: setattr(slider, "value", value))
    scheduler.advance_to(17)
    assert seen == []
    scheduler.advance_to(20)
    assert seen == [3]
    scheduler.advance_to(100)
    assert seen == [3, 4]


def test_a_button_emits_its_clicks_and_another_trait_can_be_named():
    button, clicks, labels, later = ipywidgets.Button(description="a"), [], [], []
    first = from_widget(button).subscribe(clicks.append)
    second = from_widget(button, "description").subscribe(labels.append)
    button.click()
    button.click()
    button.description = "b"
    wait_until(lambda: clicks == [button, button] and labels == ["a", "b"])
    other = from_widget(button).subscribe(later.append)
    first.dispose()
    second.dispose()
    button.click()
    wait_until(lambda: later)
    other.dispose()
    assert len(clicks) == 2
    assert button._click_handlers.callbacks == []


def test_so_does_a_trait_of_an_anywidget_whichever_side_changes_it():
    anywidget = pytest.importorskip("anywidget", reason="an anywidget needs rxllm[test]")
    import traitlets

    class Counter(anywidget.AnyWidget):
        _esm = "export default {render() {}}"
        count = traitlets.Int(0).tag(sync=True)
        secret = traitlets.Int(0)

    counter, seen = Counter(), []
    subscription = from_widget(counter, "count").subscribe(seen.append)
    counter.count = 1
    counter.set_state({"count": 2})  # as the browser's message does
    wait_until(lambda: seen == [0, 1, 2])
    subscription.dispose()
    counter.count = 3
    assert counter._trait_notifiers.get("count", {}).get("change", []) == []
    assert seen == [0, 1, 2]
    with pytest.raises(ValidationError, match=r"trait must be a trait of Counter.*not 'value'"):
        from_widget(counter)


def test_another_value_than_a_widget_is_refused_at_the_call():
    with pytest.raises(ValidationError, match=r"widget must be an ipywidgets or anywidget widget.*not 5"):
        from_widget(5)
    with pytest.raises(ValidationError, match=r"trait must be a trait of IntSlider.*not 'valeu'"):
        from_widget(ipywidgets.IntSlider(), "valeu")


@pytest.mark.judges
def test_in_a_kernel_a_slider_asks_again_and_the_former_answer_is_closed(kernel):
    def reply(request: Request) -> Reply:
        is_last = request.json["messages"][0]["content"] == "days: 9"
        return Reply(chat_frames("nine ", "days")) if is_last else STALLED

    with Loopback(reply) as server:
        kernel.run(f"""
import ipywidgets, rxllm.display
from reactivex import operators as rx
engine = rxllm.Engine(rxllm.OpenAIChat(base_url={server.url!r}, api_key="k"), model="m")
slider, answers = ipywidgets.IntSlider(3), []
asking = rxllm.display.from_widget(slider).pipe(
    rx.debounce(0.2),
    rx.switch_map(lambda days: rxllm.stream_generate(engine, f"days: {{days}}").pipe(ops.snapshots(0.01))),
    ops.tap(answers.append),
)
showing = rxllm.show(asking, block=False)
""")
        server.wait_requests(1, PATIENCE)
        kernel.run("slider.value = 9")
        wait_until(lambda: kernel.run("answers[-1].output_text")[-1], lambda last: last[1] == "'nine days'")
        assert_closed(server.connections[0])
        assert [request.json["messages"][0]["content"] for request in server.requests] == ["days: 3", "days: 9"]
        kernel.run("showing.dispose()")
        assert kernel.run("(await showing).output_text")[-1] == ("execute_result", "'nine days'")


@rxllm.tool(approval=True)
def pay(amount: int) -> str:
    return f"paid {amount}"


@rxllm.tool(manual=True)
def sign(document: str) -> str: ...


def cards(panel) -> list[str]:
    return [drawn.value for drawn in panel.widget.children[1].children]


def type_and_enter(box, text: str) -> None:
    box.value = text
    box._handle_custom_msg({"event": "submit"}, [])


def write(panel, text: str) -> None:
    type_and_enter(panel.widget.children[3].children[0], text)


def rests(panel) -> bool:
    """Whether the panel waits for a message."""
    return not panel.widget.children[3].children[1].disabled


def questions(panel) -> list[str]:
    return [line.children[0].value for line in panel.widget.children[2].children]


def controls(panel) -> list:
    """The buttons, the fields and the labels behind the calls that wait."""
    return [widget for line in panel.widget.children[2].children for widget in line.children[1:]]


def test_messages_are_answered_in_the_history_and_remembered():
    engine = Fake(["Hello ", "**Ann**"], "You are Ann")
    panel = chat(engine)
    write(panel, "I am <Ann>")
    wait_until(lambda: rests(panel))
    write(panel, "Who am I?")
    wait_until(lambda: len(panel.session.messages) == 4)
    wait_until(lambda: "You are Ann" in cards(panel)[3] and 'data-state="done"' in cards(panel)[3])
    assert [message.text for message in panel.session.messages][::2] == ["I am <Ann>", "Who am I?"]
    assert "I am &lt;Ann&gt;" in cards(panel)[0]
    assert "<strong>Ann</strong>" in cards(panel)[1]
    again = chat(engine, panel.session)
    assert "Who am I?" in cards(again)[0]


@pytest.mark.sockets
def test_the_stop_button_keeps_the_partial_and_closes_the_call():
    with Loopback(also_next(Reply([chat_chunk("0 "), chat_chunk("1 "), chat_chunk("2 "), STALL]))) as server:
        engine = rxllm.Engine(rxllm.OpenAIChat(base_url=server.url, api_key="k"), model="m")
        panel = chat(engine)
        showing = panel.send("Count")
        wait_until(lambda: "0 1 2" in cards(panel)[1])
        with pytest.raises(SessionError, match=r"an answer is still running.*panel.stop"):
            panel.send("More")
        panel.widget.children[3].children[2].click()
        next_call(server).run()
        assert_closed(server.connections[0])
        showing.result(PATIENCE)
    wait_until(lambda: len(panel.session.messages) == 2)
    assert panel.session.messages[-1].text.startswith("0 1 2")
    assert panel.session.messages[-1].metadata["partial"] == "cancelled"
    assert 'data-state="stopped"' in cards(panel)[1]
    wait_until(lambda: rests(panel))


@pytest.mark.parametrize(("press", "answer"), [(0, "paid 5"), (1, "denied")])
def test_a_call_that_needs_approval_waits_for_its_buttons_and_is_shown_once(press, answer):
    engine = Fake(["I pay. ", ToolCall("c0", "pay", {"amount": 5})], "All done")
    panel = chat(engine, tools=[pay])
    write(panel, "Pay")
    wait_until(lambda: controls(panel))
    with pytest.raises(SessionError):
        panel.send("Well?")
    write(panel, "Well?")
    assert len(cards(panel)) == 2
    wait_until(lambda: "approval" in cards(panel)[1])
    assert "waits for approval" in questions(panel)[0]
    assert "I pay." in cards(panel)[1]
    assert 'class="rxllm-tool"' not in cards(panel)[1]
    controls(panel)[press].click()
    wait_until(lambda: panel.session.status == "completed")
    assert controls(panel) == []
    assert answer in panel.session.messages[2].text.lower()
    wait_until(lambda: "All done" in cards(panel)[1] and 'data-state="done"' in cards(panel)[1])
    assert len(cards(panel)) == 2  # the whole exchange is on one card
    assert cards(panel)[1].count('class="rxllm-tool"') == 1
    assert cards(panel)[1].count("I pay.") == 1
    assert "waits for approval" not in cards(panel)[1]


def test_several_calls_are_decided_in_any_order_a_manual_one_by_its_result():
    calls = [ToolCall("c0", "pay", {"amount": 5}), ToolCall("c1", "sign", {"document": "<deed>"})]
    panel = chat(Fake([*calls], "All done"), tools=[pay, sign])
    write(panel, "Pay and sign")
    wait_until(lambda: len(questions(panel)) == 2)
    field, send, approve, deny = controls(panel)
    assert (send.description, approve.description, deny.description) == ("Send result", "Approve", "Deny")
    assert "needs a result" in questions(panel)[0]
    assert "waits for approval" in questions(panel)[1]
    send.click()
    type_and_enter(field, "  ")
    assert len(controls(panel)) == 4  # an empty result is none
    type_and_enter(field, "signed by <Ann>")
    assert "needs a result" not in questions(panel)[0]
    assert ">signed by &lt;Ann&gt;</pre>" in questions(panel)[0]
    assert controls(panel) == [approve, deny]
    assert panel.session.status == "awaiting_tools"
    approve.click()
    wait_until(lambda: panel.session.status == "completed")
    assert {message.text for message in panel.session.messages if message.role == "tool"} == {
        "paid 5",
        "signed by <Ann>",
    }
    wait_until(lambda: "All done" in cards(panel)[1])
    assert cards(panel)[1].count('class="rxllm-tool"') == 2
    assert "signed by &lt;Ann&gt;" in cards(panel)[1]


def test_a_tool_that_is_stopped_does_not_run_again():
    running = threading.Event()

    @rxllm.tool(approval=True)
    async def launch() -> str:
        running.set()
        await asyncio.Event().wait()
        return "launched"

    calls = [ToolCall("c0", "launch", {}), ToolCall("c1", "sign", {"document": "deed"})]
    panel = chat(Fake(["Off we go. ", *calls], "Done"), tools=[launch, sign])
    write(panel, "Go")
    wait_until(lambda: len(controls(panel)) == 4)
    field, _, approve, _ = controls(panel)
    type_and_enter(field, "Ann")
    approve.click()
    assert running.wait(PATIENCE)
    wait_until(lambda: cards(panel)[1].count('class="rxllm-tool"') == 2)
    panel.stop()
    wait_until(lambda: rests(panel))
    assert not controls(panel)
    assert "<bdi>stopped</bdi>" in cards(panel)[1]
    assert ">Ann</pre>" in cards(panel)[1]
    (result,) = [message for message in panel.session.messages if message.tool_call_id == calls[0].id]
    assert "It may already have done some or all of its work." in result.to_json()
    write(panel, "Go on")
    wait_until(lambda: rests(panel) and "Done" in cards(panel)[-1])


def test_of_a_long_conversation_the_last_cards_are_on_the_screen_and_all_in_the_session():
    from rxllm.display._chat import CARDS

    panel = chat(Fake(*(f"answer {n}" for n in range(CARDS))))
    for n in range(CARDS):
        panel.send(f"question {n}").result(PATIENCE)
        wait_until(lambda: rests(panel))
    assert len(cards(panel)) == CARDS
    assert f"{CARDS} earlier cards" in panel.widget.children[0].value
    assert f"question {CARDS // 2}" in cards(panel)[0]
    assert f"answer {CARDS - 1}" in cards(panel)[-1]
    assert len(panel.session.messages) == 2 * CARDS


@pytest.mark.parametrize("turn", [["half", ("error", "timeout")], ("error", "timeout")])
def test_an_error_is_on_the_card_and_the_next_message_works(turn):
    panel = chat(Fake(turn, "whole"), retry=False)
    panel.send("Hi")
    wait_until(lambda: "rxllm-error" in cards(panel)[1] and 'data-state="failed"' in cards(panel)[1])
    wait_until(lambda: rests(panel))
    assert panel.session.messages
    panel.send("Again").result(PATIENCE)
    wait_until(lambda: "whole" in cards(panel)[3])
    assert panel.session.messages[-1].text == "whole"
    assert [message.text for message in panel.session.messages if message.role == "user"] == ["Hi", "Again"]
    panel.dispose()


def test_without_ipywidgets_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(EngineError, match=r"pip install 'rxllm\[notebook\]'"):
        chat(Fake("Hi"))


def test_wrong_arguments_are_refused_at_the_call():
    with pytest.raises(ValidationError, match="session must be a Session"):
        chat(Fake("Hi"), "Hi")  # pyright: ignore[reportArgumentType]
    with pytest.raises(rxllm.LLMError):
        chat(Fake("Hi"), tols=[])  # pyright: ignore[reportCallIssue]


@pytest.mark.judges
def test_in_a_kernel_the_panel_is_a_widget(kernel):
    outputs = kernel.run('import rxllm.display\npanel = rxllm.display.chat(Fake("Hello"))\npanel')
    assert outputs[-1][0] in ("execute_result", "display_data")
    assert "VBox" in outputs[-1][1] or "ChatPanel" in outputs[-1][1]
    kernel.run('panel.send("Hi").result(60)')
    assert kernel.run("panel.session.messages[-1].text") == [("execute_result", "'Hello'")]
