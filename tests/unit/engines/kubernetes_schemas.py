"""Manifests held against the schemas of the Kubernetes versions in use. Unknown fields are errors: a server that does
not know a field drops it without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import kubernetes_validate
from kubernetes_validate import utils

# The oldest that is still met, and the newest of each year since.
VERSIONS = ("1.25", "1.28", "1.30", "1.33", "1.37")
# It reads all definitions of a version, which are a megabyte, for each manifest anew.
utils.schema_contents = cache(utils.schema_contents)


def check(manifest: Mapping[str, Any]) -> None:
    """Raises ValidationError for a manifest that one of the versions would not take as it is written."""
    for version in VERSIONS:
        kubernetes_validate.validate(dict(manifest), version, strict=True)
