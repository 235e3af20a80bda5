"""``python -m rxllm serve``, through a pseudo-terminal and OpenAI's own SDK."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import httpx
import openai
import pytest
from openai import OpenAI

from rxllm.testing.loopback import Loopback, Reply, chat
from tests.cli.terminal import CTRL_C, Terminal, environment, piped
from tests.closing import STALLED, assert_closed
from tests.programs import python_without
from tests.waiting import PATIENCE

pytestmark = pytest.mark.judges

HI = [{"role": "user", "content": "Hi"}]


def url(terminal: Terminal) -> str:
    found = re.search(r"http://\S+/v1", terminal.wait_for("(Ctrl-C stops)"))
    assert found is not None
    return found[0]


@pytest.mark.judges
def test_it_serves_a_model_until_ctrl_c() -> None:
    pytest.importorskip("uvicorn", reason="pip install uvicorn")
    with Loopback(Reply(chat("Hel", "lo"))) as provider, Terminal("serve", "--port", "0", server=provider) as terminal:
        with OpenAI(base_url=url(terminal), api_key="any") as sdk:
            assert [model.id for model in sdk.models.list()] == ["openai:m"]
            completion = sdk.chat.completions.create(model="openai:m", messages=HI)  # pyright: ignore
            assert completion.choices[0].message.content == "Hello"
        terminal.type(CTRL_C)
        code, screen = terminal.leave()
    assert code == 0
    assert "Traceback" not in screen


@pytest.mark.judges
def test_it_serves_the_local_model_by_default() -> None:
    pytest.importorskip("uvicorn", reason="pip install uvicorn")
    pytest.importorskip("xllamacpp", reason="pip install 'rxllm[local]'")
    with Terminal("serve", "--port", "0", RXLLM_MODEL="") as terminal:
        with OpenAI(base_url=url(terminal), api_key="any") as sdk:
            stream = sdk.chat.completions.create(
                model="local", messages=HI, max_tokens=8, seed=1, stream=True, stream_options={"include_usage": True}
            )  # pyright: ignore
            chunks = list(stream)
        terminal.type(CTRL_C)
        code, screen = terminal.leave()
    assert code == 0, screen
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 8


@pytest.mark.judges
def test_ctrl_c_ends_a_running_answer_and_closes_the_providers_socket() -> None:
    pytest.importorskip("uvicorn", reason="pip install uvicorn")
    with Loopback(STALLED) as provider, Terminal("serve", "--port", "0", server=provider) as terminal:
        body = {"model": "openai:m", "messages": HI, "stream": True}
        with httpx.stream("POST", f"{url(terminal)}/chat/completions", json=body, timeout=PATIENCE) as response:
            chunks = response.iter_bytes()
            next(chunks)
            terminal.type(CTRL_C)
            with pytest.raises(httpx.RemoteProtocolError):
                list(chunks)
        code, screen = terminal.leave()
        provider.connections[0].wait_closed()
        assert_closed(provider.connections[0])
    assert code == 0
    assert "Traceback" not in screen, screen


@pytest.mark.judges
def test_a_key_lets_clients_in() -> None:
    pytest.importorskip("uvicorn", reason="pip install uvicorn")
    options = ["serve", "--port", "0", "--host", "0.0.0.0", "--key", "SERVE_KEY", "-m", "openai:a", "-m", "openai:b"]
    with Loopback() as provider, Terminal(*options, server=provider, SERVE_KEY="secret") as terminal:
        address = url(terminal).replace("0.0.0.0", "127.0.0.1")
        with OpenAI(base_url=address, api_key="secret") as sdk:
            assert [model.id for model in sdk.models.list()] == ["openai:a", "openai:b"]
            with pytest.raises(openai.AuthenticationError):
                sdk.with_options(api_key="other").models.list()
        terminal.type(CTRL_C)
        _, screen = terminal.leave()
    assert "secret" not in screen


@pytest.mark.judges
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", ""])
def test_other_addresses_need_a_key(host: str) -> None:
    ended = piped("serve", "--port", "0", "--host", host)
    assert ended.returncode == 2
    assert "a key is required" in ended.stderr


def test_a_key_that_is_not_there_is_told() -> None:
    ended = piped("serve", "--key", "NO_SUCH_VARIABLE")
    assert ended.returncode == 2
    assert "NO_SUCH_VARIABLE" in ended.stderr


def test_an_unknown_provider_is_told() -> None:
    ended = piped("serve", "-m", "nobody:x")
    assert ended.returncode == 1
    assert "nobody" in ended.stderr


def test_a_provider_without_its_key_is_told() -> None:
    ended = piped("serve", "-m", "openai:gpt-5", OPENAI_API_KEY="")
    assert ended.returncode == 1
    assert "no API key for openai" in ended.stderr


def test_a_port_that_is_taken_is_told() -> None:
    pytest.importorskip("uvicorn", reason="pip install uvicorn")
    with Loopback() as other:
        ended = piped("serve", "--port", str(urlsplit(other.url).port))
    assert ended.returncode == 2
    assert "--port 0 chooses a free port" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_without_its_server_the_remedy_is_told() -> None:
    code = "from rxllm.cli import main; raise SystemExit(main(['serve', '--port', '0']))"
    ended = python_without(["uvicorn"], code, env=environment())
    assert ended.returncode == 1
    assert 'pip install "rxllm[web]"' in ended.stderr
