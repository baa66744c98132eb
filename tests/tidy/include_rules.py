"""Rules about #include lines: direction of dependencies, the wall around cores, dead headers."""

import posixpath

import layers
from source_tree import CPP, Finding


def dependency_direction(tree):
    """Rooms include only what the table in layers.py allows."""
    for path in tree.select(CPP):
        room = layers.room_of(path)
        if room in layers.OUTERMOST:
            continue
        if room is None:
            yield Finding(path, 0, "this room is not in the table")
            continue
        for line, target, _ in tree.includes(path):
            if target not in tree:
                continue
            target_room = layers.room_of(target)
            if target_room is None or target_room in layers.OUTERMOST:
                yield Finding(path, line, f"{target} is not for {room}")
            elif not layers.may_include(room, target_room):
                yield Finding(path, line, f"{room} must not depend on {target_room}")


def external_headers(tree):
    """A third-party family is used only by the rooms that wrap it."""
    for path in tree.select(CPP):
        room = layers.room_of(path)
        if room is None or room in layers.OUTERMOST:
            continue
        rooms, families = layers.ROOMS[room]
        for line, target, _ in tree.includes(path):
            if layers.is_generated(target):
                if "proto" not in rooms:
                    yield Finding(path, line, f"{room} knows no generated messages ({target})")
                continue
            family = layers.family_of(target) if target not in tree else None
            if family and family not in families:
                yield Finding(path, line, f"{room} does not use {family} ({target})")


def core_without_io(tree):
    """A service's core reaches no gRPC and no generated messages, through any header."""
    for path in tree.select(CPP, "services/"):
        if not layers.is_core(path):
            continue
        room = layers.room_of(path)
        for target, via in tree.include_closure(path).items():
            is_message = layers.is_generated(target) and room not in layers.CORES_WITH_MESSAGES
            if is_message or layers.family_of(target) == "grpc" or target.endswith(".grpc.pb.h"):
                yield Finding(path, 0, f"core reaches {target} through {via}")


def kernels_factory(tree):
    """Only the worker's server, and the tool that sizes one, make a backend."""
    for path in tree.select(CPP, "services/"):
        if path.startswith(layers.KERNELS_FACTORY_USERS):
            continue
        for line, target, _ in tree.includes(path):
            if target.startswith("kernels/") and not target.startswith("kernels/api/"):
                yield Finding(path, line, f"use kernels/api, not {target}")


def include_from_root(tree):
    """Our headers are included in quotes with their path from the repository's root."""
    for path in tree.select(CPP):
        folder = posixpath.dirname(path)
        for line, target, is_quoted in tree.includes(path):
            if not is_quoted and target in tree:
                yield Finding(path, line, f'write "{target}"')
            elif is_quoted and target not in tree:
                if posixpath.normpath(posixpath.join(folder, target)) in tree:
                    yield Finding(path, line, f"{target} is not a path from the root")


def own_header_first(tree):
    """x.cc includes x.h before anything else, which shows that x.h stands alone."""
    for path in tree.select({".cc", ".cu"}):
        header = posixpath.splitext(path)[0] + ".h"
        includes = tree.includes(path)
        if header in tree and (not includes or includes[0][1] != header):
            yield Finding(path, includes[0][0] if includes else 0, f"include {header} first")


def dead_headers(tree):
    """Every header is included by somebody."""
    included = {target for path in tree.select(CPP) for _, target, _ in tree.includes(path)}
    for path in tree.select({".h", ".cuh"}):
        if path not in included:
            yield Finding(path, 0, "no file includes this header")


RULES = (dependency_direction, external_headers, core_without_io, kernels_factory,
         include_from_root, own_header_first, dead_headers)
