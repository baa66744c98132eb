"""A worker that joins a real cluster and does what no honest one does."""

import concurrent.futures
import itertools
import struct
import threading

import grpc

import stubs

HEARTBEAT_SECONDS = 0.2
# Beats that are left out before it comes back as another life: longer than a lease of a second.
BEATS_DEAD = 10
# What is not a ticket: no honest worker runs anything without one.
NO_TICKET = 0
# Routers ping their workers more often than grpc's server takes by default.
SERVER_OPTIONS = [("grpc.http2.max_ping_strikes", 0), ("grpc.so_reuseport", 0),
                  ("grpc.http2.min_ping_interval_without_data_ms", 100)]


class StrangeWorker:
    """Takes the contract and the model of the cluster for its own. What it does with a sequence is
    said by `on_start(self, start)`, which yields frames."""

    # No life of any of them is like another one.
    _incarnations = itertools.count(0x57A6E)

    def __init__(self, scheduler, cluster_id, on_start=lambda worker, start: (),
                 kv_blocks=4096):
        self.messages, services = stubs.load("worker")
        self._scheduler_messages, scheduler_services = stubs.load("scheduler")
        self._channel = grpc.insecure_channel(scheduler)
        self._scheduler = scheduler_services.SchedulerServiceStub(self._channel)
        self._cluster_id = cluster_id
        self._info = self._scheduler.GetClusterInfo(
            self._scheduler_messages.GetClusterInfoRequest(cluster_id=cluster_id), timeout=10)
        self._on_start = on_start
        self._kv_blocks = kv_blocks
        self._steps = itertools.count(1)
        self._stop = threading.Event()
        self._cuts = []
        self.lives = 0
        servicer = type("Servicer", (services.WorkerServiceServicer,), {
            "Run": lambda _, commands, context: self._run(commands),
            "Control": lambda _, request, context: self.messages.ControlResponse()})()
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(8),
                                   options=SERVER_OPTIONS)
        services.add_WorkerServiceServicer_to_server(servicer, self._server)
        self._port = self._server.add_insecure_port("127.0.0.1:0")

    def __enter__(self):
        self._server.start()
        self.begin_life()
        self._heart = threading.Thread(target=self._beat)
        self._heart.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._heart.join()
        if not self.dying.is_set():
            self._scheduler.Leave(self._scheduler_messages.LeaveRequest(
                worker=self.identity, force=True), timeout=10)
        self._server.stop(None).wait()
        self._channel.close()

    def begin_life(self):
        """Registers; an earlier life of it is over."""
        self.identity = self.messages.WorkerIdentity(
            cluster_id=self._cluster_id, worker_id="strange", incarnation=next(self._incarnations))
        self.dying = threading.Event()
        request = self._scheduler_messages.RegisterRequest(
            cluster_id=self._cluster_id, worker_id="strange",
            incarnation=self.identity.incarnation, address=f"127.0.0.1:{self._port}",
            fingerprint=self._info.fingerprint, weight_version=self._info.weight_version,
            weights_digest=self._info.weights_digest, model=self._info.model)
        request.capacity.kv_blocks = self._kv_blocks
        request.capacity.kv_block_tokens = self._info.kv_block_tokens
        request.capacity.sequences_max = 256
        request.capacity.context_tokens_max = self._info.context_tokens_max
        request.capacity.chunk_tokens = 512
        self._scheduler.Register(request, timeout=10)
        self.lives += 1

    def report_cut_without_ticket(self):
        self._cuts.append(self._scheduler_messages.CutReport(ticket_id=NO_TICKET, end=7, length=9))

    def leave_for(self, fault):
        """As a worker does whose process ends by itself."""
        self.dying.set()
        self._scheduler.Leave(self._scheduler_messages.LeaveRequest(
            worker=self.identity, force=True, fault=fault), timeout=10)

    def frame(self, start, token, end=None):
        """One token at the first output position of a sequence, and perhaps its end."""
        frame = self.messages.WorkerFrame(worker=self.identity, step=next(self._steps))
        delta = frame.deltas.add(handle=start.ticket.ticket_id, token_begin=0,
                                 token_ids=struct.pack("<I", token),
                                 weight_version=self._info.weight_version,
                                 weights_digest=self._info.weights_digest)
        delta.logprobs.raw = delta.logprobs.scaled = struct.pack("<f", -1)
        if end is not None:
            delta.end.reason = end
        return frame

    def _run(self, commands):
        for command in commands:
            for start in command.start:
                yield from self._on_start(self, start)

    def _beat(self):
        dead = 0
        while not self._stop.wait(HEARTBEAT_SECONDS):
            if self.dying.is_set():
                dead += 1
                if dead == BEATS_DEAD:
                    self.begin_life()
                continue
            dead = 0
            try:
                self._scheduler.Heartbeat(self._scheduler_messages.HeartbeatRequest(
                    worker=self.identity, steps=next(self._steps), idle=True,
                    kv_blocks_free=self._kv_blocks, cuts=self._cuts), timeout=10)
            except grpc.RpcError as error:
                # What it reported has cost it its lease.
                if error.code() != grpc.StatusCode.FAILED_PRECONDITION:
                    raise
                self.dying.set()
            self._cuts = []
