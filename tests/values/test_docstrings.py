"""What the model reads of a docstring: the parameters' texts in the schema, and everything else in the description."""

from __future__ import annotations

from typing import Any

import pytest

from rxllm import Fake, generate, tool

INTRODUCTION = "Get the weather.\n\nOnly European cities."
CITY, DAYS = "The city's name, in English.", "How many days."

GOOGLE = """
    {title}:
        city{city}: The city's name,
            in English.
        days{days}: How many days.
"""
NUMPY = """
    Parameters
    ----------
    city{city}
        The city's name,
        in English.
    days{days}
        How many days.
"""
SPHINX = """
    :{name} {city}city: The city's name,
        in English.
    :{name} {days}days: How many days.
"""
SECTIONS = {
    "Args": GOOGLE.format(title="Args", city="", days=""),
    "Args with types": GOOGLE.format(title="Args", city=" (str)", days=" (Optional[int], optional)"),
    "Args with nested brackets": GOOGLE.format(title="Args", city="(str)", days=" (tuple(int, int), (or) one)"),
    "Arguments": GOOGLE.format(title="Arguments", city="", days=""),
    "Parameters": GOOGLE.format(title="Parameters", city="", days=""),
    "Keyword Args": GOOGLE.format(title="Keyword Args", city="", days=""),
    "NumPy": NUMPY.format(city=" : str", days=" : int, optional"),
    "NumPy without types": NUMPY.format(city="", days=""),
    "Sphinx": SPHINX.format(name="param", city="", days=""),
    "Sphinx with types": SPHINX.format(name="param", city="str ", days="Optional[int] "),
    "Sphinx arguments": SPHINX.format(name="arg", city="", days=""),
    "Sphinx with type fields": SPHINX.format(name="param", city="", days="") + "    :type days: int\n",
}


def documented(docstring: str) -> Any:
    def weather(city: str, days: int = 1) -> str:
        return f"{city} {days}"

    weather.__doc__ = docstring
    return tool(weather)


def told(made: Any) -> tuple[str, dict[str, str | None]]:
    """The description and the parameters' texts that reach the adapter."""
    fake = Fake("Hello")
    generate(fake, "Hi", tools=[made]).run()
    (sent,) = fake.requests[0].tools
    return sent.description, {name: part.get("description") for name, part in sent.schema["properties"].items()}


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS)
def test_the_whole_docstring_reaches_the_model_and_the_parameters_texts_are_in_the_schema(section: str) -> None:
    docstring = f"Get the weather.\n\n    Only European cities.\n{section}"
    assert told(documented(docstring)) == (INTRODUCTION, {"city": CITY, "days": DAYS})


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS)
def test_what_follows_the_parameters_is_in_the_description(section: str) -> None:
    rest = "Returns\n-------\nstr\n    The weather." if "----" in section else "Returns:\n    The weather."
    indented = rest.replace("\n", "\n    ")
    docstring = f"Get the weather.\n\n    Only European cities.\n{section}\n    {indented}\n"
    assert told(documented(docstring)) == (f"{INTRODUCTION}\n\n{rest}", {"city": CITY, "days": DAYS})


def test_sphinx_fields_need_no_blank_line_before_them() -> None:
    docstring = "Get the weather.\n    :param city: The city.\n    :returns: The weather.\n    :raises KeyError: Never."
    description = "Get the weather.\n:returns: The weather.\n:raises KeyError: Never."
    assert told(documented(docstring)) == (description, {"city": "The city.", "days": None})


def test_numpy_parameters_that_share_a_text_all_get_it() -> None:
    docstring = "Get it.\n\n    Parameters\n    ----------\n    city, days : object\n        Both.\n"
    assert told(documented(docstring)) == ("Get it.", {"city": "Both.", "days": "Both."})


@pytest.mark.parametrize(
    "docstring",
    [
        "Get the weather.\n\nParameters:\n    The city must be in Europe.",
        "Get the weather.\n\nArgs: a city.",
        "Get the weather.\n\nArgs:",
        "Note: the city is in Europe.",
        "Get the weather.\n\n>>> weather('Paris')\n'sunny'",
        ":ref:`city` is a place.",
        "",
    ],
)
def test_text_that_only_looks_like_a_section_stays_in_the_description(docstring: str) -> None:
    assert told(documented(docstring)) == (docstring, {"city": None, "days": None})


def test_entries_that_are_not_parameters_are_left_out() -> None:
    docstring = "Get it.\n\n    Args:\n        town: Not a parameter.\n        city: The city.\n"
    assert told(documented(docstring)) == ("Get it.", {"city": "The city.", "days": None})


def test_a_description_that_is_given_replaces_that_of_the_docstring_only() -> None:
    def weather(city: str) -> str:
        """Get the weather.

        :param city: The city.
        """
        return city

    assert told(tool(description="Look.")(weather)) == ("Look.", {"city": "The city."})
