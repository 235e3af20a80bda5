"""One server per model, and what is said when there can be none."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rxllm.adapters.local import server
from rxllm.adapters.local.server import Server, serve
from rxllm.values import EngineError
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def _no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_servers", {})
    return


def test_callers_at_the_same_time_share_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[Path] = []
    asked: list[Any] = []

    class Servers(dict[Any, Any]):
        def setdefault(self, key: Any, default: Any = None) -> Any:
            asked.append(key)
            return super().setdefault(key, default)

    def start(path: Path, n_ctx: int) -> Server:
        started.append(path)
        wait_until(lambda: len(asked) >= 8)  # it starts for as long as there are callers to come
        return Server("http://one", True)

    monkeypatch.setattr(server, "_servers", Servers())
    monkeypatch.setattr(server, "_start", start)

    def call(_: Any) -> Server:
        return serve(tmp_path / "a", 8192)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(map(id, pool.map(call, range(8))))) == 1
    serve(tmp_path / "b", 8192)
    assert started == [tmp_path / "a", tmp_path / "b"]


def test_a_failed_start_is_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(path: Path, n_ctx: int) -> Server:
        raise EngineError("invalid_engine", "broken")

    monkeypatch.setattr(server, "_start", fail)
    with pytest.raises(EngineError, match="broken"):
        serve(tmp_path, 8192)
    monkeypatch.setattr(server, "_start", lambda path, n_ctx: Server("http://two", True))
    assert serve(tmp_path, 8192).url == "http://two"


def test_without_xllamacpp_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(EngineError, match=r"pip install 'rxllm\[local\]'") as caught:
        serve(tmp_path, 8192)
    assert caught.value.reason == "missing_dependency"


def test_a_broken_file_is_an_error_and_no_crash(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("xllamacpp")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + b"\3" * 4096)
    with pytest.raises(EngineError, match=r"broken.gguf cannot be loaded") as caught:
        serve(tmp_path / "broken.gguf", 8192)
    assert caught.value.reason == "invalid_engine"
    assert capfd.readouterr() == ("", "")
