"""Experiments, the runs in them, params, tags, inputs, logged models."""

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    pass
