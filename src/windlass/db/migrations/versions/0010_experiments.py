"""Experiments, the runs in them, params, tags, inputs, logged models. Runs that exist get their rows here, and metrics
have summaries also of runs whose rows are elsewhere, with the time of the latest point.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0010"
down_revision = "0009"

_Json = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
_Words = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_Seq = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_Number = sa.Float(53)
_AT_ONCE = 1_000


def _key(length: int) -> sa.String:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


_RunId = _key(32)


def upgrade() -> None:
    _create_runs()
    _create_inputs()
    _create_models()
    _take_over_runs(op.get_bind())
    _free_summaries()


def _pairs(name: str, owner: sa.Column[Any], **options: Any) -> sa.Table:
    return op.create_table(
        name,
        owner,
        sa.Column("key", _key(250), primary_key=True),
        sa.Column("value", _Words, nullable=False),
        **options,
    )


def _create_runs() -> None:
    op.create_table(
        "experiments",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("name", _key(500), nullable=False),
        sa.Column("artifact_location", sa.Text, nullable=False),
        sa.Column("stage", sa.String(10), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_experiments_name", "experiments", ["name"], unique=True)
    of_experiment = sa.Column("experiment_id", sa.Integer, primary_key=True, autoincrement=False)
    _pairs("experiment_tags", of_experiment, sqlite_with_rowid=False)
    op.create_table(
        "tracked_runs",
        sa.Column("id", _RunId, primary_key=True),
        sa.Column("experiment_id", sa.Integer, nullable=False),
        sa.Column("name", _Words, nullable=False),
        sa.Column("user", _Words, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("start_ms", sa.BigInteger),
        sa.Column("end_ms", sa.BigInteger),
        sa.Column("stage", sa.String(10), nullable=False),
        sa.Column("deleted_ms", sa.BigInteger),
        sa.Column("artifact_uri", sa.Text, nullable=False),
    )
    op.create_index("ix_tracked_runs_experiment", "tracked_runs", ["experiment_id", "start_ms", "id"])
    for name in ("run_params", "run_tags"):
        _pairs(name, sa.Column("run_id", _RunId, primary_key=True), sqlite_with_rowid=False)


def _create_inputs() -> None:
    op.create_table(
        "input_datasets",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("experiment_id", sa.Integer, nullable=False),
        sa.Column("name", _key(500), nullable=False),
        sa.Column("digest", _key(36), nullable=False),
        sa.Column("source_type", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("schema", sa.Text),
        sa.Column("profile", sa.Text),
    )
    op.create_index("ix_input_datasets_named", "input_datasets", ["experiment_id", "name", "digest"], unique=True)
    op.create_table(
        "run_inputs",
        sa.Column("seq", _Seq, primary_key=True, autoincrement=True),
        sa.Column("run_id", _RunId, nullable=False),
        sa.Column("dataset_id", sa.String(32), nullable=False),
    )
    op.create_index("ix_run_inputs_run", "run_inputs", ["run_id", "dataset_id"], unique=True)
    op.create_index("ix_run_inputs_dataset", "run_inputs", ["dataset_id"])
    op.create_table(
        "input_tags",
        sa.Column("run_id", _RunId, primary_key=True),
        sa.Column("dataset_id", sa.String(32), primary_key=True),
        sa.Column("key", _key(255), primary_key=True),
        sa.Column("value", _Words, nullable=False),
    )
    op.create_table(
        "run_models",
        sa.Column("seq", _Seq, primary_key=True, autoincrement=True),
        sa.Column("run_id", _RunId, nullable=False),
        sa.Column("direction", sa.String(6), nullable=False),
        sa.Column("model_id", sa.String(36), nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_run_models_run", "run_models", ["run_id", "direction", "model_id"], unique=True)


def _create_models() -> None:
    op.create_table(
        "logged_models",
        sa.Column("id", _key(36), primary_key=True),
        sa.Column("experiment_id", sa.Integer, nullable=False),
        sa.Column("name", _key(500), nullable=False),
        sa.Column("artifact_location", sa.Text, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("stage", sa.String(10), nullable=False),
        sa.Column("model_type", _Words),
        sa.Column("source_run_id", _Words),
        sa.Column("status_message", sa.Text),
    )
    op.create_index("ix_logged_models_experiment", "logged_models", ["experiment_id", "created_ms"])
    for name in ("logged_model_params", "logged_model_tags"):
        _pairs(name, sa.Column("model_id", _key(36), primary_key=True))
    op.create_table(
        "logged_model_metrics",
        sa.Column("model_id", _key(36), primary_key=True),
        sa.Column("name", _key(250), primary_key=True),
        sa.Column("at_ms", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("step", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("run_id", _RunId, primary_key=True),
        sa.Column("value", _Number),
        sa.Column("dataset_name", _key(500)),
        sa.Column("dataset_digest", _key(36)),
    )


# ---- runs that are there already -----------------------------------------------------------------------------------

_STATUS = {"running": "RUNNING", "succeeded": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}


def _take_over_runs(tx: sa.Connection) -> None:
    """An empty database stays empty: a backup is restored into one."""
    known = sa.MetaData()
    known.reflect(tx, only=["experiments", "tracked_runs", "run_params", "run_tags"])
    experiments = known.tables["experiments"]
    columns = ("id", "name", "project", "user", "state", "spec", "tags", "submitted_at", "started_at", "ended_at")
    runs = sa.table("runs", *(sa.column(name, _Json if name in ("spec", "tags") else None) for name in columns))
    ids: dict[str, int] = {}
    for found in _in_parts(tx, runs):
        for row in found:
            if (name := _experiment(row)) not in ids:
                ids[name] = _put_experiment(tx, experiments, name, _ms(row.submitted_at) or 0)
        tx.execute(known.tables["tracked_runs"].insert(), [_tracked(row, ids[_experiment(row)]) for row in found])
        for name, pairs in (("run_params", _params), ("run_tags", _tags)):
            new = [{"run_id": row.id, "key": key, "value": value} for row in found for key, value in pairs(row).items()]
            if new:
                tx.execute(known.tables[name].insert(), new)


def _in_parts(tx: sa.Connection, runs: sa.TableClause) -> Iterator[Sequence[sa.Row[Any]]]:
    last = ""
    while found := tx.execute(runs.select().where(runs.c.id > last).order_by(runs.c.id).limit(_AT_ONCE)).all():
        yield found
        last = found[-1].id


def _experiment(row: sa.Row[Any]) -> str:
    """That of its project: a project may be called as the first one of MLflow is, and then shares it."""
    return "Default" if row.project == "default" else str(row.project)


def _put_experiment(tx: sa.Connection, experiments: sa.Table, name: str, at_ms: int) -> int:
    values: dict[str, Any] = {"stage": "active", "created_ms": at_ms, "updated_ms": at_ms, "artifact_location": ""}
    values["name"] = name
    if name == "Default":
        values["id"] = 0
    made = tx.execute(experiments.insert().values(**values)).inserted_primary_key
    number = int(made[0]) if made else 0
    location = {"artifact_location": f"mlflow-artifacts:/{number}"}
    tx.execute(experiments.update().where(experiments.c.id == number).values(location))
    return number


def _tracked(row: sa.Row[Any], experiment_id: int) -> dict[str, Any]:
    return {
        "id": row.id,
        "experiment_id": experiment_id,
        "name": row.name,
        "user": row.user or "",
        "status": _STATUS.get(row.state, "SCHEDULED"),
        "start_ms": _ms(row.started_at or row.submitted_at),
        "end_ms": _ms(row.ended_at),
        "stage": "active",
        "deleted_ms": None,
        "artifact_uri": f"mlflow-artifacts:/{experiment_id}/{row.id}/artifacts",
    }


def _params(row: sa.Row[Any]) -> dict[str, str]:
    return dict(_flat(row.spec.get("params") or {}))


def _flat(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in params.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"[:250], str(value)[:6000]


def _tags(row: sa.Row[Any]) -> dict[str, str]:
    own = {str(key)[:250]: str(value) for key, value in (row.tags or {}).items()}
    return {"mlflow.runName": row.name, "mlflow.user": row.user or "", "mlflow.source.type": "JOB", **own}


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1000)


# ---- summaries of metrics --------------------------------------------------------------------------------------------

_COPIED = "run_id, name, last, last_step, min, max, points"


def _free_summaries() -> None:
    """Take the reference to `runs` away. Servers of the version before read and write them as they did, but on
    PostgreSQL they wait from here until the migration is through, so this comes last, is short, and touches `runs` at
    its end."""
    is_postgres = op.get_bind().dialect.name == "postgresql"
    if is_postgres:
        op.add_column("metric_summaries", sa.Column("last_at", _Number))
    else:
        op.rename_table("metric_summaries", "metric_summaries_before")
        op.create_table(
            "metric_summaries",
            sa.Column("run_id", sa.String(32), primary_key=True),
            sa.Column("name", sa.String(250), primary_key=True),
            sa.Column("last", _Number),
            sa.Column("last_step", sa.BigInteger),
            sa.Column("min", _Number),
            sa.Column("max", _Number),
            sa.Column("points", sa.BigInteger, nullable=False),
            sa.Column("last_at", _Number),
        )
        op.execute(f"INSERT INTO metric_summaries ({_COPIED}) SELECT {_COPIED} FROM metric_summaries_before")
        op.drop_table("metric_summaries_before")
    # The one that came last, not the latest of all: the key finds it without reading the others.
    op.execute(
        "UPDATE metric_summaries SET last_at = (SELECT p.at FROM metric_points p WHERE p.run_id ="
        " metric_summaries.run_id AND p.name = metric_summaries.name ORDER BY p.seq DESC LIMIT 1)"
    )
    op.create_index("ix_metric_summaries_last", "metric_summaries", ["name", "last"])
    if is_postgres:
        for known in sa.inspect(op.get_bind()).get_foreign_keys("metric_summaries"):
            op.drop_constraint(str(known["name"]), "metric_summaries", type_="foreignkey")
