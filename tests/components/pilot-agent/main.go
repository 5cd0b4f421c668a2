// Istio's agent as its own main package runs it: a module of its own, so that the version is fixed by go.mod and go.sum.
package main

import (
	"os"

	meshconfig "istio.io/api/mesh/v1alpha1"
	"istio.io/istio/pilot/cmd/pilot-agent/app"
	istioagent "istio.io/istio/pkg/istio-agent"
	"istio.io/istio/pkg/security"
	"istio.io/istio/security/pkg/nodeagent/sds"
)

func main() {
	secrets := func(options *security.Options, cache security.SecretManager, keys *meshconfig.PrivateKeyProvider) istioagent.SDSService {
		return sds.NewServer(options, cache, keys)
	}
	if err := app.NewRootCommand(secrets).Execute(); err != nil {
		os.Exit(1)
	}
}
