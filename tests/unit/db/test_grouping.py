from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from windlass.core.errors import Conflict, Unavailable
from windlass.db.database import Database, sqlite_url
from windlass.db.grouping import GroupedWrites


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    db = Database(sqlite_url(tmp_path / "t.db"))
    with db.write() as tx:
        tx.execute(text("CREATE TABLE t (n INTEGER PRIMARY KEY, tx INTEGER)"))
    yield db
    db.close()


def insert(number: int, tx: Connection) -> int:
    tx.execute(text("INSERT INTO t VALUES (:n, :tx)"), {"n": number, "tx": id(tx)})
    return number


def fail(tx: Connection) -> int:
    insert(100, tx)
    raise Conflict("no")


def numbers(db: Database) -> list[int]:
    with db.read() as tx:
        return list(tx.execute(text("SELECT n FROM t ORDER BY n")).scalars())


class Crowd:
    """A first write that is held open until all others have come."""

    def __init__(self, db: Database, others: int) -> None:
        self._grouped = GroupedWrites(db)
        self._others = others
        self._began = threading.Event()

    def first(self, tx: Connection) -> int:
        self._began.set()
        while len(self._grouped._waiting) < self._others:
            threading.Event().wait(0.001)
        return insert(0, tx)

    def run(self, deeds: list[object]) -> list[object]:
        with ThreadPoolExecutor(1 + len(deeds)) as pool:
            first = pool.submit(self._grouped.write, self.first)
            assert self._began.wait(10)
            rest = [pool.submit(self._grouped.write, deed, key=str(n)) for n, deed in enumerate(deeds)]
            return [future.exception() or future.result() for future in [first, *rest]]


def test_those_that_come_meanwhile_share_a_transaction(db: Database) -> None:
    begun = []
    write = db.write
    db.write = lambda: begun.append(1) or write()  # type: ignore[method-assign,func-returns-value]
    assert Crowd(db, 20).run([lambda tx, n=n: insert(n, tx) for n in range(1, 21)]) == list(range(21))
    assert numbers(db) == list(range(21))
    assert len(begun) == 2


def test_one_that_fails_costs_the_others_nothing(db: Database) -> None:
    deeds: list[object] = [lambda tx, n=n: insert(n, tx) for n in range(1, 6)]
    deeds.insert(2, fail)
    found = Crowd(db, 6).run(deeds)
    assert isinstance(found.pop(3), Conflict)
    assert found == list(range(6))
    assert numbers(db) == list(range(6))


def test_trouble_with_the_database_is_told_to_all_and_nothing_is_done_twice(db: Database) -> None:
    class Fault:
        after_first = 0

        def before(self) -> None:
            self.after_first += 1
            if self.after_first > 1:
                raise Unavailable("away")

        def after(self) -> None:
            pass

    db._fault = Fault()  # type: ignore[assignment]
    called = []

    def deed(tx: Connection) -> int:
        called.append(1)
        return insert(len(called), tx)

    found = Crowd(db, 4).run([deed] * 4)
    assert [type(one) for one in found] == [int] + [Unavailable] * 4
    assert len(called) == 4
    assert numbers(db) == [0]


def test_a_lone_write_returns_what_it_is_given_and_raises_what_is_wrong(db: Database) -> None:
    grouped = GroupedWrites(db)
    assert grouped.write(lambda tx: insert(1, tx)) == 1
    with pytest.raises(Conflict):
        grouped.write(fail)
    assert numbers(db) == [1]
