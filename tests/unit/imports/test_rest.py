"""How an MLflow server is reached."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import certifi
import pytest

from windlass.core.errors import InvalidInput
from windlass.imports.rest import RestSource


@pytest.mark.parametrize("name", ["MLFLOW_TRACKING_SERVER_CERT_PATH", "REQUESTS_CA_BUNDLE"])
def test_certificates_of_ones_own_are_trusted(name: str, tmp_path: Path) -> None:
    for place in (certifi.where(), str(tmp_path)):
        with closing(RestSource("https://mlflow.example", {name: place})) as source:
            assert source.address == "https://mlflow.example"


@pytest.mark.parametrize("name", ["MLFLOW_TRACKING_SERVER_CERT_PATH", "MLFLOW_TRACKING_CLIENT_CERT_PATH"])
def test_certificates_that_are_none_are_said(name: str, tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("nothing")
    for place in ("bad.pem", "absent.pem"):
        with pytest.raises(InvalidInput, match=r"\.pem' cannot be used"):
            RestSource("https://mlflow.example", {name: str(tmp_path / place)})
