"""Reads the bill of materials of a binary from Cargo.lock."""

import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def sbom(name, version, time, target, features=()):
    """Returns the crates compiled into the binary of a package, including build scripts and macros, as a CycloneDX 1.5 document.

    `features` are the feature flags of `cargo build`.
    """
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target, *features]
    told = json.loads(subprocess.check_output(command, cwd=ROOT))
    packages = {package["id"]: package for package in told["packages"]}
    nodes = {node["id"]: node for node in told["resolve"]["nodes"]}
    root = next(id for id, package in packages.items() if package["name"] == name)
    needed, waiting = set(), [root]
    while waiting:
        id = waiting.pop()
        if id not in needed:
            needed.add(id)
            # Exclude dependencies of tests.
            deps = (dep for dep in nodes[id]["deps"] if any(kind["kind"] != "dev" for kind in dep["dep_kinds"]))
            waiting.extend(dep["pkg"] for dep in deps)

    def purl(package):
        return f"pkg:cargo/{package['name']}@{package['version']}"

    def component(package):
        made = {"type": "library", "bom-ref": purl(package), "name": package["name"], "version": package["version"], "purl": purl(package)}
        if package.get("license"):
            made["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
        return made

    def depends(id):
        on = sorted({purl(packages[dep["pkg"]]) for dep in nodes[id]["deps"] if dep["pkg"] in needed} - {purl(packages[id])})
        return {"ref": purl(packages[id]), "dependsOn": on}

    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"timestamp": time, "component": component(packages[root]) | {"type": "application"}},
        "components": sorted((component(packages[id]) for id in needed - {root}), key=lambda one: one["purl"]),
        "dependencies": sorted((depends(id) for id in needed), key=lambda one: one["ref"]),
    }
