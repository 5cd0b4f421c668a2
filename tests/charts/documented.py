"""Fails if a value of a chart has no row in its README or is not in values.yaml, if an alert or the dashboard uses a metric
that the server does not have, if a pod uses an unknown flag, or if a chart's version differs from Cargo.toml.

    documented.py CHARTS SOURCES
"""

import json
import re
import sys
from pathlib import Path

charts = Path(sys.argv[1])
sources = "".join(path.read_text() for path in sorted(Path(sys.argv[2]).rglob("*.rs")))
wrong = []


def names(schema, prefix=""):
    for name, below in schema.get("properties", {}).items():
        full = f"{prefix}{name}"
        if below.get("properties"):
            yield from names(below, f"{full}.")
        else:
            yield full


for chart in ("strait", "strait-member"):
    folder = charts / chart
    readme = (folder / "README.md").read_text()
    values = (folder / "values.yaml").read_text()
    for name in names(json.loads((folder / "values.schema.json").read_text())):
        if name == "global":
            continue
        if f"`{name}`" not in readme:
            wrong.append(f"{chart}: value {name} is not in README.md")
        if not re.search(rf"\b{name.rpartition('.')[2]}:", values):
            wrong.append(f"{chart}: value {name} has no default in values.yaml")
    version = re.search(r'(?m)^version = "(.+)"$', (charts.parent.parent / "Cargo.toml").read_text()).group(1)
    told = re.findall(r"(?m)^(?:version|appVersion): (.+)$", (folder / "Chart.yaml").read_text())
    if told != [version, version]:
        wrong.append(f"{chart}: Chart.yaml has {told}, Cargo.toml {version}")

# The server exits immediately if it does not know a flag.
template = (charts / "strait/templates/workload.yaml").read_text()
for flag in sorted(set(re.findall(r"(?m)^ *- --([a-z-]+)", template))):
    if f'long = "{flag}"' not in sources and f"pub {flag.replace('-', '_')}:" not in sources:
        wrong.append(f"strait: the server has no flag --{flag}")

for file in ("alerts.yaml", "dashboard.json"):
    text = (charts / "strait/files" / file).read_text()
    for metric in sorted(set(re.findall(r"\b(?:strait|process)_[a-z_]+", text))):
        if f'"{re.sub("_bucket$", "", metric)}"' not in sources:
            wrong.append(f"{file}: no metric {metric}")

print("\n".join(wrong), file=sys.stderr)
sys.exit(bool(wrong))
