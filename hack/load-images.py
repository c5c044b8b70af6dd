#!/usr/bin/env python3
"""Load images from the local Docker into nodes of the kind cluster, sending each node only the layers that it lacks.

`kind load` sends 1.4 GB to each node again whenever a line of Python has changed; this sends some 40 MB. It writes what
`docker save` gives as an OCI archive without the layers that a node's content store has already.

Usage: hack/load-images.py [--nodes NODE,NODE...] [IMAGE...]
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

IMAGES = ("heterotrain/operator:dev", "heterotrain/trainer:dev", "heterotrain/examples:dev")
OCI = "application/vnd.oci.image"
AT_ONCE = 2  # nodes; all share this machine's processors and disk


@dataclass(frozen=True)
class Blob:
    """One content of an OCI archive: bytes, or a file."""

    digest: str
    size: int
    media_type: str
    content: bytes | Path

    def descriptor(self) -> dict[str, Any]:
        """The reference to it from an index or a manifest."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


@dataclass(frozen=True)
class Image:
    """What the archive says of one image."""

    name: str
    manifest: Blob
    config: Blob
    layers: tuple[Blob, ...]

    def descriptor(self) -> dict[str, Any]:
        """The reference to it from an index, with the name that the node shall know it by."""
        annotations = {"io.containerd.image.name": self.name, "org.opencontainers.image.ref.name": self.name}
        return self.manifest.descriptor() | {"annotations": annotations}


def in_memory(content: bytes, kind: str) -> Blob:
    """A small blob, with the digest of its content."""
    return Blob(f"sha256:{hashlib.sha256(content).hexdigest()}", len(content), f"{OCI}.{kind}", content)


def layer(folder: Path, path: str, diff_id: str) -> Blob:
    """A layer as `docker save` left it. `diff_id`: digest of the plain tar; newer engines name files by digest."""
    file = (folder / path).resolve()
    name = f"sha256:{file.name}" if "blobs" in file.parts else diff_id
    with file.open("rb") as start:
        kind = "layer.v1.tar+gzip" if start.read(2) == b"\x1f\x8b" else "layer.v1.tar"
    return Blob(name, file.stat().st_size, f"{OCI}.{kind}", file)


def read_saved(folder: Path) -> list[Image]:
    """The images in an unpacked `docker save`."""
    images = []
    for saved in json.loads((folder / "manifest.json").read_text()):
        configuration = (folder / saved["Config"]).read_bytes()
        config = in_memory(configuration, "config.v1+json")
        diff_ids = json.loads(configuration)["rootfs"]["diff_ids"]
        layers = tuple(layer(folder, *pair) for pair in zip(saved["Layers"], diff_ids, strict=True))
        document = {
            "schemaVersion": 2,
            "mediaType": f"{OCI}.manifest.v1+json",
            "config": config.descriptor(),
            "layers": [blob.descriptor() for blob in layers],
        }
        manifest = in_memory(json.dumps(document, sort_keys=True).encode(), "manifest.v1+json")
        images += [Image(f"docker.io/{tag}", manifest, config, layers) for tag in saved["RepoTags"]]
    return images


def write_archive(images: list[Image], known: set[str], out: IO[bytes]) -> int:
    """Write an OCI archive without the layers in `known`; returns the bytes of the layers in it."""
    index = {"schemaVersion": 2, "manifests": [image.descriptor() for image in images]}
    blobs = {blob.digest: blob for image in images for blob in (image.config, image.manifest)}
    layers = {blob.digest: blob for image in images for blob in image.layers if blob.digest not in known}
    with tarfile.open(fileobj=out, mode="w|") as archive:
        add(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        for blob in (*layers.values(), *blobs.values()):
            add(archive, f"blobs/sha256/{blob.digest.removeprefix('sha256:')}", blob.content)
        add(archive, "index.json", json.dumps(index).encode())
    return sum(blob.size for blob in layers.values())


def add(archive: tarfile.TarFile, name: str, content: bytes | Path) -> None:
    """Add one entry to a tar archive."""
    entry = tarfile.TarInfo(name)
    if isinstance(content, bytes):
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    else:
        entry.size = content.stat().st_size
        with content.open("rb") as file:
            archive.addfile(entry, file)


def in_node(node: str, *arguments: str) -> str:
    """What containerd's `ctr` says inside a node."""
    command = ["docker", "exec", node, "ctr", "-n", "k8s.io", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def load(node: str, images: list[Image]) -> str:
    """Bring one node up to date; returns what was done, as a line."""
    known = set(in_node(node, "content", "ls", "-q").split())
    command = ["docker", "exec", "-i", node, "ctr", "-n", "k8s.io", "images", "import", "--all-platforms"]
    with subprocess.Popen([*command, "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        sent = 0
        with contextlib.suppress(BrokenPipeError):  # ctr has ended, and says why
            sent = write_archive(images, known, process.stdin)
        with contextlib.suppress(BrokenPipeError):  # what is buffered still
            process.stdin.close()
        if process.wait():
            raise SystemExit(
                f"{node}: `ctr images import` failed with exit code {process.returncode}; what it says is above. Is"
                f" there no space left? Docker's folder has {shutil.disk_usage(docker_folder()).free / 1e9:.1f} GB free"
            )
    return f"{node}: {', '.join(image.name.removeprefix('docker.io/') for image in images)}; {sent / 1e6:.0f} MB sent"


def docker_folder() -> str:
    """Where Docker keeps images and the nodes' file systems."""
    command = ["docker", "info", "--format", "{{.DockerRootDir}}"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def is_there(node: str, ids: dict[str, str]) -> bool:
    """Whether a node has the images (Docker's ID by name): that ID is the digest of an image's configuration."""
    lines = [line.split() for line in in_node(node, "images", "ls").splitlines()[1:]]
    digests = {line[0]: line[2] for line in lines if line[0] in ids}
    manifests = {name: json.loads(in_node(node, "content", "get", digest)) for name, digest in digests.items()}
    return ids == {name: manifest.get("config", {}).get("digest") for name, manifest in manifests.items()}


def image_ids(images: list[str]) -> dict[str, str]:
    """Docker's ID of each image by its full name."""
    command = ["docker", "image", "inspect", "--format", "{{.Id}}", *images]
    answer = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if answer.returncode:
        raise SystemExit("build the images first: hack/build-images.sh")
    return dict(zip((f"docker.io/{name}" for name in images), answer.stdout.split(), strict=True))


def cluster_nodes() -> list[str]:
    """Names of the cluster's nodes, which are containers."""
    command = ["docker", "ps", "--format", "{{.Names}}", "--filter", "label=io.x-k8s.kind.cluster=heterotrain"]
    return sorted(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split())


def main() -> None:
    """Parse the command line, and load."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="", help="separated by commas; default: all of the cluster")
    parser.add_argument("images", nargs="*", default=IMAGES, metavar="IMAGE", help=f"default: {', '.join(IMAGES)}")
    options = parser.parse_args()
    nodes = options.nodes.split(",") if options.nodes else cluster_nodes()
    if not nodes:
        raise SystemExit("There is no kind cluster heterotrain on this machine; make one with hack/cluster.sh.")
    ids = image_ids(list(options.images))
    nodes = [node for node in nodes if not is_there(node, ids)]
    if not nodes:
        print("The nodes have the images already.")
        return
    with tempfile.TemporaryDirectory(prefix="heterotrain-images-") as folder:
        # Older engines write links between equal layers, which the "data" filter would refuse.
        with subprocess.Popen(["docker", "save", *options.images], stdout=subprocess.PIPE) as process:
            with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
                archive.extractall(folder, filter="tar")
            if process.wait():
                raise SystemExit("docker save failed")
        images = read_saved(Path(folder))
        with ThreadPoolExecutor(min(AT_ONCE, os.cpu_count() or 1)) as pool:
            for line in pool.map(lambda node: load(node, images), nodes):
                print(line, flush=True)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"{' '.join(error.cmd)}: exit code {error.returncode}")
