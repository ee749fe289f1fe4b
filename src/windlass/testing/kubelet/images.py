"""Container images made of nothing but busybox, written by hand: what a machine without a registry can run.

The host's own interpreter comes in by mounting the host's /usr: see `windlass.testing.kubelet.real`.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

PAUSE = "windlass.test/pause:1"
HOST = "windlass.test/host:1"
_FOLDERS = ("bin", "tmp", "etc", "proc", "sys", "dev", "usr", "lib", "lib64", "windlass")
_COMMANDS = ("sh", "sleep", "echo", "cat", "id", "touch", "true")


def write_image(path: Path, name: str, entrypoint: list[str]) -> None:
    """An archive that `ctr images import` takes."""
    layer = _layer(Path("/bin/busybox").read_bytes())
    digest = hashlib.sha256(layer).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": entrypoint, "Env": ["PATH=/usr/bin:/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]}]
    with tarfile.open(path, "w") as archive:
        _add(archive, config_name, config)
        _add(archive, f"{digest}/layer.tar", layer)
        _add(archive, "manifest.json", json.dumps(manifest).encode())


def _layer(busybox: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for folder in _FOLDERS:
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            layer.addfile(entry)
        _add(layer, "bin/busybox", busybox, mode=0o755)
        for command in _COMMANDS:
            entry = tarfile.TarInfo(f"bin/{command}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            layer.addfile(entry)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))
