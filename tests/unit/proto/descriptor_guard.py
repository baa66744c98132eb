#!/usr/bin/env python3
"""Guards the wire format of lockstep.v1: numbers, types, labels and names, as they were released.

Usage: tests/unit/proto/descriptor_guard.py [--update]
  without a flag: says what differs from lockstep_v1.golden and exits 1 if anything does
  --update: adds what is new to the golden file; refuses when something changed or went away

Peers of another version must read the same bytes, so nothing in the golden file ever changes. What
is no longer wanted stays, or goes with a new package, lockstep.v2.
"""

import pathlib
import subprocess
import sys
import tempfile

from google.protobuf import descriptor_pb2

HERE = pathlib.Path(__file__).resolve().parent
PROTO_ROOT = HERE.parent.parent.parent / "proto"
PACKAGE = "lockstep/v1"
GOLDEN = HERE / "lockstep_v1.golden"

_Field = descriptor_pb2.FieldDescriptorProto


def describe(proto_root, protoc="protoc"):
    """{full name with kind: what must not change} of every definition below proto_root/PACKAGE."""
    protos = sorted(str(p.relative_to(proto_root)) for p in (proto_root / PACKAGE).glob("*.proto"))
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run([protoc, f"-I{proto_root}", f"--descriptor_set_out={out.name}", *protos],
                       check=True)
        files = descriptor_pb2.FileDescriptorSet.FromString(pathlib.Path(out.name).read_bytes())
    found = {}
    for file in files.file:
        for message in file.message_type:
            _describe_message(message, file.package, found)
        for enum in file.enum_type:
            _describe_enum(enum, file.package, found)
        for service in file.service:
            for method in service.method:
                found[f"rpc {file.package}.{service.name}.{method.name}"] = (
                    f"({'stream ' if method.client_streaming else ''}{method.input_type[1:]})"
                    f" returns ({'stream ' if method.server_streaming else ''}"
                    f"{method.output_type[1:]})")
    return found


def _describe_message(message, scope, found):
    name = f"{scope}.{message.name}"
    found[f"message {name}"] = ""
    for field in message.field:
        found[f"field {name}.{field.name}"] = f"= {field.number} {_kind(field, message)}"
    for nested in message.nested_type:
        _describe_message(nested, name, found)
    for enum in message.enum_type:
        _describe_enum(enum, name, found)


def _kind(field, message):
    """Label and type, and the oneof, in which at most one field is set."""
    type_name = (field.type_name[1:] if field.type_name
                 else _Field.Type.Name(field.type).removeprefix("TYPE_").lower())
    if field.label == _Field.LABEL_REPEATED:
        packed = field.options.packed if field.options.HasField("packed") else None
        return f"repeated {type_name}" + {None: "", True: " packed", False: " unpacked"}[packed]
    if field.proto3_optional:
        return f"optional {type_name}"
    if field.HasField("oneof_index"):
        return f"{type_name} in oneof {message.oneof_decl[field.oneof_index].name}"
    return type_name


def _describe_enum(enum, scope, found):
    for value in enum.value:
        found[f"value {scope}.{enum.name}.{value.name}"] = f"= {value.number}"


def read_golden(text):
    """The definitions in a golden file."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {" ".join(words[:2]): " ".join(words[2:]) for words in (l.split() for l in lines)}


def write_golden(found):
    """The text of a golden file."""
    head = "# Written by descriptor_guard.py --update. Lines are added, never changed.\n"
    return head + "".join(f"{name} {what}".rstrip() + "\n" for name, what in found.items())


def broken(golden, found):
    """What peers of the golden version would misread, as sentences."""
    problems = []
    for name, what in golden.items():
        if name not in found:
            problems.append(f"{name} {what}: is gone".replace(" :", ":"))
        elif found[name] != what:
            problems.append(f"{name}: was {what}, is {found[name]}")
    return problems


def added(golden, found):
    """What the golden file does not know yet."""
    return [f"{name} {what}: is new, run descriptor_guard.py --update"
            for name, what in found.items() if name not in golden]


def main(arguments):
    golden = read_golden(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    found = describe(PROTO_ROOT)
    problems = broken(golden, found)
    if "--update" in arguments and not problems:
        GOLDEN.write_text(write_golden(found), encoding="utf-8")
        return 0
    problems += added(golden, found)
    print("\n".join(problems) or f"{len(found)} definitions unchanged")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
