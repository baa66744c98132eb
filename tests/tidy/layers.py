"""Who may include whom: the one place where the direction of dependencies is written down."""

# Families of headers that are not ours, by what their include path starts with. The standard
# library, POSIX and abseil are open to every room.
EXTERNAL = {
    "grpc": ("grpcpp/", "grpc/", "src/core/"),
    "protobuf": ("google/protobuf/",),
    "prometheus": ("prometheus/",),
    "json": ("nlohmann/",),
    "highway": ("hwy/",),
    "hash": ("xxhash.h",),
    "unicode": ("utf8proc.h",),
    "regex": ("pcre2.h",),
    "http": ("httplib.h", "boost/"),
    "cuda": ("cuda", "cublas", "nccl", "nvtx"),
}

# room: (rooms it may include besides itself, external families, "proto" for generated messages).
# A file belongs to the longest prefix. A room that is not listed here may include nothing.
ROOMS = {
    "common/base": ((), ("hash",)),
    "common/log": (("common/base",), ()),
    "common/metrics": (("common/base",), ("http", "prometheus")),
    "common/config": (("common/base",), ("protobuf",)),
    "common/rpc": (("common/base", "common/log", "common/metrics", "proto"), ("grpc",)),
    "common/service": (("common/base", "common/config", "common/log", "common/metrics",
                        "common/rpc", "proto"), ()),

    "kernels/api": (("common/base",), ()),
    "kernels/order": (("kernels/api", "common/base"), ()),
    "kernels/cpu": (("kernels/api", "kernels/order", "common/base"), ("highway",)),
    "kernels/cuda": (("kernels/api", "kernels/collective", "kernels/order", "common/base"),
                     ("cuda",)),
    "kernels/collective": (("kernels/api", "kernels/order", "common/base"), ("cuda",)),
    "kernels": (("kernels/api", "kernels/cpu", "kernels/cuda", "kernels/collective",
                 "common/base"), ()),

    # What services share besides common: text is a library of the gateway and of the engine's
    # stops; client is what the command line (and nobody who serves) calls with.
    "services/text": (("common/base",), ("json", "regex", "unicode")),
    "services/client": (("common/base", "common/rpc", "proto"), ("grpc", "http", "protobuf")),

    "services/gateway": (("common", "proto", "services/text"),
                         ("grpc", "http", "json", "protobuf")),
    "services/router": (("common", "proto"), ("grpc",)),
    "services/scheduler": (("common", "proto"), ("grpc", "protobuf")),
    "services/worker/kv": (("common/base",), ()),
    "services/worker/engine": (("common/base", "common/metrics", "kernels/api", "services/text",
                                "services/worker/kv"), ()),
    "services/worker/model": (("common/base", "kernels/api", "services/worker/engine"),
                              ("json",)),
    "services/worker": (("common", "proto", "kernels", "services/text", "services/worker/engine",
                         "services/worker/kv", "services/worker/model"), ("grpc", "protobuf")),
    # The one place where all services meet: a verb per role.
    "services/cli": (("common", "proto", "services/client", "services/gateway",
                      "services/router", "services/scheduler", "services/text",
                      "services/worker", "services/worker/model"), ("json", "protobuf")),
    # Clients as others write them: nothing of ours but the protos.
    "deploy/examples": (("proto",), ("grpc",)),
}

# Their files may include everything; nothing else may include them.
OUTERMOST = ("tests", "bench")

# A service's shell: the files that know gRPC and generated messages. All others are core, which
# must not reach either, not even through another header, so that it runs in simulated time.
SHELLS = {
    "services/router": (
        "core_driver", "delta_writer", "gateway_streams", "message_writer", "router_options",
        "router_server", "scheduler_link", "stream_count", "wire", "worker_streams"),
    "services/scheduler": (
        "admit_handler", "core_host", "core_host_decisions", "grpc_worker_control",
        "scheduler_options", "scheduler_server", "scheduler_service", "scheduler_wire",
        "watch_handler"),
    "services/worker": (
        "certification", "codec", "control_handler", "control_runner", "run_handler",
        "scheduler_link", "stream_table", "worker_options", "worker_server", "worker_service"),
    "services/gateway": (
        "gateway_options", "gateway_queries", "gateway_server", "gateway_service",
        "generate_handlers", "generate_many_handler", "operator_handlers", "request_starter",
        "route_pool"),
}

# Cores that may use generated messages: the gateway's domain *is* the trainer's API.
CORES_WITH_MESSAGES = ("services/gateway",)
# Rooms of a service that are core throughout.
CORE_ROOMS = ("services/worker/engine", "services/worker/kv", "services/worker/model",
              "services/text")

# Only these files ask for a backend, or what it wants; every other file of the services sees
# kernels/api.
KERNELS_FACTORY = "kernels/factory.h"
KERNELS_FACTORY_USERS = ("services/worker/certification.cc", "services/worker/worker_options.cc",
                         "services/worker/worker_server.cc", "services/cli/")


def room_of(path):
    """The longest listed room that holds the file, or None."""
    folders = path.split("/")[:-1]
    for length in range(len(folders), 0, -1):
        room = "/".join(folders[:length])
        if room in ROOMS or room in OUTERMOST:
            return room
    return None


def family_of(include):
    """The external family of an include, or None when it is open to all."""
    for family, prefixes in EXTERNAL.items():
        if include.startswith(prefixes):
            return family
    return None


def is_generated(include):
    return include.endswith((".pb.h",))


def may_include(room, target_room):
    """Whether `room` may include files of `target_room`. "common" stands for all its rooms."""
    allowed = ROOMS[room][0]
    return target_room == room or target_room in allowed or target_room.split("/")[0] in allowed


def is_core(path):
    """Whether a file of the services is core."""
    folder, _, name = path.rpartition("/")
    if folder in CORE_ROOMS:
        return True
    return folder in SHELLS and name.split(".")[0] not in SHELLS[folder]
