#!/usr/bin/env python3
"""`base` as processes by TLS, under load while everything that is secret is replaced as
docs/security.md says: token, authority, certificates. No request is lost and no bit moves; what was
taken out is refused and counted; no log holds a token.

Usage: tests/deploy/rotation_test.py PATH_OF_LOCKSTEP [unittest arguments]
"""

import pathlib
import re
import ssl
import urllib.request

import pod_cases
import pods
import records
import secrets_of_roles as secrets
from pod_cases import GATEWAYS, LENGTHS, Load, generate, wait_for_answer

# Default of `reload_seconds`, and some for who looks.
RELOAD_SECONDS = 10 + 2
# What counts who is refused.
NAMELESS = 'lockstep_gateway_requests_total{code="unauthenticated"}'
OF_ANOTHER_ROLE = 'lockstep_gateway_requests_total{code="permission_denied"}'
HANDSHAKES = "lockstep_process_tls_handshakes_failed_total"
OLD, NEW = secrets.TOKENS["trainer"], "next-token-of-the-trainer"


class RotationTest(pod_cases.PodsCase):
    def setUp(self):
        super().setUp()
        self.files = pathlib.Path(self.folder) / "client"
        self.files.mkdir()
        self.flags = self.flags_with("authorities", "token")

    def write(self, name, text):
        """By a rename, since clients read it all the time; returns the path."""
        path = self.files / name
        path.with_suffix(".new").write_text(text, encoding="utf-8")
        path.with_suffix(".new").rename(path)
        return path

    def flags_with(self, authorities, token=None, *more):
        found = [f"--authorities={self.files / authorities}", "--server_name=gateway", *more]
        return found + ([f"--token_file={self.files / token}"] if token else [])

    def replace(self, tokens=None, trusted=None, signed_by=None):
        """Secrets of all pods, what is not named as it was; waits until everybody has looked."""
        changed = dict(self.node.secrets)
        if signed_by is not None:
            # With the new authority as their ca.crt, as who issues certificates writes it.
            changed |= {name: files
                        for name, files in secrets.of_cluster(self.cluster, signed_by).items()
                        if name.endswith("-tls")}
        if trusted is not None:
            changed["authorities"] = {"ca.crt": trusted}
        if tokens is not None:
            changed["gateway-tokens"] = changed["gateway-tokens"] | {"trainer": "\n".join(tokens)}
        self.node.replace_secrets(changed)
        self.pause(RELOAD_SECONDS)

    def counted(self, series):
        """Its sum over gateways."""
        trust = ssl.create_default_context(cafile=str(self.files / "authorities"))
        trust.check_hostname = False
        asked = [urllib.request.Request(
            f"https://{pod.address}:{pod.workload.ports()['metrics']}/metrics",
            headers={"Authorization": f"Bearer {secrets.SCRAPER['scraper']}"})
            for pod in self.node.pods if pod.workload.name == "gateway"]
        pages = [urllib.request.urlopen(one, context=trust, timeout=pods.PATIENCE_SECONDS)
                 .read().decode() for one in asked]
        return sum(float(value) for page in pages for value in re.findall(
            rf"^{re.escape(series)} (\S+)$", page, re.M))

    def refused(self, flags, words, series):
        """A request with these flags fails with these words, and a gateway counts it: once as a
        call, or, where it came to none, each time that it was tried."""
        before = self.counted(series)
        exit_code, said = generate(10, flags=flags)
        self.assertEqual(exit_code, 1, said)
        self.assertRegex(said, words)
        if series == HANDSHAKES:
            self.assertGreater(self.counted(series), before)
        else:
            self.assertEqual(self.counted(series), before + 1)

    def test_everything_secret_is_replaced_under_load_and_no_request_is_lost(self):
        old, new = secrets.authority(), secrets.Authority()
        texts = {one: one.certificate.read_text() for one in (old, new)}
        both = texts[old] + texts[new]
        self.write("authorities", texts[old])
        self.write("old_authorities", texts[old])
        for name, token in (("token", OLD), ("old_token", OLD), ("foreign_token", "x" * 32)):
            self.write(name, token)
        self.make("base")
        running = self.start_all()
        expected = {length: {wait_for_answer(length, GATEWAYS, self.flags)} for length in LENGTHS}
        with Load(expected, flags=self.flags) as load:
            load.wait_for_more()
            # The token.
            self.replace(tokens=[OLD, NEW])
            self.write("token", NEW)
            load.wait_for_more()
            self.replace(tokens=[NEW])
            self.refused(self.flags_with("authorities", "old_token"), "UNAUTHENTICATED", NAMELESS)
            load.wait_for_more()
            # The authority, with the certificates that it signs.
            self.replace(trusted=both)
            self.write("authorities", both)
            self.replace(signed_by=new)
            load.wait_for_more()
            for name in ("scheduler", "router", "worker", "gateway"):
                self.roll(name, running)
            self.replace(trusted=texts[new])
            self.write("authorities", texts[new])
            load.wait_for_more()
        load.measured("rotation")
        self.assertEqual(load.wrong, [])
        self.nobody_else_gets_in(old, new)
        logs = [path.read_text() for path in pathlib.Path(self.folder).glob("*/log")]
        self.assertGreater(len(logs), len(self.node.pods))
        for secret in (OLD, NEW, "x" * 32, *secrets.SCRAPER.values(), *secrets.TOKENS.values()):
            self.assertFalse([log for log in logs if secret in log])

    def nobody_else_gets_in(self, old, new):
        def certificate(name, signed_by):
            """Flags of a client that shows it."""
            files = signed_by.tls(name)
            return (f"--certificate={self.write(f'{name}.pem', files['tls.crt'])}",
                    f"--key={self.write(f'{name}.key', files['tls.key'])}")

        for flags, words, series in (
                (self.flags_with("authorities"), "UNAUTHENTICATED", NAMELESS),
                (self.flags_with("authorities", "foreign_token"), "UNAUTHENTICATED", NAMELESS),
                (self.flags_with("authorities", None, *certificate("worker", new)),
                 "PERMISSION_DENIED", OF_ANOTHER_ROLE),
                (self.flags_with("authorities", "token", *certificate("trainer", old)),
                 "may not take the certificate given", HANDSHAKES),
                ([], "may want TLS", HANDSHAKES)):
            self.refused(flags, words, series)
        # This one refuses the gateway, and leaves without telling it why.
        code, said = generate(10, flags=self.flags_with("old_authorities", "token"))
        self.assertEqual(code, 1, said)
        self.assertIn("of none of the authorities", said)


if __name__ == "__main__":
    pod_cases.main()
