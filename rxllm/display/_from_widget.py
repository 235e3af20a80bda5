"""`from_widget`: a control of ipywidgets or anywidget as a stream of its values."""

from __future__ import annotations

from typing import Any

from reactivex import abc
from reactivex.disposable import Disposable

from rxllm.runtime import Stream, clock, returned_by
from rxllm.values.argument_checks import check, check_instance


def from_widget(widget: Any, trait: str = "value") -> Stream[Any]:
    """Emit the value of `widget` and then each change of it; of a button, the button at each click.

    ::

        slider                     0----1-2-------3--
        from_widget(slider)        0----1-2-------3--     until it is disposed

    A slider that asks the model again once it rests, and cancels the answer to its former value::

        slider = ipywidgets.IntSlider(3)
        answers = from_widget(slider).pipe(
            rx.debounce(0.3),
            rx.switch_map(lambda days: rxllm.stream_generate(engine, f"{days} days in Rome").pipe(ops.snapshots())),
        )
        display(slider)
        rxllm.show(answers, block=False)

    `trait` names another trait than ``value``, such as an anywidget's own. In a notebook use ``block=False``, or
    ``subscribe``: a cell that blocks keeps the kernel from hearing of changes. The stream has no end; it observes the
    widget until it is disposed, and emits on the loop or the scheduler of its subscription, whichever thread changes
    the widget.

    Raises ``ValidationError("invalid_option")`` for what is no widget, or has no such trait.
    """
    check_instance("trait", trait, str, "the name of a trait")
    is_button = hasattr(widget, "on_click") and trait == "value"
    expected = "a widget of ipywidgets or anywidget, such as ipywidgets.IntSlider()"
    check("widget", widget, is_button or (hasattr(widget, "observe") and hasattr(widget, "has_trait")), expected)
    known = is_button or widget.has_trait(trait)
    check("trait", trait, known, f"a trait of {type(widget).__name__}, one of widget.trait_names()")

    def subscribe(observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        time, is_open = clock(scheduler), True

        def deliver(_: abc.SchedulerBase, value: Any = None) -> None:
            if is_open:
                observer.on_next(value)

        def on_change(change: Any) -> None:
            time.schedule(deliver, widget if is_button else change["new"])

        def close() -> None:
            nonlocal is_open
            is_open = False
            if is_button:
                widget.on_click(on_change, remove=True)
            else:
                widget.unobserve(on_change, trait)

        if is_button:
            widget.on_click(on_change)
        else:
            widget.observe(on_change, trait)
            time.schedule(deliver, getattr(widget, trait))
        return Disposable(close)

    return returned_by("from_widget", Stream(subscribe), items="items")
