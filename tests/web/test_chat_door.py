"""Who may use a `web.chat`: the `allow` function, this machine alone, pages of other sites, and the rate of posts."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from rxllm import Fake, Session, web
from rxllm.session import MemorySessions
from rxllm.web import _chat_door
from tests.web.chats import Page, body, browser, made, says, text_of, visit

OURS = "https://example.org"
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "content-type, x-key"}


async def all_methods(page: Page, **options: Any) -> list[int]:
    return [
        (await page.client.post("/api/chat", json=body(page.id, says("Hi")), **options)).status_code,
        (await page.client.get(f"/api/chat/{page.id}/stream", **options)).status_code,
        (await page.client.delete(f"/api/chat/{page.id}", **options)).status_code,
    ]


# The `allow` function


class Untouched:
    """A store that must not be asked."""

    async def load(self, id: Any) -> Any:
        raise AssertionError(id)

    save = delete = load


def test_a_conversation_that_is_not_allowed_does_not_exist() -> None:
    asked: list[Any] = []

    def allow(request: web.ChatRequest, id: str) -> bool:
        asked.append((request.method, id, request.headers["x-user"], request.cookies["name"], request.client))
        return False

    app = web.chat(Fake("Hi"), Untouched(), allow=allow)
    headers = {"x-user": "ada", "cookie": 'name="ada"; other=1'}
    assert visit(app, lambda page: all_methods(page, headers=headers)) == [404] * 3
    assert asked == [(method, "c", "ada", "ada", "127.0.0.1") for method in ("POST", "GET", "DELETE")]


def test_cookies_in_several_fields_are_several_cookies() -> None:
    fields = [(b"cookie", b"name=ada"), (b"accept", b"a"), (b"Cookie", b'theme="dark"; x=1'), (b"accept", b"b")]
    request = web.ChatRequest({"type": "http", "method": "GET", "headers": fields})
    assert request.cookies == {"name": "ada", "theme": "dark", "x": "1"}
    assert request.headers["accept"] == "a, b"


@pytest.mark.parametrize("allow", [None, lambda request, id: True])
@pytest.mark.parametrize("hosts", [("localhost", "evil.example"), ("localhost", "localhost")])
def test_two_host_fields_are_refused(hosts: tuple[str, str], allow: Any) -> None:
    app, _ = made(allow=allow)

    async def twice(scope: Any, receive: Any, send: Any) -> None:
        fields = [field for field in scope["headers"] if field[0] != b"host"]
        await app({**scope, "headers": [*fields, *((b"Host", host.encode()) for host in hosts)]}, receive, send)

    assert visit(twice, all_methods) == [400] * 3


@pytest.mark.parametrize(("length", "status"), [("9" * 5000, 413), ("0" * 5000, 200), ("-5", 200), ("²", 200)])
def test_a_content_length_of_any_size_gets_an_answer(length: str, status: int) -> None:
    app, _ = made()

    async def long(scope: Any, receive: Any, send: Any) -> None:
        fields = [field for field in scope["headers"] if field[0] != b"content-length"]
        await app({**scope, "headers": [*fields, (b"content-length", length.encode("latin-1"))]}, receive, send)

    assert visit(long, lambda page: page.say("Hi")).status_code == status


def test_a_refusal_does_not_tell_what_exists() -> None:
    async def allow(request: web.ChatRequest, id: str) -> bool:
        await asyncio.sleep(0)
        return id == "mine"

    store = MemorySessions()
    asyncio.run(store.save(Session(id="theirs").append_user("A secret.")))
    app = web.chat(Fake("Hello"), store, allow=allow)

    async def act(page: Page) -> None:
        client = page.client
        for method in ("GET", "DELETE"):
            theirs, none = [await client.request(method, f"/api/chat/{id}") for id in ("theirs", "none")]
            assert (theirs.status_code, theirs.content, theirs.headers) == (404, none.content, none.headers)
        theirs, none = [await Page(client, id).say("Hi") for id in ("theirs", "none")]
        assert (theirs.status_code, theirs.content) == (404, none.content)
        assert text_of(await Page(client, "mine").say("Hi")) == "Hello"

    visit(app, act, client=("203.0.113.9", 5), base_url="https://example.org")


@pytest.mark.parametrize("answer", [None, 0, ""])
def test_only_true_allows(answer: Any) -> None:
    app, _ = made(allow=lambda request, id: answer)
    assert visit(app, all_methods) == [404] * 3


def test_an_exception_of_the_function_is_the_frameworks() -> None:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.routing import Route

    def allow(request: web.ChatRequest, id: str) -> bool:
        raise HTTPException(401, "log in")

    app = Starlette(routes=[Route("/api/chat{rest:path}", made(allow=allow)[0])])
    assert visit(app, all_methods) == [401] * 3


# This machine alone


@pytest.mark.parametrize(
    ("client", "host"),
    [
        *(("127.0.0.1", "localhost"), ("127.0.0.1", "LOCALHOST:8000"), ("127.9.9.9", "127.0.0.1:8000")),
        *(("::1", "[::1]:8000"), ("::ffff:127.0.0.1", "localhost:8000")),
    ],
)
def test_this_machine_is_served(client: str, host: str) -> None:
    app, _ = made()
    assert visit(app, lambda page: all_methods(page, headers={"host": host}), client=(client, 5)) == [200, 204, 204]


@pytest.mark.parametrize(
    ("client", "headers"),
    [
        *(("192.168.1.7", {"host": "localhost"}), ("203.0.113.9", {"host": "127.0.0.1"}), ("", {"host": "localhost"})),
        *(("testclient", {"host": "localhost"}), ("::ffff:192.168.1.7", {"host": "localhost"})),
        ("127.0.0.1", {"host": "evil.example"}),  # a hostile name that points to this machine
        *(("127.0.0.1", {"host": host}) for host in ("evil.example:8000", "localhost.evil.example", "", "[", "a@b:c")),
        *(("127.0.0.1", {"host": host}) for host in ("192.168.1.7:8000", "0.0.0.0", "localhost@evil.example")),
        *(("127.0.0.1", {"host": "localhost", name: "203.0.113.9"}) for name in ("x-forwarded-for", "forwarded")),
        ("127.0.0.1", {"host": "localhost", "x-real-ip": "203.0.113.9"}),
    ],
)
def test_others_are_not(client: str, headers: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    app = web.chat(Fake("Hi"), Untouched())

    async def act(page: Page) -> None:
        assert await all_methods(page, headers=headers) == [403] * 3
        refused = await page.client.get("/api/chat/c", headers=headers)
        assert "allow=" in refused.json()["error"]["message"]

    with caplog.at_level(logging.INFO, "rxllm"):
        visit(app, act, client=(client, 5))
    (record,) = [record for record in caplog.records if record.name == "rxllm"]
    assert (record.levelname, "allow=" in record.getMessage()) == ("WARNING", True)


def test_a_socket_without_an_address_is_not_this_machine() -> None:
    app, _ = made()
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/api/chat/c", "headers": [(b"host", b"localhost")]}
    asyncio.run(app({**scope, "client": None}, None, send))
    assert sent[0]["status"] == 403


# Pages of other sites


@pytest.mark.parametrize(
    "headers",
    [
        *(
            {"origin": origin}
            for origin in ("https://evil.example", "null", "http://localhost:3000", "http://127.0.0.1")
        ),
        *({"origin": origin} for origin in ("localhost", "", "https://example.org.evil.example")),
        *({"sec-fetch-site": site} for site in ("cross-site", "same-site")),
    ],
)
@pytest.mark.parametrize("options", [{}, {"origins": [OURS], "allow": lambda request, id: True}], ids=["local", "open"])
def test_pages_of_other_sites_are_refused(headers: dict[str, str], options: dict[str, Any]) -> None:
    app = web.chat(Fake("Hi"), Untouched(), **options)

    async def act(page: Page) -> None:
        assert await all_methods(page, headers=headers) == [403] * 3
        preflight = await page.client.options("/api/chat", headers={**headers, **PREFLIGHT})
        assert preflight.status_code in (403, 405)
        assert "access-control-allow-origin" not in preflight.headers

    visit(app, act)


@pytest.mark.parametrize("headers", [{}, {"origin": "http://localhost"}, {"sec-fetch-site": "same-origin"}])
def test_pages_of_this_site_are_served(headers: dict[str, str]) -> None:
    app, _ = made()
    assert visit(app, lambda page: all_methods(page, headers=headers)) == [200, 204, 204]


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/json", ""]
)
def test_a_form_cannot_post(kind: str) -> None:
    """A page of any site can post these without asking the browser."""
    app = web.chat(Fake("Hi"), Untouched())

    async def act(page: Page) -> int:
        headers = {"content-type": kind} if kind else {}
        return (await page.client.post("/api/chat", content=b'{"id": "c"}', headers=headers)).status_code

    assert visit(app, act) == 415


def test_a_listed_site_is_served() -> None:
    app, _ = made(origins=[OURS], allow=lambda request, id: id == "c")
    headers = {"origin": OURS, "sec-fetch-site": "cross-site"}

    async def act(page: Page) -> None:
        preflight = await page.client.options("/api/chat", headers={**headers, **PREFLIGHT})
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-methods"] == "POST"
        assert preflight.headers["access-control-allow-headers"] == "content-type, x-key"
        stop = await page.client.options("/api/chat/c", headers={**headers, **PREFLIGHT})
        assert stop.headers["access-control-allow-methods"] == "GET, DELETE"
        page.client.headers.update(headers)
        said, refused = await page.say("Hi"), await Page(page.client, "d").say("Hi")
        assert (said.status_code, refused.status_code) == (200, 404)
        for response in (preflight, stop, said, refused, await page.back(), await page.stop()):
            assert response.headers["access-control-allow-origin"] == OURS
            assert response.headers["access-control-allow-credentials"] == "true"
            assert response.headers["vary"] == "origin"

    visit(app, act)


# The rate


def test_posts_are_counted_for_each_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(_chat_door, "time", SimpleNamespace(monotonic=lambda: now))
    app, _ = made(max_per_minute=3)

    async def main() -> None:
        nonlocal now
        async with browser(app) as client:
            page = Page(client)
            for _ in range(3):
                assert (await page.say("Hi")).status_code == 200
                now += 10
            refused = await page.say("Hi")
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "30")
            assert (await Page(client, "d").say("Hi")).status_code == 200
            assert (await page.back()).status_code == 204
            now += 30
            assert (await page.say("Hi")).status_code == 200
            assert (await page.say("Hi")).status_code == 429
            now += 60
            for _ in range(3):
                assert (await page.say("Hi")).status_code == 200

    asyncio.run(main())


def test_conversations_are_forgotten_by_the_rate() -> None:
    door = _chat_door.Door(None, (), 3)
    for i in range(100):
        door.count(str(i), "POST")
    door._forget_at -= 2 * _chat_door.SECONDS
    for times in door._times.values():
        times[-1] -= _chat_door.SECONDS
    door.count("new", "POST")
    assert list(door._times) == [("new", True)]


def test_other_requests_are_counted_too_and_do_not_use_up_the_posts() -> None:
    app, _ = made(max_per_minute=3)

    async def act(page: Page) -> None:
        assert [(await page.back()).status_code for _ in range(2)] == [204, 204]
        assert (await page.stop()).status_code == 204
        refused = [await page.back(), await page.stop()]
        assert [response.status_code for response in refused] == [429, 429]
        assert (await page.say("Hi")).status_code == 200
        assert (await Page(page.client, "d").back()).status_code == 204

    visit(app, act)


def test_refused_requests_are_not_counted() -> None:
    """Nobody can use up the posts of a conversation that is not theirs."""
    app, _ = made(max_per_minute=1, allow=lambda request, id: "x-user" in request.headers)

    async def act(page: Page) -> None:
        for _ in range(3):
            assert (await page.say("Hi")).status_code == 404
        page.client.headers["x-user"] = "ada"
        assert (await page.say("Hi")).status_code == 200

    visit(app, act)
