"""DBOS: a workflow whose id is the key, with the work as a transaction of a datasource."""

import subprocess
import sys

from dbos import DBOS, SetWorkflowID, SQLAlchemyDatasource
from sqlalchemy import text

from work import COMMIT, EFFECT, reached

from .contender import Contender

UPDATE = text("UPDATE account SET balance = balance + :amount WHERE id = :account RETURNING balance")
INSERT = text("INSERT INTO ledger (request_key, account, amount) VALUES (:key, :account, :amount)")


def url(place):
    return place.postgres.replace("postgresql:", "postgresql+psycopg:", 1)


class DbosWorkflow(Contender):
    title = "DBOS workflow"
    kept_in = "postgres"
    one_transaction = True
    recovers_at_start = True
    usage = """
    A workflow that is called under `SetWorkflowID(key)`, with one transaction of a `SQLAlchemyDatasource` in
    it, whose isolation level is READ COMMITTED as that of all others. The system tables are in the same
    database. A process that replaces a killed one has its executor id. DBOS documentation: *Idempotency*,
    *Transactions & Datasources*, *Workflow Recovery*.
    """

    @staticmethod
    def prepare(place):
        SQLAlchemyDatasource.migrate(url(place))
        subprocess.run(
            [sys.executable, "-m", "dbos.cli.cli", "migrate", "--sys-db-url", url(place)],
            check=True,
            capture_output=True,
        )

    def __init__(self, place):
        DBOS(
            config={
                "name": "field",
                "system_database_url": url(place),
                "executor_id": place.executor,
                "log_level": "ERROR",
                "run_migrations": False,
            }
        )
        datasource = SQLAlchemyDatasource.create(url(place), run_migrations=False)

        @datasource.transaction(isolation_level="READ COMMITTED")
        def transfer(request):
            session = datasource.sql_session()
            balance = session.execute(UPDATE, request).scalar_one()
            session.execute(INSERT, request)
            reached(EFFECT)
            return {"balance": balance}

        @DBOS.workflow()
        def pay(request):
            answer = transfer(request)
            reached(COMMIT)
            return answer

        self.pay = pay
        DBOS.launch()

    def transfer(self, request):
        with SetWorkflowID(request["key"]):
            return self.pay(request)
