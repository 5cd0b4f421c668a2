#!/usr/bin/env python3
"""A client and a server of gRPC's C++ library (C core), through its Python package, configured by xDS without a proxy.

    grpc_xds.py serve HOST:PORT[,HOST:PORT…] NAME    answers every method like the health service, with the listeners from
                                                     its control plane; a server with the name `slow` takes a second for
                                                     each call
    grpc_xds.py call TARGET                          calls TARGET four times a second with a header `x-user: jo`,
                                                     and prints one JSON object per line for each call

GRPC_XDS_BOOTSTRAP names the bootstrap. A line of `call` contains either server and client (the server that
responded, and the identity of the caller that it saw), or an error.
"""

import json
import sys
import time
from concurrent import futures

import grpc
import grpc.experimental

SERVICE, METHOD = "grpc.health.v1.Health", "Check"
SERVING = b"\x08\x01"


def identity(context):
    names = context.auth_context()
    found = names.get("peer_spiffe_id") or names.get("x509_uri") or [b""]
    return found[0].decode()


class Whatever(grpc.GenericRpcHandler):
    """Answers all methods in the same way."""

    def __init__(self, name):
        self.handler = grpc.unary_unary_rpc_method_handler(self.answer)
        self.name = name

    def answer(self, _, context):
        if self.name == "slow":
            time.sleep(1)
        context.send_initial_metadata((("server", self.name), ("client", identity(context))))
        return SERVING

    def service(self, _):
        return self.handler


def serve(addresses, name):
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4), xds=True)
    server.add_generic_rpc_handlers((Whatever(name),))
    for address in addresses.split(","):
        server.add_secure_port(address, grpc.xds_server_credentials(grpc.insecure_server_credentials()))
    server.start()
    server.wait_for_termination()


def call(target):
    secure = grpc.xds_channel_credentials(grpc.experimental.insecure_channel_credentials())
    with grpc.secure_channel(target, secure) as channel:
        check = channel.unary_unary("/%s/%s" % (SERVICE, METHOD))
        while True:
            try:
                _, answered = check.with_call(b"", timeout=2, metadata=(("x-user", "jo"),))
                header = dict(answered.initial_metadata())
                line = {key: header.get(key, "") for key in ("server", "client")}
            except grpc.RpcError as error:
                line = {"error": "%s: %s" % (error.code(), error.details())}
            print(json.dumps(line), flush=True)
            time.sleep(0.25)


def main():
    if sys.argv[1:2] == ["serve"] and len(sys.argv) == 4:
        serve(*sys.argv[2:])
    elif sys.argv[1:2] == ["call"] and len(sys.argv) == 3:
        call(sys.argv[2])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
