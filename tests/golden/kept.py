"""Files that users keep, as rxllm writes them today: a batch's journal, a cassette, a recording, a store of runs."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import rxllm
from rxllm import Engine, Fake, Request, ToolCall, Usage, tool
from rxllm.durable import open_runs
from rxllm.testing import Cassette, record
from tests.golden import samples

QUESTIONS = ["Hi", "Hi", "a \U0001f41f"]
NAMED = {"one": "Hi", "two": "Ho"}
TIMES = re.compile(r'(?<="at": )[0-9.e-]+')

CALLED: list[str] = []
"""What the models and tools of the runs were asked."""


def answer(request: Request) -> list[Any]:
    """Answer as a model that thinks and counts its tokens."""
    text = '{"name": "Lima"}' if request.response_format else request.messages[-1].text.upper()
    return [("thinking", "hm"), text, Usage(2, 1)]


def batch(model: Fake, journal: Path) -> list[Any]:
    """Return the answers to questions that are known by their keys, and to others that have ids."""
    return [
        response
        for questions in (QUESTIONS, NAMED)
        for response in rxllm.generate_many(model, questions, journal=journal, concurrency=1, temperature=0.5)
    ]


def journal(folder: Path) -> str:
    """Return the journal of a batch."""
    batch(Fake(answer), folder / "journal.jsonl")
    return (folder / "journal.jsonl").read_text(encoding="utf-8")


def questions() -> list[Request]:
    schema = rxllm.json_schema("city", {"type": "object"})
    told = rxllm.request([rxllm.system("Be brief."), rxllm.user("Hi")], tools=[add], temperature=0.5, stop=["END"])
    return [rxllm.request("Hi"), told, rxllm.request("JSON", response_format=schema, options={"k": 1})]


def cassette(folder: Path) -> str:
    """Return a cassette of three requests, without its times."""
    for request in questions():
        rxllm.generate(Engine(Cassette(folder / "cassette.jsonl", Fake(answer)), model="m"), request).run()
    return TIMES.sub("0.0", (folder / "cassette.jsonl").read_text(encoding="utf-8"))


def events() -> Any:
    return rxllm.stream(Fake(ToolCall("c1", "add", {"x": 1}), "two"), "Hi", tools=[add])


def recording(folder: Path) -> str:
    """Return the recording of a chat with a tool, without its times."""
    list(events().pipe(record(folder / "recording.jsonl")))
    return TIMES.sub("0.0", (folder / "recording.jsonl").read_text(encoding="utf-8"))


# Runs


@tool
async def add(x: int) -> int:
    """Add one."""
    CALLED.append(f"add {x}")
    return x + 1


@tool(approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    CALLED.append(f"pay {amount}")
    return f"paid {amount}"


def boss(request: Request) -> Any:
    step = sum(message.role == "tool" for message in request.messages)
    CALLED.append(f"boss {step}")
    calls = [ToolCall("c1", "add", {"x": 1}), ToolCall("c2", "expert", {"prompt": "Capital of Peru?"})]
    return [*calls, ToolCall("c3", "pay", {"amount": 5}), "Done."][step]


def expert(request: Request) -> Any:
    CALLED.append("expert")
    return "Lima." if request.messages[-1].role == "tool" else ToolCall("e1", "add", {"x": 8})


def team() -> Engine:
    agent = Engine(Fake(expert), tools=[add]).as_tool(name="expert", description="Knows everything.")
    return Engine(Fake(boss), tools=[add, pay, agent])


FACTORIES: dict[str, Any] = {
    "chat": lambda question: rxllm.stream(team(), question),
    "resume": lambda halted: rxllm.stream_resume(team(), halted, approvals={"c3": True}),
}


def runs(folder: Path) -> str:
    """Return the rows of a store: a chat with a tool and an agent halts for an approval and ends; a session."""
    with open_runs(folder / "runs.db", FACTORIES) as store:
        store.start("chat", "Go!", id="halted").run()
        store.start("resume", store.result("halted").run(), id="resumed").run()
        store.result("resumed").run()
        store.save_session(samples.SESSION).run()
    return rows_of(folder / "runs.db")


VOLATILE = {"created_at": 0.0, "ended_at": 1.0, "owner": None, "leased_until": 0.0, "token": ""}


def rows_of(path: Path) -> str:
    """Return a store's schema and rows as JSON, without times and owners."""
    with closing(sqlite3.connect(path)) as db:
        db.row_factory = sqlite3.Row
        pragmas = {name: db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("user_version", "application_id")}
        schema = [row["sql"] for row in db.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL ORDER BY name")]
        schema = [statement for statement in schema if "sqlite_" not in statement]
        tables = {
            name: [_plain(dict(row)) for row in db.execute(f"SELECT * FROM {name}")]
            for name in ("runs", "events", "records", "documents")
        }
    return json.dumps({"pragmas": pragmas, "schema": schema, **tables}, indent=1, ensure_ascii=False) + "\n"


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    row = {name: VOLATILE.get(name, value) for name, value in row.items()}
    return {name: {"blob": _timeless(value)} if isinstance(value, bytes) else value for name, value in row.items()}


def _timeless(data: bytes) -> str:
    """Return an entry of a log without the time of its event."""
    return re.sub(r', "at": \d+\.\d+(?=[,}])', "", data.decode())


def restore(text: str, path: Path) -> None:
    """Make the store of which `rows_of` gave the rows."""
    kept = json.loads(text)
    with closing(sqlite3.connect(path)) as db, db:
        for name, number in kept.pop("pragmas").items():
            db.execute(f"PRAGMA {name} = {number}")
        for statement in sorted(kept.pop("schema"), key=lambda statement: "CREATE INDEX" in statement):
            db.execute(statement)
        for table, rows in kept.items():
            for row in rows:
                values = [value["blob"].encode() if isinstance(value, dict) else value for value in row.values()]
                marks = ", ".join("?" * len(row))
                db.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", values)


WRITERS = {"journal.jsonl": journal, "cassette.jsonl": cassette, "recording.jsonl": recording, "runs.json": runs}
