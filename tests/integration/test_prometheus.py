"""What Prometheus reads, and the dashboard that draws it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from httpx import Client

from tests.integration.api_calls import submit

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "windlass.json"
_LINE = re.compile(r'^[a-zA-Z_][a-zA-Z0-9_]*(\{([a-z_]+="([^"\\]|\\.)*",?)*\})? (NaN|[+-]Inf|-?[0-9.e+-]+)$')


def samples(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(_LINE.match(line) for line in lines), lines
    found = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}
    assert len(found) == len(lines)  # a name and its labels stand once
    return found


def test_waiting_runs_and_the_server_itself_are_told(api: Client) -> None:
    submit(api, project="vision")
    submit(api, project="vision")
    answer = api.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    found = samples(answer.text)
    assert found['windlass_runs{project="vision",state="queued"}'] == 2
    assert found['windlass_queue_oldest_seconds{project="vision"}'] >= 0
    assert found["process_resident_memory_bytes"] > 1 << 20
    assert found['windlass_controller{state="absent"}'] == 1


def test_metrics_need_the_token(api: Client) -> None:
    assert api.get("/metrics", headers={"Authorization": ""}).status_code == 401


def test_the_dashboard_asks_only_for_what_there_is() -> None:
    source = "".join(
        Path(__file__).parents[2].joinpath("src/windlass", name).read_text()
        for name in ("runs/gauges.py", "api/routes/exposition.py")
    )
    told = set(re.findall(r'"((?:windlass|process)_[a-z_]+)"', source))
    asked = set(re.findall(r"\b(?:windlass|process)_[a-z_]+", json.dumps(json.loads(DASHBOARD.read_text())["panels"])))
    assert asked
    assert asked <= told, asked - told
