"""`from_widget`: a control of ipywidgets or anywidget as a stream of its values."""

from __future__ import annotations

from typing import Any

from reactivex import abc
from reactivex.disposable import Disposable

from rxllm.runtime import Stream, clock, returned_by
from rxllm.values.argument_checks import check, check_instance


def from_widget(widget: Any, trait: str = "value") -> Stream[Any]:
    """Emit the value of `widget` and then each change of it; of a button, the button at each click.

    A slider that asks again once it rests, and cancels the answer to its former value::

        slider = ipywidgets.IntSlider(3)
        ask = lambda days: rxllm.stream_generate(engine, f"{days} days in Rome").pipe(ops.snapshots(0.05))
        answers = from_widget(slider).pipe(rx.debounce(0.3), rx.switch_map(ask))
        display(slider)
        rxllm.show(answers, block=False)

    `trait` names another trait than ``value``, such as an anywidget's own. A cell that blocks keeps the kernel from
    hearing of changes: use ``block=False``, or ``subscribe``. The stream has no end; it observes the widget until it is
    disposed, and emits on the loop or scheduler of its subscription, whichever thread changes the widget.

    Raises ``ValidationError("invalid_option")`` if `widget` is not a widget, or has no such trait.
    """
    check_instance("trait", trait, str, "the name of a trait")
    is_button = hasattr(widget, "on_click") and trait == "value"
    expected = "a widget of ipywidgets or anywidget, such as ipywidgets.IntSlider()"
    check("widget", widget, hasattr(widget, "observe") and hasattr(widget, "has_trait"), expected)
    known = is_button or widget.has_trait(trait)
    check("trait", trait, known, f"a trait of {type(widget).__name__}, one of widget.trait_names()")

    def subscribe(observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        time, subscription = clock(scheduler), Disposable(lambda: unobserve())

        def deliver(_: abc.SchedulerBase, value: Any = None) -> None:
            if not subscription.is_disposed:
                observer.on_next(value)

        def on_change(change: Any) -> None:
            time.schedule(deliver, widget if is_button else change["new"])

        def unobserve() -> None:
            widget.on_click(on_change, remove=True) if is_button else widget.unobserve(on_change, trait)

        if is_button:
            widget.on_click(on_change)
        else:
            widget.observe(on_change, trait)
            time.schedule(deliver, getattr(widget, trait))
        return subscription

    return returned_by("from_widget", Stream(subscribe), items="items")
