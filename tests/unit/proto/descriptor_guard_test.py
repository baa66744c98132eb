#!/usr/bin/env python3
"""lockstep.v1 is what it was, and the guard would see if it were not."""

import pathlib
import tempfile
import unittest

import descriptor_guard as guard

PROTO = """syntax = "proto3";
package lockstep.v1;
service Service {
  rpc Ask(Question) returns (stream Answer);
}
message Question {
  int64 id = 1;
  optional float heat = 2;
  repeated int64 ids = 3 [packed = true];
  oneof prompt {
    bytes text = 4;
    string name = 5;
  }
}
message Answer {
  Reason reason = 1;
}
enum Reason {
  REASON_UNSPECIFIED = 0;
  REASON_STOP = 1;
}
"""


class DescriptorTest(unittest.TestCase):
    def test_lockstep_v1_is_unchanged(self):
        golden = guard.read_golden(guard.GOLDEN.read_text(encoding="utf-8"))
        found = guard.describe(guard.PROTO_ROOT)
        self.assertGreater(len(golden), 300)
        self.assertEqual(guard.broken(golden, found) + guard.added(golden, found), [])


class GuardTest(unittest.TestCase):
    def describe(self, proto):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / guard.PACKAGE).mkdir(parents=True)
            (root / guard.PACKAGE / "a.proto").write_text(proto, encoding="utf-8")
            return guard.describe(root)

    def changed(self, old, new):
        self.assertIn(old, PROTO)
        golden = guard.read_golden(guard.write_golden(self.describe(PROTO)))
        found = self.describe(PROTO.replace(old, new))
        return guard.broken(golden, found), guard.added(golden, found)

    def test_golden_text_keeps_every_definition(self):
        found = self.describe(PROTO)
        self.assertEqual(guard.read_golden(guard.write_golden(found)), found)
        self.assertEqual(found["field lockstep.v1.Question.text"], "= 4 bytes in oneof prompt")
        self.assertEqual(found["rpc lockstep.v1.Service.Ask"],
                         "(lockstep.v1.Question) returns (stream lockstep.v1.Answer)")

    def test_every_change_that_peers_would_misread_is_seen(self):
        for old, new in (("id = 1", "id = 9"),  # another number
                         ("int64 id = 1", "int32 id = 1"),  # another type
                         ("optional float", "float"),  # presence
                         ("repeated int64 ids = 3 [packed = true]", "int64 ids = 3"),
                         ("[packed = true]", "[packed = false]"),
                         ("Reason reason = 1", "int32 reason = 1"),
                         ("REASON_STOP = 1", "REASON_STOP = 2"),
                         ("returns (stream Answer)", "returns (Answer)"),
                         ("rpc Ask(Question)", "rpc Ask(Answer)")):
            broken, _ = self.changed(old, new)
            self.assertEqual(len(broken), 1, f"{new}: {broken}")

    def test_what_goes_away_or_is_renamed_is_seen(self):
        for old, new in (("  int64 id = 1;\n", ""), ("REASON_STOP = 1", "REASON_END = 1"),
                         ("string name = 5", "string title = 5"), ("rpc Ask(", "rpc Tell(")):
            broken, _ = self.changed(old, new)
            self.assertEqual(len(broken), 1, f"{new}: {broken}")
            self.assertIn("is gone", broken[0])

    def test_an_addition_breaks_nobody_but_must_be_recorded(self):
        broken, added = self.changed("int64 id = 1;", "int64 id = 1;\n  int64 more = 6;")
        self.assertEqual(broken, [])
        self.assertEqual(len(added), 1)


if __name__ == "__main__":
    unittest.main()
