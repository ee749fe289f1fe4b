"""The plain manifests, taken by a real API server: every object is created as it is written."""

from __future__ import annotations

import pytest

from tests.unit.deploy.test_kubernetes_install import plain
from windlass.testing.kubernetes import KubernetesCluster

pytestmark = pytest.mark.kubernetes


def test_a_real_api_server_takes_the_manifests(kubernetes_cluster: KubernetesCluster) -> None:
    for manifest in plain():
        if manifest["kind"] == "PodDisruptionBudget":  # this server is older than policy/v1
            manifest["apiVersion"] = "policy/v1beta1"
        name = manifest["metadata"]["name"]
        kubernetes_cluster.apply([manifest])
        path = kubernetes_cluster.path_of(manifest)
        try:
            assert kubernetes_cluster.admin.get(f"{path}/{name}")["metadata"]["name"] == name
        finally:
            if manifest["kind"] not in ("Namespace", "ServiceAccount") and "ole" not in manifest["kind"]:
                kubernetes_cluster.admin.delete(f"{path}/{name}")
