#!/usr/bin/env python3
"""A first request from Python, with grpcio and protobuf only.

Make the stubs once, from the root of the repository:

    mkdir -p build/python
    protoc -Iproto --python_out=build/python --grpc_out=build/python \
        --plugin=protoc-gen-grpc="$(command -v grpc_python_plugin)" \
        lockstep/v1/types.proto lockstep/v1/rollout.proto

    PYTHONPATH=build/python python3 deploy/examples/generate.py 127.0.0.1:7100 '12+34*2='
"""

import struct
import sys
import threading
import time

import grpc
from lockstep.v1 import rollout_pb2, rollout_pb2_grpc

# gRPC says CANCELLED of what reached a gateway that was just ending; nobody here cancels.
NO_GATEWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
PAUSE_FIRST, PAUSE_LAST, PATIENCE = 0.05, 1, 5  # in seconds, as in services/client/retry.h


def ask(method, request, timeout):
    """The answer to a call, which is made again while gateways end and start: nothing of a lost
    answer was seen, and the same request has the same bits."""
    deadline = time.monotonic() + timeout
    give_up, pause = deadline, PAUSE_FIRST
    while True:
        try:
            return method(request, timeout=deadline - time.monotonic())
        except grpc.RpcError as error:
            now = time.monotonic()
            give_up = min(give_up, now + PATIENCE)
            if error.code() not in NO_GATEWAY or now + pause > give_up:
                raise
        threading.Event().wait(pause)
        pause = min(2 * pause, PAUSE_LAST)


def main():
    target, prompt = sys.argv[1:]
    # grpcio refuses answers above 4 MiB unless told otherwise.
    options = [("grpc.max_receive_message_length", 64 << 20)]
    with grpc.insecure_channel(target, options=options) as channel:
        stub = rollout_pb2_grpc.RolloutServiceStub(channel)
        # With a seed or a request_id of its own; without both each try would draw another seed.
        request = rollout_pb2.GenerateRequest(prompt_text=prompt.encode(), n=2, seed=1)
        request.sampling.temperature = 0.8
        request.stop.max_new_tokens = 48
        response = ask(stub.Generate, request, timeout=60)
    for sample in response.samples:
        count = len(sample.token_ids) // 4
        # Arrays are little-endian bytes: numpy.frombuffer(sample.token_ids, "<u4") does the same.
        ids = struct.unpack(f"<{count}I", sample.token_ids)
        logprobs = struct.unpack(f"<{count}f", sample.logprobs.raw)
        print(f"sample {sample.index}: {sample.text!r}")
        print("  ids     ", *ids)
        print("  logprobs", *(f"{value:.9g}" for value in logprobs))
        print("  receipt ", sample.receipt.digest)


if __name__ == "__main__":
    main()
