#!/usr/bin/env python3
"""Plants one violation of each rule in a tree of its own and asserts that the rule sees it there,
and nothing in the same tree done right."""

import pathlib
import tempfile
import unittest

import tidy
from source_tree import SourceTree

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

GUARD = "#pragma once\n"
CMAKE = {"CMakeLists.txt": "add_subdirectory(kernels)\n"}

# rule: (files with a violation, file it is in, the same files done right)
PLANTS = {
    "columns": ({"a.cc": "int a;  // " + "x" * 100}, "a.cc",
                {"a.cc": "int a;", "b.md": "| " + "cell | " * 30 + "\n```\n" + "x" * 101 + "\n```",
                 "c.md": "https://example.org/" + "x" * 100}),
    "file-length": ({"a.cc": "int a;\n" * 501}, "a.cc", {"a.cc": "int a;\n" * 500}),
    "telling-names": ({"common/string_utils.h": ""}, "common/string_utils.h",
                      {"common/utf8.h": "", "docs/use.md": ""}),
    "file-case": ({"common/StrongId.h": ""}, "common/StrongId.h",
                  {"common/strong_id.h": "", "kernels/math-inl.h": ""}),
    "todo-with-issue": ({"a.cc": "// TODO: faster"}, "a.cc", {"a.cc": "// TODO(#12): faster"}),
    "portable-paths": ({"a.md": "see /home/" + "me/x"}, "a.md",
                       {"a.md": "see /tmp/x and services/work/x, $HOME/work/y"}),

    "dependency-direction": (
        {"services/router/a.cc": '#include "services/gateway/b.h"', "services/gateway/b.h": ""},
        "services/router/a.cc",
        {"services/gateway/a.cc": '#include "services/text/b.h"', "services/text/b.h": "",
         "tests/c.cc": '#include "services/text/b.h"'}),
    "external-headers": (
        {"kernels/cpu/a.cc": '#include "grpcpp/grpcpp.h"'}, "kernels/cpu/a.cc",
        {"kernels/cpu/a.cc": '#include "hwy/highway.h"\n#include "absl/status/status.h"'}),
    "core-without-io": (
        {"services/router/router_core.cc": '#include "services/router/wire.h"',
         "services/router/wire.h": '#include "lockstep/v1/router.pb.h"'},
        "services/router/router_core.cc",
        {"services/router/wire.h": '#include "lockstep/v1/router.pb.h"',
         "services/router/worker_table.h": '#include "absl/time/time.h"',
         "services/gateway/receipt.h": '#include "lockstep/v1/rollout.pb.h"'}),
    "kernels-factory": (
        {"services/worker/model/a.cc": '#include "kernels/cpu/ops.h"'},
        "services/worker/model/a.cc",
        {"services/worker/model/a.cc": '#include "kernels/api/linear.h"',
         "services/worker/worker_server.cc": '#include "kernels/factory.h"'}),
    "include-from-root": (
        {"common/base/a.cc": '#include "b.h"', "common/base/b.h": ""}, "common/base/a.cc",
        {"common/base/a.cc": '#include "common/base/b.h"\n#include "utf8proc.h"',
         "common/base/b.h": ""}),
    "own-header-first": (
        {"common/a.cc": '#include <string>\n\n#include "common/a.h"', "common/a.h": ""},
        "common/a.cc",
        {"common/a.cc": '#include "common/a.h"\n\n#include <string>', "common/a.h": "",
         "common/alone.cc": "#include <string>"}),
    "dead-headers": ({"common/a.h": GUARD}, "common/a.h",
                     {"common/a.h": GUARD, "common/a.cc": '#include "common/a.h"'}),

    "pragma-once": ({"a.h": "#ifndef A\n#define A\n#endif\n"}, "a.h",
                    {"a.h": "// What it is.\n#pragma once\n", "b-inl.h": "#if defined(B)\n"}),
    "no-environment": ({"services/a.cc": 'auto* a = std::getenv("A");'}, "services/a.cc",
                       {"common/config/a.cc": 'auto* a = std::getenv("A");',
                        "services/a.cc": '// getenv is elsewhere\nauto a = "getenv";'}),
    "no-throwing-json": ({"services/a.cc": "file << json.dump(1);"}, "services/a.cc",
                         {"services/a.cc": "json.dump(1, ' ', true,\n error_handler_t::replace);",
                          "tests/a.cc": "file << json.dump();"}),
    "no-naked-new": ({"a.cc": "auto* a = new Thing(1);"}, "a.cc",
                     {"a.cc": "// new Thing\nstd::unique_ptr<Thing> a(new Thing(1));\n"
                              "return std::unique_ptr<Thing>(\n    new Thing(2));\n"
                              "Thing(const Thing&) = delete;\n"}),
    "no-stray-threads": ({"services/router/a.cc": "std::thread a([] {});"}, "services/router/a.cc",
                         {"services/router/a.cc": "int n = std::thread::hardware_concurrency();",
                          "services/worker/engine/engine_loop.cc": "std::thread a([] {});"}),
    "no-wall-clock": ({"services/router/a.cc": "auto now = absl::Now();"}, "services/router/a.cc",
                      {"services/router/a.cc": "auto now = clock->Now();",
                       "common/base/clock.h": "return absl::Now();"}),
    "annotated-mutex": ({"services/a.h": "std::mutex mutex_;"}, "services/a.h",
                        {"services/a.h": "base::Mutex mutex_;  // not absl::Mutex",
                         "common/base/mutex.h": "std::mutex mutex_;"}),
    "no-sleep": ({"tests/a_test.cc": "absl::SleepFor(absl::Seconds(1));"}, "tests/a_test.cc",
                 {"tests/a_test.cc": "WaitUntil(done, deadline);  // never sleep(1)"}),
    "no-float-atomics": ({"kernels/cpu/a.cc": "std::atomic<float> sum;"}, "kernels/cpu/a.cc",
                         {"kernels/cpu/a.cc": "std::atomic<int> next;"}),
    "no-default-stream": (
        {"kernels/cuda/a.cc": "cudaMemset(flags, 0, bytes)"}, "kernels/cuda/a.cc",
        {"kernels/cuda/a.cc": "cudaMemsetAsync(flags, 0, bytes, stream)",
         "tests/gpu/a.cc": "cudaMemset(flags, 0, bytes)"}),
    "no-fast-math": ({"CMakeLists.txt": "add_compile_options(-ffast-" + "math)"}, "CMakeLists.txt",
                     {"CMakeLists.txt": "add_compile_options(-ffp-contract=off)"}),
    "no-exceptions": ({"a.cc": 'throw std::runtime_error("no");'}, "a.cc",
                      {"a.cc": 'return absl::InternalError("throw");'}),
    "known-macros": ({"services/a.h": "#define LOCKSTEP_GETTER(x) x"}, "services/a.h",
                     {"common/base/check.h": "#define LOCKSTEP_CHECK_EQ(a, b) a"}),
    "one-cuda-switch": ({"services/a.cc": "#if LOCKSTEP_HAS_CUDA\n#endif"}, "services/a.cc",
                        {"kernels/factory.cc": "#if LOCKSTEP_HAS_CUDA\n#endif"}),
    "no-managers": ({"a.h": "class SessionManager {"}, "a.h", {"a.h": "class SessionTable {"}),
    "no-dead-code": ({"a.cc": "  // engine->Stop(now);\n"}, "a.cc",
                     {"a.cc": "// Stops the engine (see above);\n// Example:\n"
                              "//   engine->Stop(now);\n// F(x) = 2 x\n"}),

    "sources-listed": (
        {"kernels/CMakeLists.txt": "lockstep_test(NAME a SOURCES a_test.cc)",
         "kernels/a_test.cc": "", "kernels/b_test.cc": ""}, "kernels/b_test.cc",
        {"kernels/CMakeLists.txt": "foreach(test a b)\n  lockstep_test(SOURCES ${test}_test.cc)\n",
         "kernels/a_test.cc": "", "kernels/b_test.cc": ""}),
    "sources-exist": ({"CMakeLists.txt": "add_library(a gone.cc)"}, "CMakeLists.txt",
                      {"CMakeLists.txt": "# gone.cc\nadd_library(a a.cc)", "a.cc": ""}),
    "folders-listed": (
        {**CMAKE, "kernels/CMakeLists.txt": "", "tests/CMakeLists.txt": ""},
        "tests/CMakeLists.txt", {**CMAKE, "kernels/CMakeLists.txt": ""}),
    "no-globs": ({"CMakeLists.txt": "file(GLOB sources *.cc)"}, "CMakeLists.txt",
                 {"CMakeLists.txt": "set(sources a.cc)"}),
    "known-labels": (
        {"CMakeLists.txt": "lockstep_test(NAME a LABELS unit nightly TIMEOUT 9)"},
        "CMakeLists.txt", {"CMakeLists.txt": "lockstep_test(NAME a LABELS unit core TIMEOUT 9)"}),

    "proto-comments": (
        {"proto/lockstep/v1/a.proto": "// A.\nmessage A {\n  int64 b = 1;\n}\n"},
        "proto/lockstep/v1/a.proto",
        {"proto/lockstep/v1/a.proto":
         "// Serves.\nservice S {\n  // Asks.\n  rpc Ask(A) returns (A);\n}\nmessage A {\n"
         "  // First and second.\n  int64 b = 1;\n  int64 c = 2;\n}\n"
         "// Kinds.\nenum E {\n  E_UNSPECIFIED = 0;\n  // One.\n  E_ONE = 1;\n}\n"}),
    "enum-zero": (
        {"proto/lockstep/v1/a.proto": "enum PauseMode {\n  WAIT = 0;\n}\n"},
        "proto/lockstep/v1/a.proto",
        {"proto/lockstep/v1/a.proto": "enum PauseMode {\n  PAUSE_MODE_UNSPECIFIED = 0;\n}\n"}),

    "room-readmes": ({"services/router/a.cc": "", "README.md": "", "services/README.md": ""},
                     "services/router/README.md",
                     {room + "/README.md" if room else "README.md": ""
                      for room in tidy.document_rules.ROOMS}),
    "readme-length": ({"services/README.md": "x\n" * 81}, "services/README.md",
                      {"services/README.md": "x\n" * 80, "README.md": "x\n" * 200}),
    "links-resolve": ({"a.md": "[b](b.md)"}, "a.md",
                      {"a.md": "[b](b.md#the-word) [w](https://example.org) `[x](y)`",
                       "b.md": "## The word\n"}),
}

METRICS = """#pragma once
struct RouterMetrics {
  explicit RouterMetrics(metrics::Registry* registry)
      : opened(registry, "lockstep_router_opened_total", "Sequences "
               "opened.") {}
  metrics::Counter opened;
};
"""
CONFIG = "// The router.\nmessage RouterConfig {\n  // host:port.\n  string listen = 1;\n}\n"
PAGES = {"services/router/router_metrics.h": METRICS,
         tidy.document_rules.generate_config.PROTO: CONFIG}


class PlantedTree(unittest.TestCase):
    """Base: writes a tree and says which files a rule complains about."""

    def plant(self, files):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for path, text in files.items():
            target = pathlib.Path(folder.name) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        return SourceTree(folder.name)

    def complaints(self, rule, files):
        return [f.path for f in tidy.RULES[rule](self.plant(files))]


class RuleTest(PlantedTree):
    def test_each_rule_sees_its_violation_and_nothing_else(self):
        for rule, (wrong, where, right) in PLANTS.items():
            with self.subTest(rule):
                self.assertEqual(set(self.complaints(rule, wrong)), {where})
                self.assertEqual(self.complaints(rule, right), [])

    def test_every_rule_is_planted(self):
        pages = {"metrics-page-current", "config-page-current", "roofline-page-current",
                 "metrics-readable", "metrics-exist", "behaviours-tested"}
        self.assertEqual(set(tidy.RULES), set(PLANTS) | pages)

    def test_ptx_and_device_atomics_are_seen(self):
        for text in ('asm("red.global.add.f32 [%0], %1;");', "atomicAdd(&sum, value);"):
            self.assertEqual(self.complaints("no-float-atomics", {"kernels/cuda/a.cu": text}),
                             ["kernels/cuda/a.cu"])

    def test_long_functions_are_listed_with_their_length(self):
        files = {"a.cc": "namespace a {\nint F(int b,\n      int c) {\n" + "  ++b;\n" * 69 + "}\n"
                         "int G() {\n  return 1;\n}\n}  // namespace a\n"}
        found = list(tidy.cpp_rules.long_functions(self.plant(files)))
        self.assertEqual(found, [(72, "a.cc", 2, "int F(int b, int c)")])

    def test_a_new_room_needs_a_line_in_the_table(self):
        self.assertEqual(self.complaints("dependency-direction", {"services/cache/a.cc": ""}),
                         ["services/cache/a.cc"])

    def test_nothing_includes_tests(self):
        files = {"services/text/a.cc": '#include "tests/b.h"', "tests/b.h": ""}
        self.assertEqual(self.complaints("dependency-direction", files), ["services/text/a.cc"])


class PagesTest(PlantedTree):
    """The generated pages, and the names of metrics."""

    def generated(self, files):
        tree = self.plant(files)
        rules = tidy.document_rules
        return {rules.generate_metrics.PAGE: rules.generate_metrics.generate(tree.root),
                rules.generate_config.PAGE: rules.generate_config.generate(tree.root)}

    def test_a_page_is_current_until_its_source_changes(self):
        pages = self.generated(PAGES)
        self.assertIn("| `lockstep_router_opened_total` | counter |  | Sequences opened. |",
                      pages["docs/metrics.md"])
        self.assertIn("| `listen` | string | host:port. |", pages["docs/config.md"])
        for rule, source, word in (
                ("metrics-page-current", "services/router/router_metrics.h", "opened."),
                ("config-page-current", tidy.document_rules.generate_config.PROTO, "host:port.")):
            self.assertEqual(self.complaints(rule, PAGES | pages), [])
            changed = {source: PAGES[source].replace(word, "other.")}
            self.assertEqual(len(self.complaints(rule, PAGES | pages | changed)), 1)

    def test_the_roofline_is_current_until_a_record_changes(self):
        records = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
                   for path in (ROOT / "bench" / "results").glob("*.json")
                   if path.stem.startswith(("cuda_", "engine_"))}
        page = tidy.document_rules.generate_roofline.PAGE
        files = records | {page: (ROOT / page).read_text(encoding="utf-8")}
        self.assertEqual(self.complaints("roofline-page-current", files), [])
        name = "bench/results/engine_modes.json"
        files[name] = files[name].replace('"decode_milliseconds_median": 1',
                                          '"decode_milliseconds_median": 2')
        self.assertEqual(self.complaints("roofline-page-current", files), [page])

    def test_a_metric_that_cannot_be_read_is_seen(self):
        self.assertEqual(self.complaints("metrics-readable", PAGES), [])
        for old, new in (("metrics::Counter opened", "Counter opened"), ('opened."', 'opened"'),
                         ("opened(registry, ", "opened(Make(registry), ")):
            files = {"services/router/router_metrics.h": METRICS.replace(old, new)}
            self.assertEqual(len(self.complaints("metrics-readable", PAGES | files)), 1, new)

    def test_a_metric_that_nobody_registers_is_seen_where_it_is_used(self):
        good = {"deploy/alerts.yaml": "rate(lockstep_router_opened_total[5m])"}
        bad = {"deploy/alerts.yaml": "rate(lockstep_router_closed_total[5m])"}
        self.assertEqual(self.complaints("metrics-exist", PAGES | good), [])
        self.assertEqual(self.complaints("metrics-exist", PAGES | bad), ["deploy/alerts.yaml"])


class BehavioursTest(PlantedTree):
    FILES = {"tests/unit/a_test.cc": "TEST_F(ATest, Holds) {}\nTEST(\n    ATest,\n    Wraps) {}\n",
             "tests/deploy/b_test.py": "class BTest(unittest.TestCase):\n    def test_b(self):\n"}

    def test_only_tests_that_exist_in_their_file_are_named(self):
        for row, count in (("`unit/a_test.cc`: `ATest.Holds`, `ATest.Wraps`", 0),
                           ("`deploy/b_test.py`: `BTest.test_b`", 0),
                           ("`unit/a_test.cc`: `ATest.Fails`", 1),
                           ("`deploy/b_test.py`: `ATest.Holds`", 1),
                           ("`unit/gone_test.cc`: `ATest.Holds`", 1)):
            files = self.FILES | {"tests/behaviours.md": f"| {row} |"}
            self.assertEqual(len(self.complaints("behaviours-tested", files)), count, row)


class ExceptionsTest(PlantedTree):
    def check(self, exceptions):
        waivers, complaints = tidy.read_waivers(exceptions)
        rules = dict(tidy.RULES)
        try:
            tidy.RULES.clear()
            tidy.RULES["no-managers"] = rules["no-managers"]
            tree = self.plant({"a.h": "class XManager {"})
            return complaints + tidy.check(tree, waivers)
        finally:
            tidy.RULES.update(rules)

    def test_an_exception_covers_its_file_and_rule_only(self):
        self.assertEqual(self.check("no-managers a.h\n  It has always been called so.\n"), [])
        self.assertEqual(len(self.check("no-managers b.h It has always been called so.")), 2)

    def test_an_exception_needs_a_known_rule_and_a_reason(self):
        self.assertEqual(len(self.check("no-managers a.h because")), 2)
        self.assertEqual(len(self.check("no-manager a.h It has always been called so.")), 2)


if __name__ == "__main__":
    unittest.main()
