#!/bin/sh
# Makes a development CA and the certificates of two workloads below certs/dev/.
set -eu
cd "$(dirname "$0")/.."
strait() { cargo run --quiet --bin strait -- "$@"; }

[ -e certs/dev/ca ] || strait certs init certs/dev/ca
for workload in sidecar router; do
    strait certs issue --ca-dir certs/dev/ca --namespace default --service-account "$workload" \
        --out "certs/dev/$workload"
done
