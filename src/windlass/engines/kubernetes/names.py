"""What things are called and labelled in the cluster. Names follow from the attempt, so that making a thing twice
makes it once.
"""

from __future__ import annotations

import hashlib
import re

PREFIX = "windlass.dev/"
ENGINE = f"{PREFIX}engine"
ATTEMPT = f"{PREFIX}attempt"
RUN = f"{PREFIX}run"
PROJECT = f"{PREFIX}project"
NODE_RANK = f"{PREFIX}node-rank"
TARGET = f"{PREFIX}node"  # an annotation: the machine that the scheduler of ours chose
MANAGED_BY = "app.kubernetes.io/managed-by"
JOB_INDEX = "batch.kubernetes.io/job-completion-index"

_LONGEST_LABEL = 63
_LABEL = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")


def attempt_name(attempt_id: str) -> str:
    return f"wl-{attempt_id.replace('.', '-')}"


def pod_name(attempt_id: str, node_rank: int) -> str:
    return f"{attempt_name(attempt_id)}-{node_rank}"


def label_value(text: str) -> str:
    """Text as a label's value. What Kubernetes does not accept is made acceptable, and told apart by a digest."""
    if len(text) <= _LONGEST_LABEL and _LABEL.match(text):
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", text).strip("._-")[: _LONGEST_LABEL - 9].rstrip("._-")
    return f"{plain}-{digest}" if plain else digest


def object_name(prefix: str, text: str) -> str:
    """A name for something there is one of per `text`: lower case, and a digest where that changes it."""
    plain = re.sub(r"[^a-z0-9-]", "-", text.lower()).strip("-")[:40].rstrip("-")
    if plain == text:
        return f"{prefix}-{text}"
    return f"{prefix}-{plain or 'x'}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
