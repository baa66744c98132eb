"""The processes that cluster.py drives: the verbs of `lockstep`, clusters, workers that join them.

All of them are known here, so that whoever has run out of time can end them.
"""

import contextlib
import json
import pathlib
import re
import signal
import subprocess
import tempfile
import threading

HERE = pathlib.Path(__file__).resolve().parent
BUNDLED = (HERE / "bin/lockstep").exists()
ROOT = HERE if BUNDLED else HERE.parents[1]
LOCKSTEP = ROOT / ("bin/lockstep" if BUNDLED else "build/cuda/services/cli/lockstep")
FAULTY = ROOT / ("bin/gpu_faulty_worker" if BUNDLED else "build/cuda/tests/gpu/gpu_faulty_worker")
PORT = 7300


class Running:
    """What runs now. One part of a proof at a time may use it."""

    def __init__(self):
        self.processes = []
        self.late = threading.Event()

    def start(self, *command, **streams):
        if self.late.is_set():
            raise RuntimeError("the part's time is over")
        self.processes = [process for process in self.processes if process.poll() is None]
        process = subprocess.Popen([str(word) for word in command], **streams)
        self.processes.append(process)
        return process

    def end(self):
        self.late.set()
        for process in self.processes:
            process.kill()

    @contextlib.contextmanager
    def at_most(self, seconds):
        """Kills what runs when the body takes longer; the body then sees it fail."""
        self.late.clear()
        timer = threading.Timer(seconds, self.end)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


RUNNING = Running()


def ended_within(process, seconds):
    """Whether the process has ended, once it has or the time is over."""
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def lockstep(*arguments, check=True, quiet=False):
    """Runs a verb and shows what it prints; returns exit status and output."""
    if not quiet:
        print("$ lockstep", *arguments, flush=True)
    process = RUNNING.start(LOCKSTEP, *arguments, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if not quiet:
            print(line, end="", flush=True)
    status = process.wait()
    if check and status != 0:
        raise RuntimeError(f"lockstep {arguments[0]} ended with {status}")
    return status, "".join(lines)


class Cluster:
    """`lockstep up` on ports from `port` on, with its run directory."""

    def __init__(self, *flags, port=PORT):
        self.flags = flags
        self.port = port
        self.target = f"127.0.0.1:{port}"
        self.run_dir = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-cluster-"))
        command = ["up", f"--port={port}", f"--run_dir={self.run_dir}", "--start_timeout=5m",
                   *flags]
        print("$ lockstep", *command, flush=True)
        self.process = RUNNING.start(LOCKSTEP, *command)
        while not (self.run_dir / "gateway.address").exists():
            if ended_within(self.process, 0.1):
                self.print_logs()
                raise RuntimeError("the cluster did not start")

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait()

    def print_logs(self):
        """The ends of all logs: what a failure needs and a bundle's host does not keep."""
        for log in sorted(self.run_dir.glob("*.log")):
            print(f"--- {log.name}\n" + log.read_text()[-1500:], flush=True)

    def verify(self, out, *flags):
        """Runs `lockstep verify`; returns exit status and record."""
        status, _ = lockstep("verify", f"--target={self.target}", f"--run_dir={self.run_dir}",
                             *flags, f"--out={out}", check=False)
        if not out.exists():
            raise RuntimeError(f"verify ended with {status} and no record")
        return status, json.loads(out.read_text())

    def has(self, worker):
        return f'worker_id: "{worker}"' in lockstep("info", f"--target={self.target}",
                                                    quiet=True)[1]

    @contextlib.contextmanager
    def joined(self, fault, kv_mib, ranks=1):
        """A worker with a planted fault, which the cluster knows by the fault's name."""
        config = (self.run_dir / "worker-0.textproto").read_text()
        for old, new in ((r'(worker_id: )"[^"]*"', rf'\1"{fault}"'),
                         (r"(tensor_parallel: )\d+", rf"\g<1>{ranks}"),
                         (r'(metrics_listen: )"[^"]*"', rf'\1"127.0.0.1:{self.port + 31}"'),
                         (r'( listen: )"[^"]*"', rf'\1"127.0.0.1:{self.port + 30}"'),
                         (r"(kv_bytes: )\d+", rf"\g<1>{kv_mib << 20}")):
            config, count = re.subn(old, new, config)
            if count != 1:
                raise RuntimeError(f"{old} is {count} times in the worker's configuration")
        path = self.run_dir / f"{fault}.textproto"
        path.write_text(config)
        with open(self.run_dir / f"{fault}.log", "w", encoding="utf-8") as log:
            process = RUNNING.start(FAULTY, fault, path, stdout=log, stderr=log)
        try:
            while not self.has(fault):
                if ended_within(process, 0.5):
                    raise RuntimeError(f"the worker with {fault} did not start")
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            if not ended_within(process, 20):
                process.kill()
            process.wait()
        while self.has(fault):
            if ended_within(self.process, 0.5):
                raise RuntimeError("the cluster ended")
