"""The pytest plugin, in runs of its own."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.judges

pytest_plugins = ["pytester"]


@pytest.fixture
def run(pytester: pytest.Pytester):
    def run(test: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(test)
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *options, timeout=100)

    return run


def test_the_loopback_fixture_starts_servers_and_stops_them(run) -> None:
    run(
        """
        import threading
        import httpx
        from rxllm.testing.loopback import Reply

        servers = []

        def test_it_answers(loopback):
            servers.extend([loopback(Reply(b"one")), loopback(Reply(b"two")), loopback()])
            with httpx.Client(trust_env=False) as client:
                assert [client.get(server.url).content for server in servers] == [b"one", b"two", b""]

        def test_they_have_stopped():
            assert [server.open_count for server in servers] == [0, 0, 0]
            assert "loopback" not in [thread.name for thread in threading.enumerate()]
        """
    ).assert_outcomes(passed=2)


def test_what_is_wrong_in_a_script_is_raised_at_the_end(run) -> None:
    result = run(
        """
        import httpx

        def wrong(request):
            raise KeyError("my script")

        def test_it_asks(loopback):
            with httpx.Client(trust_env=False) as client:
                try:
                    client.get(loopback(wrong).url)
                except httpx.HTTPError:
                    pass
        """
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*KeyError: 'my script'*"])


def test_it_imports_nothing_until_it_is_used(run) -> None:
    run(
        """
        import sys

        def test_nothing_is_imported():
            assert [name for name in ("rxllm", "reactivex", "httpx", "msgspec") if name in sys.modules] == []
        """
    ).assert_outcomes(passed=1)


def test_the_kits_assertions_are_rewritten(run) -> None:
    run(
        """
        from rxllm.testing import marbles

        def test_the_loader():
            assert type(marbles.__spec__.loader).__name__ == "AssertionRewritingHook"
        """
    ).assert_outcomes(passed=1)


def test_its_fixtures_are_listed(run) -> None:
    run("", "--fixtures").stdout.fnmatch_lines(["loopback*", "*starts a server: ``loopback(script)``*"])


def test_without_hypothesis_the_rest_of_the_kit_works(run) -> None:
    run(
        """
        import sys
        import pytest

        def test_strategies_say_what_they_need(monkeypatch):
            monkeypatch.setitem(sys.modules, "hypothesis", None)
            from rxllm import testing
            assert testing.events("Hi")
            with pytest.raises(ModuleNotFoundError, match="pip install hypothesis"):
                import rxllm.testing.strategies
        """,
        "-p",
        "no:hypothesispytest",
    ).assert_outcomes(passed=1)


def test_a_failure_of_a_suite_shows_what_is_wrong_and_not_the_kit(run) -> None:
    result = run(
        """
        from reactivex import operators as rx
        from rxllm import Fake, TextDelta
        from rxllm.testing import assert_adapter, assert_operator

        async def mine(request, call):
            yield TextDelta(request.nothing)

        def test_an_operator():
            assert_operator(lambda: rx.filter(lambda event: type(event).__name__ != "ErrorEvent"))

        def test_an_adapter():
            assert_adapter(Fake())

        def test_a_generator():
            assert_adapter(mine, only=["typed_error"])
        """
    )
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(["*AssertionError: error_event: *", "*yield TextDelta(request.nothing)*"])
    result.stdout.no_fnmatch_line("*leave it out where*")
    assert len(result.outlines) < 120
