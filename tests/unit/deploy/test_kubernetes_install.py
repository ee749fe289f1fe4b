"""What installs the server on Kubernetes: the chart and the plain manifests, which are the chart's own output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.deploy.chart import TOP, Refused, render_chart
from tests.unit.engines.kubernetes_schemas import check
from windlass.server.config import load_config
from windlass.server.settings import Settings

PLAIN = TOP / "deploy" / "kubernetes"
SECRETS = {
    "WINDLASS_TOKEN": "replace-me",
    "WINDLASS_SECRET_KEY": "replace-me",
    "WINDLASS_DATABASE_URL": "postgresql://windlass:replace-me@db.example.com/windlass",
}
DEFAULT: dict[str, Any] = {"secret": {"values": SECRETS}}
FULL: dict[str, Any] = {
    "image": {"repository": "registry.example/windlass", "tag": "7", "pullSecrets": ["registry"]},
    "api": {"replicas": 5},
    "secret": {"existing": "mine"},
    "runs": {"create": False},
    "ingress": {"enabled": True, "className": "nginx", "tlsSecret": "tls", "annotations": {"a": "b"}},
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "system", "operator": "Exists"}],
}


def plain() -> list[dict[str, Any]]:
    names = yaml.safe_load((PLAIN / "kustomization.yaml").read_text())["resources"]
    return [manifest for name in names for manifest in yaml.safe_load_all((PLAIN / name).read_text())]


def by_name(found: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in found}


@pytest.mark.parametrize("values", [DEFAULT, FULL])
def test_current_versions_of_kubernetes_take_the_chart(values: dict[str, Any]) -> None:
    for manifest in render_chart(values):
        check(manifest)


def test_current_versions_of_kubernetes_take_the_plain_manifests() -> None:
    for manifest in plain():
        check(manifest)


def test_the_plain_manifests_are_what_the_chart_makes() -> None:
    rendered, written = by_name(render_chart(DEFAULT)), by_name(plain())
    del written["Namespace", "windlass"]  # Helm is told the namespace
    for manifest in rendered.values():
        if manifest["kind"] == "Deployment":  # Helm's way to restart pods when the config has changed
            assert manifest["spec"]["template"]["metadata"].pop("annotations").keys() == {"checksum/config"}
        if manifest["kind"] == "ConfigMap":
            manifest["data"]["config.yaml"] = yaml.safe_load(manifest["data"]["config.yaml"])
    config = written["ConfigMap", "windlass"]
    config["data"]["config.yaml"] = yaml.safe_load(config["data"]["config.yaml"])
    assert rendered == written


def test_the_server_takes_its_config(tmp_path: Path) -> None:
    config = by_name(render_chart(DEFAULT))["ConfigMap", "windlass"]["data"]["config.yaml"]
    file = tmp_path / "config.yaml"
    file.write_text(config)
    settings = Settings.of(load_config({}, home=tmp_path, file=file), home=tmp_path)
    assert settings.engines["kubernetes"].type == "kubernetes"
    assert settings.url == "http://windlass.windlass.svc:8470"


def test_values_reach_the_manifests() -> None:
    rendered = by_name(render_chart(FULL))
    pod = rendered["Deployment", "windlass-api"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "registry.example/windlass:7"
    assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": "mine"}}]
    assert pod["nodeSelector"] == {"pool": "system"}
    assert rendered["Deployment", "windlass-api"]["spec"]["replicas"] == 5
    assert ("Secret", "windlass") not in rendered
    assert ("Namespace", "windlass-runs") not in rendered
    assert rendered["Ingress", "windlass"]["spec"]["tls"][0]["hosts"] == ["windlass.example.com"]


def test_secrets_must_be_given() -> None:
    with pytest.raises(Refused, match="is needed, or secret"):
        render_chart({})


def test_servers_are_confined_and_old_and_new_overlap() -> None:
    for name in ("windlass-api", "windlass-controller"):
        deployment = by_name(plain())["Deployment", name]["spec"]
        assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
        pod = deployment["template"]["spec"]
        assert pod["enableServiceLinks"] is False  # or variables like WINDLASS_PORT would be taken for settings
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
        assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_rights_are_few() -> None:
    rules = by_name(plain())["Role", "windlass-controller"]["rules"]
    assert not any("*" in rule["verbs"] + rule["resources"] + rule["apiGroups"] for rule in rules)
    on_secrets = [rule["verbs"] for rule in rules if "secrets" in rule["resources"]]
    assert on_secrets == [["create", "delete"]]
    everywhere = by_name(plain())["ClusterRole", "windlass-nodes"]["rules"]
    assert everywhere == [{"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list", "watch"]}]
