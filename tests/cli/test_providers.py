"""``python -m rxllm providers``."""

from __future__ import annotations

import rxllm
from rxllm.cli import main


def test_every_provider_has_a_row_and_no_key_is_shown(capsys, monkeypatch) -> None:
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY", "OLLAMA_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://user:sk-secret@proxy.example/v1")
    assert main(["providers"]) == 0
    out, err = capsys.readouterr()
    head, *rows = out.splitlines()
    assert head.split() == ["provider", "key", "is", "default", "address"]
    assert [row.split()[0] for row in rows] == rxllm.adapters.providers()
    assert "secret" not in out + err
    cells = {row.split()[0]: row.split()[1:] for row in rows}
    assert cells["openai"] == ["OPENAI_API_KEY", "set", "https://api.openai.com/v1"]
    assert cells["google"][:2] == ["GOOGLE_API_KEY", "missing"]
    assert cells["huggingface"][0] == "HF_TOKEN"
    assert cells["vllm"] == ["-", "not", "needed", "http://localhost:8000/v1"]
    assert cells["ollama"][:3] == ["OLLAMA_API_KEY", "not", "needed"]
    assert cells["local"][:3] == ["-", "not", "needed"]


def test_a_plugin_that_does_not_load_is_a_row_that_says_so(capsys, monkeypatch) -> None:
    def fail(name: str, **options: object) -> rxllm.Engine:
        raise rxllm.EngineError("missing_dependency", "the plugin\nis broken")

    monkeypatch.setattr("rxllm.cli._main.rxllm.adapters.providers", lambda: ["acme"])
    monkeypatch.setattr("rxllm.cli._main.Engine", fail)
    assert main(["providers"]) == 0
    assert "the plugin is broken" in capsys.readouterr().out
