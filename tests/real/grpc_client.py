#!/usr/bin/env python3
"""An independent xDS client: state-of-the-world ADS over gRPC's own library.

Reads one JSON object from its argument (address, server_name, root, certificate, key, id, metadata), subscribes
to all upstream clusters and to the assignments they name, and prints its state, one JSON object per line, after
each response: {"stream": number, "endpoints": {upstream cluster: ["address:port", ...]}}. When the stream breaks it
opens another, without end. Messages are encoded and decoded by hand: it shares only field numbers with Strait.
"""

import json
import queue
import sys

import grpc

TYPES = "type.googleapis.com/envoy.config."
CLUSTER = TYPES + "cluster.v3.Cluster"
ASSIGNMENT = TYPES + "endpoint.v3.ClusterLoadAssignment"
METHOD = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
EDS = 3


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number, value):
    """Encodes a length-delimited field."""
    if isinstance(value, str):
        value = value.encode()
    return varint(number << 3 | 2) + varint(len(value)) + value


def struct(values):
    entries = b""
    for key, value in values.items():
        kind = field(5, struct(value)) if isinstance(value, dict) else field(3, value)
        entries += field(1, field(1, key) + field(2, kind))
    return entries


def fields(message):
    """Yields the fields of a message in their order: (number, value). The value is bytes or a number."""
    at = 0

    def number():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = number()
        kind = key & 7
        if kind == 0:
            yield key >> 3, number()
        else:
            size = {1: 8, 5: 4}.get(kind)
            if size is None:
                size = number()
            yield key >> 3, message[at : at + size]
            at += size


def every(message, *path):
    """Returns all values at a path of field numbers. Each field may be repeated."""
    if not path:
        return [message]
    found = [value for number, value in fields(message) if number == path[0]]
    return [one for value in found for one in every(value, *path[1:])]


def text(message, *path):
    return (every(message, *path) or [b""])[0].decode()


def upstream(message):
    """Returns the name of an upstream cluster, and whether it uses EDS."""
    return text(message, 1), EDS in every(message, 2)


def assignment(message):
    sockets = every(message, 2, 2, 1, 1, 1)
    addresses = ["%s:%s" % (text(one, 2), (every(one, 3) or [0])[0]) for one in sockets]
    return text(message, 1), sorted(addresses)


class Proxy:
    def __init__(self, given):
        self.node = field(1, given["id"]) + field(3, struct(given["metadata"]))
        self.stream = 0
        self.endpoints = {}

    def request(self, kind, names=(), version="", nonce="", node=b""):
        message = field(4, kind)
        if version:
            message += field(1, version)
        if node:
            message += field(2, node)
        for name in names:
            message += field(3, name)
        if nonce:
            message += field(5, nonce)
        return message

    def run(self, channel):
        call = channel.stream_stream(
            METHOD, request_serializer=lambda it: it, response_deserializer=lambda it: it
        )
        while True:
            self.stream += 1
            requests = queue.SimpleQueue()
            requests.put(self.request(CLUSTER, node=self.node))
            responses = call(iter(requests.get, None), wait_for_ready=True)
            try:
                self.listen(requests, responses)
            except grpc.RpcError as error:
                print(error.code(), error.details(), file=sys.stderr, flush=True)
            requests.put(None)

    def listen(self, requests, responses):
        wanted, last = [], {}
        for response in responses:
            kind, version, nonce = text(response, 4), text(response, 1), text(response, 5)
            last[kind] = (version, nonce)
            bodies = every(response, 2, 2)
            if kind == CLUSTER:
                requests.put(self.request(CLUSTER, (), version, nonce))
                names = sorted(name for name, named in map(upstream, bodies) if named)
                self.endpoints = {name: self.endpoints.get(name, []) for name in names}
                if names != wanted:
                    wanted = names
                    requests.put(self.request(ASSIGNMENT, wanted, *last.get(ASSIGNMENT, ("", ""))))
            elif kind == ASSIGNMENT:
                requests.put(self.request(ASSIGNMENT, wanted, version, nonce))
                self.endpoints.update(map(assignment, bodies))
            print(json.dumps({"stream": self.stream, "endpoints": self.endpoints}), flush=True)


def main():
    given = json.loads(sys.argv[1])
    read = lambda name: open(given[name], "rb").read()
    credentials = grpc.ssl_channel_credentials(read("root"), read("key"), read("certificate"))
    options = [
        ("grpc.ssl_target_name_override", given["server_name"]),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]
    with grpc.secure_channel(given["address"], credentials, options) as channel:
        Proxy(given).run(channel)


if __name__ == "__main__":
    main()
