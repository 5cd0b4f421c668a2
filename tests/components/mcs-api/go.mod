module strait.dev/tests/components/mcs-api

go 1.26.0

require sigs.k8s.io/mcs-api v0.5.2
