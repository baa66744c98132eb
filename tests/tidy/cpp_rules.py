"""Rules about C++ text: what code may say, and where."""

import re

from source_tree import CPP, Finding, matches, within

# Who starts threads. The room's README says what each does and owns.
THREAD_HOMES = (
    "common/metrics/exposer.h",                # listener for scrapes
    "kernels/cpu/thread_pool.h",               # workers of the CPU backend
    "kernels/cpu/thread_pool.cc",
    "services/gateway/gateway_server.cc",      # ticker
    "services/gateway/long_work_thread.h",     # long texts and long answers
    "services/router/router_server.cc",        # ticker
    "services/scheduler/scheduler_server.cc",  # ticker
    "services/worker/control_runner.h",        # control commands, which may wait for a step
    "services/worker/engine/engine_loop.cc",   # the engine
    "services/worker/scheduler_link.h",        # heartbeats
    "services/worker/scheduler_link.cc",
    "services/worker/model/rank_team.h",       # a thread for each rank of a model
    "services/worker/model/rank_team.cc",
    "services/worker/model/random_weights.cc",  # drawing billions of numbers
    "services/worker/model/tensor_checks.h",    # reading ahead of who loads
    "services/worker/model/tensor_checks.cc",
    "tests/", "bench/",                        # races are tested with threads
)

# Who reads the clock of the wall. All others take a base::Clock, so that time can be simulated.
WALL_CLOCK_HOMES = (
    "common/base/clock.h",          # the real clock
    "common/base/bounded_queue.h",  # a timeout of a blocking wait
    "common/rpc/",                  # gRPC's deadlines are wall-clock times
    "services/client/",             # as above: it only calls
    "services/cli/",                # measures and waits for real processes
    "deploy/examples/",             # clients that use gRPC and nothing of ours
    "tests/", "bench/",             # give-up times of waits
)

ENVIRONMENT_HOMES = ("common/config/",)

# name: where it may be defined. style.md's five families, and switches of libraries, which are read
# by the header included next and cannot be anything but a macro.
MACROS = (
    (r"LOCKSTEP_CHECK\w*", "common/base/check.h"),
    (r"LOCKSTEP_(RETURN_IF_ERROR|ASSIGN_OR_RETURN\w*|CONCAT\w*)", "common/base/status_macros.h"),
    (r"LOCKSTEP_CUDA_RETURN_IF_ERROR", "kernels/cuda/"),
    (r"LOCKSTEP_LOG\w*", "common/log/"),
    (r"XXH_(STATIC_LINKING_ONLY|INLINE_ALL)", "common/base/hash.h"),
    (r"PCRE2_CODE_UNIT_WIDTH", "services/text/"),
    (r"HWY_TARGET_INCLUDE", "kernels/cpu/"),
    (r"HWY_TARGET_INCLUDE", "tests/kernels/"),
    # Highway compiles such headers once per target: a guard that toggles instead of #pragma once.
    (r"LOCKSTEP_KERNELS_CPU_\w+_INL_H_", "kernels/cpu/"),
)


def pragma_once(tree):
    """A header begins with #pragma once; Highway's -inl.h files toggle a guard instead."""
    for path in tree.select({".h", ".cuh"}):
        if path.endswith("-inl.h"):
            continue
        code = [line for line in tree.code(path).splitlines() if line.strip()]
        if not code or code[0].strip() != "#pragma once":
            yield Finding(path, 1, "begin with #pragma once")


def no_environment(tree):
    """Settings come from the configuration, never from the environment."""
    paths = [p for p in tree.select(CPP) if not within(p, ENVIRONMENT_HOMES)]
    yield from matches(tree, paths, r"\b(secure_)?getenv\b",
                       "{}: read settings in common/config")


def no_throwing_json(tree):
    """The JSON library throws at bytes that are no UTF-8, which prompts and paths may hold."""
    paths = [p for p in tree.select(CPP) if within(p, ("common/", "services/"))]
    yield from matches(tree, paths, r"\.dump\s*\((?![^;]*error_handler_t::replace)",
                       "{}: give it error_handler_t::replace, as services/cli/json_text.h does")


def no_naked_new(tree):
    """Memory has an owner from its first moment: `new` only inside the parenthesis of a smart
    pointer (for private constructors), `delete` never."""
    for path in tree.select(CPP):
        code = tree.code(path)
        for match in re.finditer(r"\bnew\b(?=\s*[\w:(\[])", code):
            before = code[max(0, match.start() - 200):match.start()]
            if not re.search(r"(unique_ptr|shared_ptr|Ref)<[^;{}]*>\s*\w*[({]\s*$", before):
                yield Finding(path, code.count("\n", 0, match.start()) + 1,
                              "no naked new: std::make_unique")
    yield from matches(tree, tree.select(CPP), r"(?<!=)\s\bdelete\b(?=\s*(\[\]\s*)?[\w*(])",
                       "no delete: let an owner do it")


def no_stray_threads(tree):
    """Only the files named in THREAD_HOMES start threads."""
    paths = [p for p in tree.select(CPP) if not within(p, THREAD_HOMES)]
    yield from matches(tree, paths,
                       r"\bstd::(thread(?!::hardware)|jthread|async)\b|\bpthread_create\b",
                       "{}: threads are started by the files in THREAD_HOMES only")


def no_wall_clock(tree):
    """Only the files named in WALL_CLOCK_HOMES read real time; others take a base::Clock."""
    paths = [p for p in tree.select(CPP) if not within(p, WALL_CLOCK_HOMES)]
    yield from matches(tree, paths,
                       r"\babsl::Now\(\)|\bsystem_clock\b|\bgettimeofday\b|\btime\(0\)",
                       "{}: take a base::Clock")


def annotated_mutex(tree):
    """Locks are base::Mutex, which Clang's annotations and the thread sanitizer understand."""
    paths = [p for p in tree.select(CPP) if p != "common/base/mutex.h"]
    yield from matches(tree, paths,
                       r"\bstd::(recursive_|shared_|timed_)?mutex\b|\bstd::condition_variable\b"
                       r"|\babsl::(Mutex|CondVar)\b",
                       "{}: use common/base/mutex.h")


def no_sleep(tree):
    """Nobody sleeps for a time: wait for the condition itself, with a deadline."""
    yield from matches(tree, tree.select(CPP),
                       r"\b(absl::SleepFor|sleep_for|sleep_until|usleep|nanosleep|sleep)\s*\(",
                       "{}…): wait for a condition with a deadline")
    for path in tree.select({".py"}):
        for number, line in enumerate(tree.lines(path), 1):
            if re.search(r"\btime\.sleep\(|\basyncio\.sleep\((?!0\))", line):
                yield Finding(path, number, "wait for a condition with a deadline")


def no_float_atomics(tree):
    """A float atomic adds in the order of arrival, which is no order."""
    yield from matches(tree, tree.select(CPP), r"\batomic(_ref)?<\s*(float|double|__half\w*)\b",
                       "{}: addition of floats needs an order")
    yield from matches(tree, tree.select({".cu", ".cuh"}), r"\batomicAdd\w*\s*\(",
                       "{}: additions need an order; for integer counters list an exception")
    for path in tree.select({".cu", ".cuh"}):
        for number, line in enumerate(tree.lines(path), 1):
            if re.search(r"\b(red|atom)\.[\w.:]*add[\w.:]*\.(f|bf)\d+", line):
                yield Finding(path, number, "an atomic addition of floats in PTX")


def no_default_stream(tree):
    """What is on the default stream is in no order with our streams, late as it may be."""
    for path in tree.select({".cc", ".cu", ".cuh", ".h"}):
        if not path.startswith("kernels/cuda/"):
            continue
        for number, line in enumerate(tree.lines(path), 1):
            if re.search(r"\bcudaMem(set|cpy)\w*(?<!Async)\(|<<<[^,>]*,[^,>]*>>>", line):
                yield Finding(path, number, "use the form that takes a stream")


def no_fast_math(tree):
    """Flags that let a compiler change bits are not used."""
    flag = r"f(ast|associative|unsafe)-math|use_fast_math|-Ofast|FP_CONTRACT\s+ON"
    for path in tree.select(CPP | {".txt", ".cmake", ".sh"}) + tree.select({".json"}):
        if path.startswith("tests/tidy/"):
            continue
        for number, line in enumerate(tree.lines(path), 1):
            if re.search(flag, line):
                yield Finding(path, number, "the compiler must not choose bits")


def no_exceptions(tree):
    """Errors are absl::Status; nothing of ours throws."""
    yield from matches(tree, tree.select(CPP), r"\bthrow\b", "return an absl::Status")


def known_macros(tree):
    """A new macro needs a decision record and a line in MACROS."""
    for path in tree.select(CPP):
        for number, line in enumerate(tree.lines(path), 1):
            match = re.match(r"\s*#\s*define\s+(\w+)", line)
            if match and not any(re.fullmatch(name, match.group(1)) and
                                 path.startswith(home) for name, home in MACROS):
                yield Finding(path, number, f"macro {match.group(1)} is not in the list")


def one_cuda_switch(tree):
    """The single #if on the CUDA backend sits in the kernels factory."""
    for path in tree.select(CPP):
        if path != "kernels/factory.cc":
            for number, line in enumerate(tree.lines(path), 1):
                if re.match(r"\s*#\s*\w+.*LOCKSTEP_(HAS|ENABLE)_CUDA", line):
                    yield Finding(path, number, "ask kernels/factory.h instead")


def no_managers(tree):
    """A class is named by what it owns or does, which `Manager` does not say."""
    yield from matches(tree, tree.select(CPP), r"\b(class|struct)\s+\w*(Manager|Helper|Utils?)\b",
                       "{}: name it by what it owns")


_STATEMENT = re.compile(
    r"\s{0,2}(?!\s)(#\s*(include|define|if)\b.*"
    r"|(return|if|for|while|auto|const)\b.*[;{]"
    r"|[\w:<>,*&\s]+\s[\w.\[\]>-]+\s*=[^=].*;"
    r"|[\w:.>-]+(<[\w:, ]*>)?\([^)]*.*\);"
    r"|(EXPECT|ASSERT|TEST)_?\w*\(.*[;{]"
    r"|\})\s*")
_PROSE = re.compile(r"\b[a-z]{2,} [a-z]{2,},? [a-z]{2,}\b")


def no_dead_code(tree):
    """No code in comments and no #if 0. Examples in comments are indented by three spaces."""
    for path in tree.select(CPP):
        for number, comment in tree.comments(path):
            if _STATEMENT.fullmatch(comment) and not _PROSE.search(comment):
                yield Finding(path, number, f"code in a comment:{comment.rstrip()}")
        for number, line in enumerate(tree.lines(path), 1):
            if re.match(r"\s*#\s*if\s+(0|false)\b", line):
                yield Finding(path, number, "code behind #if 0")


RULES = (pragma_once, no_environment, no_throwing_json, no_naked_new, no_stray_threads,
         no_wall_clock, annotated_mutex, no_sleep, no_float_atomics, no_default_stream,
         no_fast_math, no_exceptions, known_macros, one_cuda_switch, no_managers, no_dead_code)


def long_functions(tree, limit=70):
    """(lines, path, line, head) of functions over the limit: shown, not refused."""
    scope = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b(?!.*\))", re.DOTALL)
    for path in tree.select(CPP):
        code = re.sub(r"(?m)^\s*#.*$", "", tree.code(path))
        stack, head_begin = [], 0
        for match in re.finditer(r"[{};]", code):
            if match.group() == "{":
                head = code[head_begin:match.start()]
                begin = head_begin + len(head) - len(head.lstrip())
                line = code.count("\n", 0, begin) + 1
                stack.append((line, head.strip(), bool(scope.search(head))))
            elif match.group() == "}" and stack:
                line, head, _ = stack.pop()
                length = code.count("\n", 0, match.start()) + 2 - line
                if length > limit and ")" in head and all(outer[2] for outer in stack):
                    yield length, path, line, " ".join(head.split())[:60]
            head_begin = match.end()
