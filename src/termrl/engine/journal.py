"""What an engine has promised, on disk, so that a killed one goes on where it was.

Sessions, sampling sessions and requests are written before they are acknowledged, results before they can be
fetched. A request's body is kept until its effect is held elsewhere: in its result, or in a model's saved
state. Written without waiting for the disk: it survives the process, and a crash of the machine costs the
last moments. One connection, used by one thread at a time.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SCHEMA = """
create table if not exists sessions (id text primary key, record text not null);
create table if not exists samplers (id text primary key, session text not null, record text not null);
create table if not exists requests (
    n integer primary key autoincrement,
    request_id text not null unique,
    key text not null unique,
    session text not null,
    model text,
    call text not null,
    body blob,
    result blob,
    content_type text
);
create index if not exists requests_of_model on requests (model, n);
"""


_FORGOTTEN = "forgotten"
"""The content type of a result that nobody will fetch again."""


@dataclass(frozen=True)
class Entry:
    """One request; `result` is None while it is not done, `body` None once it is not needed."""

    n: int
    request_id: str
    key: str
    session: str
    model: str | None
    call: str
    body: bytes | None
    result: bytes | None
    content_type: str | None


class Journal:
    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self._connection.execute("pragma journal_mode=wal")
        self._connection.execute("pragma synchronous=off")
        self._connection.executescript(_SCHEMA)

    def sessions(self) -> dict[str, dict[str, Any]]:
        return {name: json.loads(record) for name, record in self._rows("select id, record from sessions")}

    def put_session(self, session_id: str, record: dict[str, Any]) -> None:
        self._do("insert or replace into sessions values (?, ?)", session_id, json.dumps(record))

    def drop_session(self, session_id: str) -> None:
        self._do("delete from sessions where id = ?", session_id)
        self._do("delete from samplers where session = ?", session_id)
        self._do("delete from requests where session = ?", session_id)

    def samplers(self) -> dict[str, dict[str, Any]]:
        return {name: json.loads(record) for name, record in self._rows("select id, record from samplers")}

    def put_sampler(self, sampler_id: str, record: dict[str, Any]) -> None:
        session_id = sampler_id.split(":")[0]
        self._do(
            "insert or replace into samplers values (?, ?, ?)", sampler_id, session_id, json.dumps(record)
        )

    def drop_sampler(self, sampler_id: str) -> None:
        self._do("delete from samplers where id = ?", sampler_id)

    def add_request(
        self, request_id: str, key: str, session: str, model: str | None, call: str, body: bytes
    ) -> int:
        """Writes a request down; its number orders it among all of them."""
        with self._lock:
            cursor = self._connection.execute(
                "insert into requests (request_id, key, session, model, call, body) "
                "values (?, ?, ?, ?, ?, ?)",
                (request_id, key, session, model, call, body),
            )
            assert cursor.lastrowid is not None
            return cursor.lastrowid

    def put_result(self, n: int, result: bytes, content_type: str) -> None:
        # What changes no model has no effect beside its result.
        self._do(
            "update requests set result = ?, content_type = ?, "
            "body = case when model is null then null else body end where n = ?",
            result,
            content_type,
            n,
        )

    def forget_bodies(self, model: str, n: int) -> None:
        """The model's state up to request n is on disk."""
        done = "where model = ? and n <= ? and result is not null"
        self._do(f"delete from requests {done} and content_type = ?", model, n, _FORGOTTEN)
        self._do(f"update requests set body = null {done}", model, n)

    def drop_request(self, request_id: str) -> None:
        # A body that is still needed to bring its model back stays for now; only the result goes.
        self._do("delete from requests where request_id = ? and (body is null or model is null)", request_id)
        self._do(
            "update requests set result = x'', content_type = ? where request_id = ?", _FORGOTTEN, request_id
        )

    def requests(self) -> Iterator[Entry]:
        columns = "n, request_id, key, session, model, call, body, result, content_type"
        for row in self._rows(f"select {columns} from requests order by n"):
            yield Entry(*row)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _do(self, statement: str, *values: object) -> None:
        with self._lock:
            self._connection.execute(statement, values)

    def _rows(self, statement: str) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(statement).fetchall()
