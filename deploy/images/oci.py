"""Writes OCI image archives (OCI image specification 1.1): one layer, the same bytes for the same content.

An archive is a tar of `oci-layout`, `index.json` and blobs named by their SHA-256. `ctr images import`, `skopeo copy
oci-archive:…`, `podman load` and `docker load` read it. The archive does not depend on the machine: times are zero, owners are
set by the image, entries are sorted.
"""

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

EPOCH = "1970-01-01T00:00:00Z"


class Layer:
    """The files of an image, by their paths without the leading slash."""

    def __init__(self):
        self.entries = {}

    def folder(self, path, mode=0o755, owner=0):
        self._add(path, tarfile.DIRTYPE, mode, owner)

    def file(self, path, content, mode=0o644, owner=0):
        """Adds a file. `content` is its bytes, or the Path to read them from."""
        data = content.read_bytes() if isinstance(content, Path) else content
        self._add(path, tarfile.REGTYPE, mode, owner, data)

    def link(self, path, target):
        self._add(path, tarfile.SYMTYPE, 0o777, 0, target=target)

    def program(self, path, source):
        """Adds a program and, if it is linked dynamically, each library that its loader names, under the library's path."""
        self.file(path, Path(source), 0o755)
        for library in libraries(source):
            self.file(library.lstrip("/"), Path(library), 0o755)

    def iptables(self):
        """Adds this machine's iptables, which redirects a pod's traffic, with all its extensions: 5 MB."""
        found = shutil.which("iptables", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        extensions = sorted(Path("/usr/lib").glob("*/xtables/*.so"))
        if not found or not extensions:
            raise OSError("no iptables on this machine, which goes into the image: install the package iptables")
        program = Path(found).resolve()
        self.program(f"usr/sbin/{program.name}", program)
        for name in ("iptables", "ip6tables"):
            for action in ("", "-save", "-restore"):
                self.link(f"usr/sbin/{name}{action}", program.name)
        for extension in extensions:
            self.file(str(extension).lstrip("/"), extension, 0o755)

    def _add(self, path, kind, mode, owner, data=b"", target=""):
        parent = os.path.dirname(path)
        if parent and parent not in self.entries:
            self.folder(parent)
        entry = tarfile.TarInfo(path)
        entry.type, entry.mode, entry.uid, entry.gid = kind, mode, owner, owner
        entry.size, entry.linkname = len(data), target
        self.entries[path] = entry, data

    def tar(self):
        return tar(self.entries[path] for path in sorted(self.entries))


def libraries(program):
    """Returns the paths of the libraries that a program loads; empty for a static program."""
    told = subprocess.run(["ldd", program], text=True, capture_output=True)
    words = (line.split() for line in told.stdout.splitlines())
    return [next(word for word in line if word.startswith("/")) for line in words if any(word.startswith("/") for word in line)]


def tar(entries):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for entry, data in entries:
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def write(path, name, layer, config, labels=None, architecture="amd64"):
    """Writes an archive with the image `name` (HOST/PATH:TAG), and returns the digest of its manifest.

    `config` is the config object of the specification: Entrypoint, Cmd, Env, User, WorkingDir …
    """
    blobs = {}

    def blob(media_type, data):
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    def document(value):
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    filled = blob("application/vnd.oci.image.layer.v1.tar", layer.tar())
    described = blob("application/vnd.oci.image.config.v1+json", document({
        "architecture": architecture,
        "os": "linux",
        "created": EPOCH,
        "config": config | ({"Labels": labels} if labels else {}),
        "rootfs": {"type": "layers", "diff_ids": [filled["digest"]]},
        "history": [{"created": EPOCH, "created_by": "deploy/images"}],
    }))
    manifest = blob("application/vnd.oci.image.manifest.v1+json", document({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": described,
        "layers": [filled],
    }))
    named = manifest | {
        "platform": {"architecture": architecture, "os": "linux"},
        "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]},
    }
    blobs["index.json"] = document({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [named],
    })
    blobs["oci-layout"] = document({"imageLayoutVersion": "1.0.0"})
    archive = Layer()
    for each in sorted(blobs):
        archive.file(each, blobs[each])
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The file gets its final name when it is complete.
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_bytes(archive.tar())
    part.rename(path)
    return manifest["digest"]
