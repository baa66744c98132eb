#!/usr/bin/env python3
"""The manifests as they are, run as processes: each pod's init containers, command, volumes,
configuration, user, probes and preStop are read from what is rendered. Overlay `local` becomes
ready, answers, and is rolled over under load without a request that fails or a bit that moves;
`base` serves by TLS while its Secrets are replaced, and is proved by the job that is for that.

Usage: tests/deploy/pods_test.py PATH_OF_LOCKSTEP [unittest arguments]
"""

import pod_cases
import pods
import secrets_of_roles as secrets
from manifests import KUBERNETES, Workload, parse, render
from pod_cases import Load, generate, reach, wait_for_answer


class PodsTest(pod_cases.PodsCase):
    def test_a_rolling_restart_under_load_fails_no_request_and_moves_no_bit(self):
        self.make("overlays/local")
        running = self.start_all()
        expected = self.answers_of(running)
        with Load({length: {text} for length, text in expected.items()}) as load:
            load.wait_for_more()
            for name in ("scheduler", "router", "worker", "gateway"):
                self.roll(name, running)
                load.wait_for_more()
        load.measured("roll")
        self.assertEqual(load.wrong, [])
        self.end_all()

    def test_base_serves_by_tls_while_its_secrets_are_replaced(self):
        self.make("base")
        running = self.start_all()
        addresses = [f"{pod.address}:7100" for pod in running["gateway"]]
        expected = [wait_for_answer(100, address) for address in addresses]
        self.assertIn("UNAUTHENTICATED", generate(100, flags=reach()[:2])[1])
        # A key of somebody else makes a pod unready, and does not end it.
        (scheduler,) = running["scheduler"]
        own = dict(self.node.secrets)
        foreign = own["scheduler-tls"] | {"tls.key": own["worker-tls"]["tls.key"]}
        self.node.replace_secrets(own | {"scheduler-tls": foreign})
        self.assertFalse(scheduler.healthy("readiness"))
        self.assertTrue(scheduler.healthy("liveness"))
        self.node.replace_secrets(secrets.of_cluster(self.cluster))
        self.assertTrue(scheduler.healthy("readiness"))
        self.assertEqual([wait_for_answer(100, address) for address in addresses], expected)
        # Pods that start now have new certificates, those that run had old ones.
        for name in ("router", "worker"):
            self.roll(name, running)
        self.assertEqual([wait_for_answer(100, address) for address in addresses], expected)
        self.prove()

    def prove(self):
        """The job's own command from a pod of its own, in less than all modes."""
        (job,) = parse(render(KUBERNETES / "verify"))
        workload = Workload(self.cluster, job)
        words = workload.main["args"]
        (modes,) = [word for word in words if word.startswith("--mode=")]
        words[words.index(modes)] = "--mode=single,prefill_vs_decode,neighbours"
        words[words.index("--trials=50")] = "--trials=4"
        pod = pods.Pod(self.node, workload, "verify")
        code = pod.child.wait(timeout=pods.PATIENCE_SECONDS)
        self.node.pods.remove(pod)
        self.assertEqual(code, 0, pod.log.read_text())
        self.assertEqual(pod.log.read_text().count("  held after"), 3)


if __name__ == "__main__":
    pod_cases.main()
