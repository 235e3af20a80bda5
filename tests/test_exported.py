from __future__ import annotations

from types import ModuleType

import pytest

import rxllm
from rxllm import operators, values
from tests.programs import python

MODULES = ["adapters", "chunks", "http", "images", "operators", "pipelines", "runtime", "values", "wire"]

OPTIONAL = ["aiohttp", "httpx", "httpx2", "xllamacpp", "IPython", "ipykernel", "jsonschema_rs", "openai", "pydantic"]
OPTIONAL += ["pytest", "uvloop"]


@pytest.mark.parametrize("module", [rxllm, operators, values])
def test_the_exported_names_are_sorted_and_all_there(module: ModuleType) -> None:
    assert list(module.__all__) == sorted(module.__all__)
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("name", MODULES)
def test_each_room_says_what_it_exports(name: str) -> None:
    module = __import__(f"rxllm.{name}", fromlist=["__all__"])
    assert all(hasattr(module, exported) for exported in module.__all__)


def test_what_is_public_in_the_package_is_exported() -> None:
    rooms = {
        "adapters",
        "bridge",
        "chunks",
        "cli",
        "collector",
        "display",
        "engine",
        "events",
        "http",
        "images",
        "pipelines",
        "plugins",
        "runtime",
        "testing",
        "tools",
        "values",
        "wire",
    }
    private = {"import_module", "annotations"}
    # pytest puts names with an "@" into the modules of its plugins' packages.
    public = {name for name in vars(rxllm) if not name.startswith(("_", "@"))} - rooms - private
    unlisted = {"combine_latest", "merge", "zip"}  # beside `race`, where they are guessed
    assert public - {"TYPE_CHECKING", "Any"} - unlisted <= set(rxllm.__all__)
    assert dir(rxllm) == rxllm.__all__


@pytest.mark.parametrize("name", ["Call", "Image", "ImageRequest", "ImageResponse", "image_request"])
def test_what_the_facade_of_images_names_resolves_without_being_listed(name: str) -> None:
    assert getattr(rxllm, name) is getattr(values, name)
    assert name not in dir(rxllm)


def test_an_image_is_requested_on_the_facade_alone() -> None:
    from rxllm import Image, image_request

    wanted = image_request("a kestrel", n=2)
    assert isinstance(wanted, rxllm.ImageRequest)
    images = rxllm.images.FakeImages([Image.from_binary(b"\x89PNG\r\n\x1a\n", "image/png")] * 2)
    answer = rxllm.generate_image(rxllm.Engine(rxllm.Fake("Hi"), image_adapter=images), wanted).run()
    assert isinstance(answer, rxllm.ImageResponse)
    assert len(answer.images) == 2


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        rxllm.nothing  # type: ignore[attr-defined]


def test_every_event_is_exported() -> None:
    from rxllm.events import EVENT_CLASSES

    assert len(EVENT_CLASSES) == 28
    assert {cls.__name__ for cls in EVENT_CLASSES} <= set(rxllm.__all__)


def test_every_error_is_exported() -> None:
    from rxllm.values.errors import ERROR_CLASSES

    assert {name for name, cls in ERROR_CLASSES.items() if cls.__module__.startswith("rxllm")} <= set(rxllm.__all__)


@pytest.mark.judges
def test_importing_it_imports_nothing_optional() -> None:
    code = f"import sys, rxllm; print(*(name for name in {OPTIONAL!r} if name in sys.modules))"
    ran = python("-c", code)
    assert (ran.stderr, ran.stdout.split()) == ("", [])
