"""What is recorded as refused leaves no effects, also none that an ORM has kept back, and what is answered with
success has been committed."""

import asyncio
import uuid

import drivers
import httpx
import psycopg
import pytest
import servers

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")

from fastapi import Depends, FastAPI, HTTPException, Response  # noqa: E402
from sqlalchemy import create_engine, event, select, text  # noqa: E402
from sqlalchemy.exc import IntegrityError  # noqa: E402
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine  # noqa: E402
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker  # noqa: E402

from idempotence._await import finish, settle  # noqa: E402
from idempotence._drivers import driver_of  # noqa: E402
from idempotence.fastapi import Idempotent  # noqa: E402

DIALECTS = drivers.some(["psycopg", "psycopg2", "psycopg async", "asyncpg async"], ["psycopg", "asyncpg async"])


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "client_account"
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]


@pytest.fixture(autouse=True)
def accounts():
    servers.prepare(
        [
            "SELECT idem_create_session('effects')",
            "DROP TABLE IF EXISTS client_account",
            "CREATE TABLE client_account (id int PRIMARY KEY, balance int NOT NULL)",
            "INSERT INTO client_account VALUES (1, 70)",
        ]
    )


def balances():
    with psycopg.connect(servers.uri()) as conn:
        return dict(conn.execute("SELECT id, balance FROM client_account").fetchall())


def sessions(dialect, **options):
    driver, _, kind = dialect.partition(" ")
    url = drivers.sqlalchemy_url(f"postgresql+{driver}", servers.uri())
    if kind == "async":
        return async_sessionmaker(create_async_engine(url), **options)
    return sessionmaker(create_engine(url), **options)


def answers(pool, handler, keys=None, then=None, **options):
    """The answers to the same request, sent twice, or with these keys. `then` is called afterwards."""
    idempotent = Idempotent(pool, "effects", **options)
    app = FastAPI()
    app.router.route_class = idempotent.route
    if driver_of(idempotent.pool).asynchronous:

        @app.post("/")
        async def asynchronous(session=Depends(idempotent)):
            return await handler(session)
    else:

        @app.post("/")
        def blocking(session=Depends(idempotent)):
            return finish(handler(session))

    async def ask():
        transport = httpx.ASGITransport(app, raise_app_exceptions=bool(__import__("os").environ.get("DBG")))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            headers = [{"Idempotency-Key": uuid.uuid4().hex}] * 2 if keys is None else keys
            answers = [await client.post("/", headers=each) for each in headers]
        if then is not None:
            await settle(then())
        return answers

    return asyncio.run(ask())


@pytest.mark.parametrize("options", [{}, {"autoflush": False}, {"expire_on_commit": False}], ids=str)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_refusal_drops_what_the_session_has_kept_back(dialect, options):
    async def pay(session):
        account = await settle(session.get(Account, 1))
        account.balance -= 1000
        session.add(Account(id=2, balance=0))
        raise HTTPException(402, "insufficient funds")

    first, second = answers(sessions(dialect, **options), pay)
    assert (first.status_code, second.status_code) == (402, 402)
    assert second.headers["Idempotent-Replayed"] == "true" and balances() == {1: 70}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_success_commits_what_the_session_has_kept_back(dialect):
    async def pay(session):
        (await settle(session.get(Account, 1))).balance -= 30
        session.add(Account(id=2, balance=30))
        return {"paid": 30}

    first, second = answers(sessions(dialect, autoflush=False), pay)
    assert first.json() == second.json() == {"paid": 30} and balances() == {1: 40, 2: 30}


@pytest.mark.parametrize("rolls_back", [False, True], ids=["", "and the handler rolls back"])
@pytest.mark.parametrize("raises", [True, False], ids=["raises", "returns"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_integrity_error_of_flush_that_becomes_a_refusal(dialect, raises, rolls_back):
    async def create(session):
        (await settle(session.get(Account, 1))).balance = 0
        await settle(session.flush())
        session.add(Account(id=1, balance=0))
        try:
            await settle(session.flush())
        except IntegrityError:
            if rolls_back:
                await settle(session.rollback())
            if raises:
                raise HTTPException(400, "that account exists") from None
            return Response("that account exists", 400)

    first, second = answers(sessions(dialect), create)
    assert (first.status_code, second.status_code) == (400, 400), first.text
    assert second.headers["Idempotent-Replayed"] == "true" and balances() == {1: 70}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_integrity_error_that_the_handler_ignores_is_500(dialect):
    async def create(session):
        session.add(Account(id=2, balance=0))
        await settle(session.flush())
        session.add(Account(id=1, balance=0))
        try:
            await settle(session.flush())
        except IntegrityError:
            return {"created": True}

    first, second = answers(sessions(dialect), create)
    assert (first.status_code, second.status_code) == (500, 500) and balances() == {1: 70}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_session_that_commits_commits_nothing_before_the_answer(dialect):
    """commit() of a session ends its savepoint."""

    async def pay(session):
        (await settle(session.get(Account, 1))).balance -= 1
        await settle(session.commit())
        if balances() != {1: 70}:
            raise AssertionError("committed before the answer")
        (await settle(session.get(Account, 1))).balance -= 1
        raise HTTPException(402)

    assert [each.status_code for each in answers(sessions(dialect), pay)] == [402, 402] and balances() == {1: 70}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_nested_savepoints_of_the_handler(dialect):
    async def pay(session):
        nested = await settle(session.begin_nested())
        session.add(Account(id=1, balance=0))
        try:
            await settle(session.flush())
        except IntegrityError:
            await settle(nested.rollback())
        session.add(Account(id=2, balance=5))
        found = await settle(session.scalars(select(Account.balance).order_by(Account.id)))
        return list(found.all())

    first, second = answers(sessions(dialect), pay)
    assert first.json() == second.json() == [70, 5] and balances() == {1: 70, 2: 5}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_without_a_key_an_error_that_the_handler_ignores_is_500(dialect):
    async def create(session):
        session.add(Account(id=1, balance=0))
        try:
            await settle(session.flush())
        except IntegrityError:
            return {"created": True}

    (answer,) = answers(sessions(dialect), create, keys=[{}], required=False)
    assert answer.status_code == 500 and balances() == {1: 70}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_hooks_of_the_session_may_execute_statements(dialect):
    """The savepoints of the session are sent together with the adapter's statements. A hook that executes a statement
    between them sees what the adapter has begun, and is part of the transaction."""
    seen = []

    def after_begin(session, transaction, connection):
        connection.execute(text("SELECT set_config('app.tenant', :tenant, true)"), {"tenant": "7"})

    def before_commit(session):
        seen.append(session.execute(text("SELECT current_setting('app.tenant')")).scalar())
        session.add(Account(id=2, balance=5))

    make_session = sessions(dialect)
    synchronous = type("Hooked", (Session,), {})
    event.listen(synchronous, "after_begin", after_begin)
    event.listen(synchronous, "before_commit", before_commit)
    if dialect.endswith("async"):
        make_session.configure(sync_session_class=synchronous)
    else:
        make_session = sessionmaker(make_session.kw["bind"], class_=synchronous)

    async def pay(session):
        row = await settle(session.execute(text("SELECT current_setting('app.tenant')")))
        return row.scalar()

    first, second = answers(make_session, pay)
    assert (first.json(), second.json(), second.headers["Idempotent-Replayed"]) == ("7", "7", "true")
    assert seen[0] == "7" and balances() == {1: 70, 2: 5}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_isolation_level_of_the_engine(dialect):
    """Also after a request that failed the connection in the pool is as it was."""
    make_session = sessions(dialect)
    engine = make_session.kw["bind"].execution_options(isolation_level="SERIALIZABLE")
    make_session.configure(bind=engine)

    levels = []

    async def pay(session):
        levels.append((await settle(session.execute(text("SHOW transaction_isolation")))).scalar())
        await settle(session.execute(text("INSERT INTO client_account VALUES (3, 3)")))
        if len(levels) == 1:
            raise ValueError

    async def pay_outside():
        async with engine.connect() as conn:
            await conn.execute(text("INSERT INTO client_account VALUES (4, 4)"))
            await conn.rollback()

    def outside():
        if dialect.endswith("async"):
            return pay_outside()
        with engine.connect() as conn:
            conn.execute(text("INSERT INTO client_account VALUES (4, 4)"))
            conn.rollback()

    assert [each.status_code for each in answers(make_session, pay, then=outside)] == [500, 200]
    assert levels == ["serializable"] * 2 and balances() == {1: 70, 3: 3}
