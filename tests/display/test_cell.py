"""`show` in a cell, in a real kernel: which outputs there are, in which order, and what is left of a stopped one."""

import pytest

from tests.waiting import wait_until

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning"),
    pytest.mark.judges,
]


def kinds(outputs):
    return [kind for kind, _ in outputs]


@pytest.mark.judges
def test_a_card_is_one_output_drawn_anew_and_shown_once(kernel):
    outputs = kernel.run('rxllm.show(parts("Hel", "lo"))', open_at="Hel</p>")
    assert kinds(outputs)[0] == "display_data"
    assert set(kinds(outputs)[1:]) == {"update_display_data"}
    assert "waiting for the first token" in outputs[0][1]
    assert "<p>" not in outputs[0][1]
    assert any("Hel</p>" in html for _, html in outputs[1:-1])
    assert "Hello</p>" in outputs[-1][1]


def test_other_results_of_the_cell_are_shown_and_so_is_this_one_in_the_next(kernel):
    assert kernel.run('kept = rxllm.show(answer("Hello"))\n5')[-1] == ("execute_result", "5")
    [(kind, text)] = kernel.run("kept")
    assert kind == "execute_result"
    assert "Hello" in text


def test_the_stop_button_leaves_the_card_raises_one_line_and_keeps_the_partial(kernel):
    code = 'rxllm.show(answer(("thinking", "hm"), "half ", ("delay", 60), "whole"))'
    outputs = kernel.run(code, interrupt_at="half")
    assert 'data-state="stopped"' in outputs[-2][1]
    assert outputs[-1] == ("error", "Stopped. The partial result is in rxllm.display.last.")
    assert kernel.run("rxllm.display.last.output_text, rxllm.display.last.thinking") == [
        ("execute_result", "('half ', 'hm')")
    ]


def test_a_cell_that_does_not_block_returns_and_its_result_is_awaited(kernel):
    outputs = kernel.run('showing = rxllm.show(parts("a", "b"), block=False)\nshowing')
    assert "execute_result" not in kinds(outputs)
    assert ("execute_result", "False") in kernel.run("showing._over.is_set()")
    kernel.gate.touch()
    assert kernel.run("result = await showing; result.output_text")[-1] == ("execute_result", "'ab'")
    assert "execute_result" not in kinds(kernel.run('await rxllm.show(answer("a"), block=False)'))


def test_an_error_is_on_the_card_and_raised(kernel):
    outputs = kernel.run('rxllm.show(answer("a", ("error", "timeout")).pipe(ops.raise_errors()))')
    assert 'data-state="failed"' in outputs[-2][1]
    assert "AdapterError" in outputs[-1][1]
    assert kernel.run("rxllm.display.last.output_text") == [("execute_result", "'a'")]


def test_values_are_one_output_in_place(kernel):
    outputs = kernel.run('_ = rxllm.show(answer("Hi", ("delay", 0.2), "!").pipe(ops.snapshots(0.01)))')
    assert kinds(outputs).count("display_data") == 1
    assert "Hi!" in outputs[-1][1]


def test_the_stop_button_stops_a_cell_that_awaits(kernel):
    code = 'await rxllm.show(answer("half ", ("delay", 60), "whole"), block=False)'
    outputs = kernel.run(code, interrupt_at="half")
    assert ("error", "Stopped. The partial result is in rxllm.display.last.") in outputs
    partial = [("execute_result", "'half '")]
    wait_until(lambda: kernel.run("rxllm.display.last.output_text"), lambda outputs: outputs == partial)


def test_a_cell_that_blocks_does_not_wait_for_a_shared_call_of_its_own_loop(kernel):
    share = 'shared = answer("a", ("delay", 0.2), "b").pipe(ops.share_folded(5))\nshared.subscribe()\n'
    for blocking in ("rxllm.show(shared)", "shared.run()", "list(shared)"):
        outputs = kernel.run(share + blocking)
        assert outputs[-1][0] == "error"
        assert "await stream" in outputs[-1][1]
    assert kernel.run(share + "(await shared).message.text")[-1] == ("execute_result", "'ab'")
    outputs = kernel.run(share + "(await rxllm.show(shared, block=False)).output_text")
    assert outputs[-1] == ("execute_result", "'ab'")


def test_a_progress_bar_is_one_output_that_is_redrawn(kernel):
    kernel.run("import rxllm.display._progress_bar as bars\nbars.EVERY = 0.0")
    code = "list(rxllm.generate_many(Fake('Hi'), ['a'] * 3, on_progress=rxllm.display.progress_bar('<b>')))\n5"
    outputs = kernel.run(code)
    assert kinds(outputs) == ["display_data", *["update_display_data"] * 3, "execute_result"]
    assert outputs[3][1].startswith("<pre>&lt;b&gt;: 100%|██████████| 3/3 [")


def test_a_timeline_grows_in_one_output_and_is_drawn_once(kernel):
    outputs = kernel.run('rxllm.timeline(parts("Hel", "lo"), title="Slow")', open_at="<rect")
    assert kinds(outputs)[0] == "display_data"
    assert set(kinds(outputs)[1:]) == {"update_display_data"}
    assert len(outputs) > 2
    assert outputs[-1][1].count("<svg") == 1
    assert "Slow" in outputs[-1][1]
    (again,) = kernel.run("rxllm.display.last")
    assert again == ("execute_result", outputs[-1][1])


def test_a_stopped_timeline_keeps_its_bars(kernel):
    outputs = kernel.run('rxllm.timeline(answer("Hel", ("delay", 60), "lo"))', interrupt_at="<rect")
    assert outputs[-1][0] == "error"
    assert "Stopped" in outputs[-1][1]
    (again,) = kernel.run("rxllm.display.last.rows[0].end > 0")
    assert again == ("execute_result", "True")
