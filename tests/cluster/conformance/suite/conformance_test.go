// Package conformance runs the conformance suite of the Gateway API; tests/cluster/conformance/run makes a program of it.
package conformance

import (
	"testing"

	"sigs.k8s.io/gateway-api/conformance"
)

// TestConformance is the suite as its flags ask for it.
func TestConformance(t *testing.T) {
	conformance.RunConformance(t)
}
