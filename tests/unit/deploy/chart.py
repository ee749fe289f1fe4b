"""The Helm chart, rendered: by Helm where it is installed, else by a small program in Helm's own template language."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

TOP = Path(__file__).parents[3]
CHART = TOP / "deploy" / "helm" / "windlass"
RENDERER = TOP / "tools" / "kubernetes" / "chart" / "main.go"
NAME = NAMESPACE = "windlass"


class Refused(Exception):
    """The chart does not render with these values."""


def render_chart(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    texts = _by_helm(values) if shutil.which("helm") else _by_renderer(values)
    return [manifest for text in texts for manifest in yaml.safe_load_all(text) if manifest]


def _by_helm(values: Mapping[str, Any]) -> list[str]:
    command = ["helm", "template", NAME, str(CHART), "--namespace", NAMESPACE, "--values", "-"]
    done = subprocess.run(command, input=yaml.safe_dump(dict(values)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(done.stderr)
    return [done.stdout]


def _by_renderer(values: Mapping[str, Any]) -> list[str]:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    data = {
        "Values": _merged(yaml.safe_load((CHART / "values.yaml").read_text()), values),
        "Release": {"Name": NAME, "Namespace": NAMESPACE},
        "Chart": {"Name": about["name"], "Version": about["version"], "AppVersion": about["appVersion"]},
    }
    templates = {path.name: path.read_text() for path in sorted((CHART / "templates").iterdir())}
    asked = json.dumps({"templates": templates, "data": data})
    done = subprocess.run([_renderer()], input=asked, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(done.stderr)
    rendered: dict[str, str] = json.loads(done.stdout)
    return [text for name, text in sorted(rendered.items()) if name.endswith(".yaml")]


@functools.cache
def _renderer() -> str:
    if shutil.which("go") is None:
        if os.environ.get("CI"):
            raise RuntimeError("neither helm nor go is installed")
        pytest.skip("neither helm nor go is installed")
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "windlass"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / f"chart-renderer-{os.getpid()}"
    environ = {**os.environ, "GO111MODULE": "off", "CGO_ENABLED": "0"}
    subprocess.run(["go", "build", "-o", str(program), str(RENDERER)], check=True, env=environ)
    shared = folder / "chart-renderer"
    program.replace(shared)
    return str(shared)


def _merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings are merged at every depth; whatever else is given replaces the default."""
    merged = dict(defaults)
    for key, value in given.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merged(merged[key], value) if both else value
    return merged
