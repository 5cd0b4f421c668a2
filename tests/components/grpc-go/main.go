// Command grpc-go is a client and a server of gRPC's own library for Go, configured by xDS without a proxy.
//
//	grpc-go serve HOST:PORT NAME    serves the health service, under the listener that its control plane gives it
//	grpc-go call TARGET             calls it four times a second, and prints one JSON object a line for each call
//
// GRPC_XDS_BOOTSTRAP names the bootstrap. A line of `call` holds either server, client and peer (who answered, whom that
// took the caller for, and the certificate it showed), or an error.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	xdscredentials "google.golang.org/grpc/credentials/xds"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/xds"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	switch {
	case len(arguments) == 3 && arguments[0] == "serve":
		return serve(arguments[1], arguments[2])
	case len(arguments) == 2 && arguments[0] == "call":
		return call(arguments[1])
	}
	return fmt.Errorf("usage: grpc-go serve HOST:PORT NAME | call TARGET")
}

// identity is the SPIFFE ID that the other end has shown; empty in plain text.
func identity(about *peer.Peer) string {
	tls, ok := about.AuthInfo.(credentials.TLSInfo)
	if !ok || len(tls.State.PeerCertificates) == 0 || len(tls.State.PeerCertificates[0].URIs) == 0 {
		return ""
	}
	return tls.State.PeerCertificates[0].URIs[0].String()
}

func serve(address, name string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	secure, err := xdscredentials.NewServerCredentials(xdscredentials.ServerOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		return err
	}
	tell := func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		client, _ := peer.FromContext(ctx)
		if err := grpc.SetHeader(ctx, metadata.Pairs("server", name, "client", identity(client))); err != nil {
			return nil, err
		}
		return handle(ctx, request)
	}
	server, err := xds.NewGRPCServer(grpc.Creds(secure), grpc.UnaryInterceptor(tell))
	if err != nil {
		return err
	}
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	return server.Serve(listener)
}

func call(target string) error {
	secure, err := xdscredentials.NewClientCredentials(xdscredentials.ClientOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		return err
	}
	connection, err := grpc.NewClient(target, grpc.WithTransportCredentials(secure))
	if err != nil {
		return err
	}
	client := grpc_health_v1.NewHealthClient(connection)
	lines := json.NewEncoder(os.Stdout)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		var header metadata.MD
		server := new(peer.Peer)
		_, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.Header(&header), grpc.Peer(server))
		cancel()
		line := map[string]string{}
		if err != nil {
			line["error"] = err.Error()
		} else {
			first := func(key string) string { return append(header.Get(key), "")[0] }
			line["server"], line["client"], line["peer"] = first("server"), first("client"), identity(server)
		}
		if err := lines.Encode(line); err != nil {
			return err
		}
		time.Sleep(250 * time.Millisecond)
	}
}
