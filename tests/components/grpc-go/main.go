// Command grpc-go is a client and a server of gRPC's own library for Go, configured by xDS without a proxy.
//
//	grpc-go serve HOST:PORT[,HOST:PORT…] NAME    serves the health service, and whatever else is called, with an empty answer
//	grpc-go health HOST:PORT                     serves the health service alone, in plain text and without xDS
//	grpc-go call TARGET                          calls it four times a second, and prints one JSON object a line for each call
//	grpc-go ask                                  makes the calls that standard input describes, and prints a line for each
//
// GRPC_XDS_BOOTSTRAP names the bootstrap of serve and call; a server stands under the listeners that its control plane gives it.
// A line of `call` holds either server, client and peer (who answered, whom that took the caller for, and the certificate it
// showed), or an error. `ask` goes without xDS: it reads one JSON object a line (see question), one after the other.
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	xdscredentials "google.golang.org/grpc/credentials/xds"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
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
	case len(arguments) == 2 && arguments[0] == "health":
		return answerHealth(arguments[1])
	case len(arguments) == 2 && arguments[0] == "call":
		return call(arguments[1])
	case len(arguments) == 1 && arguments[0] == "ask":
		return ask(os.Stdin, os.Stdout)
	}
	return fmt.Errorf("usage: grpc-go serve HOST:PORT[,HOST:PORT…] NAME | health HOST:PORT | call TARGET | ask")
}

// identity is the SPIFFE ID that the other end has shown; empty in plain text.
func identity(about *peer.Peer) string {
	tls, ok := about.AuthInfo.(credentials.TLSInfo)
	if !ok || len(tls.State.PeerCertificates) == 0 || len(tls.State.PeerCertificates[0].URIs) == 0 {
		return ""
	}
	return tls.State.PeerCertificates[0].URIs[0].String()
}

func serve(addresses, name string) error {
	secure, err := xdscredentials.NewServerCredentials(xdscredentials.ServerOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		return err
	}
	who := func(ctx context.Context) metadata.MD {
		client, _ := peer.FromContext(ctx)
		return metadata.Pairs("server", name, "client", identity(client))
	}
	tell := func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if err := grpc.SetHeader(ctx, who(ctx)); err != nil {
			return nil, err
		}
		return handle(ctx, request)
	}
	whatever := func(_ any, stream grpc.ServerStream) error {
		if err := stream.SetHeader(who(stream.Context())); err != nil {
			return err
		}
		return stream.SendMsg(new(grpc_health_v1.HealthCheckRequest))
	}
	server, err := xds.NewGRPCServer(grpc.Creds(secure), grpc.UnaryInterceptor(tell), grpc.UnknownServiceHandler(whatever))
	if err != nil {
		return err
	}
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	ended := make(chan error)
	for _, address := range strings.Split(addresses, ",") {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		go func() { ended <- server.Serve(listener) }()
	}
	return <-ended
}

func answerHealth(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
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

// question is a call that `ask` makes.
type question struct {
	Server string // HOST:PORT
	From   string // the address that it comes from
	// Files of the client's certificate and its key; plain text where there are none.
	Certificate, Key string
	Method           string      // /SERVICE/METHOD
	Authority        string      // the host that is asked for; the server's address where there is none
	Headers          [][2]string // in their order
}

// ask makes one call after the other, over one connection for each caller and server. Its lines hold code (as gRPC names it)
// and server (who answered), in the order of the questions.
func ask(questions io.Reader, answers io.Writer) error {
	connections := map[string]*grpc.ClientConn{}
	in, out := json.NewDecoder(questions), json.NewEncoder(answers)
	for {
		var asked question
		switch err := in.Decode(&asked); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		caller := asked
		caller.Method, caller.Headers = "", nil
		key := fmt.Sprintf("%+v", caller)
		if connections[key] == nil {
			connection, err := caller.dial()
			if err != nil {
				return err
			}
			connections[key] = connection
		}
		code, server := asked.over(connections[key])
		if err := out.Encode(map[string]string{"code": code.String(), "server": server}); err != nil {
			return err
		}
	}
}

func (asked question) dial() (*grpc.ClientConn, error) {
	secure := insecure.NewCredentials()
	if asked.Certificate != "" {
		own, err := tls.LoadX509KeyPair(asked.Certificate, asked.Key)
		if err != nil {
			return nil, err
		}
		// Whom the server takes the client for is what is asked, not who the server is.
		secure = credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{own}, InsecureSkipVerify: true})
	}
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(asked.From)}}
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", address)
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(secure), grpc.WithContextDialer(dial)}
	if asked.Authority != "" {
		options = append(options, grpc.WithAuthority(asked.Authority))
	}
	return grpc.NewClient("passthrough:///"+asked.Server, options...)
}

func (asked question) over(connection *grpc.ClientConn) (codes.Code, string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, header := range asked.Headers {
		ctx = metadata.AppendToOutgoingContext(ctx, header[0], header[1])
	}
	var header metadata.MD
	err := connection.Invoke(ctx, asked.Method, new(grpc_health_v1.HealthCheckRequest), new(grpc_health_v1.HealthCheckRequest), grpc.Header(&header))
	return status.Code(err), append(header.Get("server"), "")[0]
}
