"""Artifacts: names over blobs."""

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    pass
