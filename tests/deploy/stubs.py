"""Stubs of the services for Python, made anew for each test run."""

import functools
import importlib
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def why_no_stubs():
    """A reason to skip, or None."""
    for tool in ("protoc", "grpc_python_plugin"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    try:
        importlib.import_module("grpc")
    except ImportError:
        return "this Python has no grpc"
    return None


@functools.cache
def _folder():
    folder = tempfile.TemporaryDirectory(prefix="lockstep-stubs-")
    plugin = shutil.which("grpc_python_plugin")
    protos = ROOT / "proto"
    files = [one.relative_to(protos) for one in (protos / "lockstep" / "v1").glob("*.proto")]
    subprocess.run(["protoc", f"-I{ROOT / 'proto'}", f"--python_out={folder.name}",
                    f"--grpc_out={folder.name}", f"--plugin=protoc-gen-grpc={plugin}", *files],
                   check=True)
    sys.path.append(folder.name)
    return folder


def load(name):
    """(messages, stubs and servicers) of one file of proto/lockstep/v1."""
    _folder()
    return (importlib.import_module(f"lockstep.v1.{name}_pb2"),
            importlib.import_module(f"lockstep.v1.{name}_pb2_grpc"))
