#!/usr/bin/env python3
"""Another contract takes over from one that serves: overlays `local` and `local-green` run beside
each other as processes, and the name that trainers use is moved from one to the other under load.

Usage: tests/deploy/blue_green_test.py PATH_OF_LOCKSTEP [unittest arguments]
"""

import concurrent.futures

import pod_cases
from pod_cases import LENGTHS, Load, generate

FRONT = "dns:///gateway.lockstep-front:7100"
# New tokens of a request that is in work for some seconds.
LONG = 2000


class BlueGreenTest(pod_cases.PodsCase):
    def test_trainers_move_to_another_contract_without_a_request_that_fails(self):
        def more_in_work_than_load(gateways):
            """The long request is in work."""
            return self.metric_of(gateways, "lockstep_gateway_samples_open") > 4 * len(LENGTHS)

        self.make("overlays/local")
        self.node.apply(self.read("front/blue"))
        blue = self.start_all()
        blue_answers = self.answers_of(blue)
        in_blue = {length: {text} for length, text in blue_answers.items()}
        long_answer = generate(LONG, flags=[])
        self.assertEqual(long_answer[0], 0, long_answer[1])
        with Load(in_blue, FRONT) as load, concurrent.futures.ThreadPoolExecutor() as pool:
            load.wait_for_more()
            # Green comes up beside it, and answers under its own name before any trainer sees it.
            cluster = self.read("overlays/local-green")
            self.node.apply(cluster)
            green = self.start_all(cluster)
            green_answers = self.answers_of(green)
            for length in LENGTHS:
                self.assertNotEqual(green_answers[length], blue_answers[length])
            load.wait_for_more()
            # A long request is in work at blue when the name moves and blue's gateways drain.
            in_flight = pool.submit(generate, LONG, FRONT, [])
            self.wait_until(lambda: more_in_work_than_load(blue["gateway"]))
            load.expected = {length: {blue_answers[length], green_answers[length]}
                             for length in LENGTHS}
            self.node.apply(self.read("front/green"))
            load.expected = {length: {text} for length, text in green_answers.items()}
            self.assertFalse(in_flight.done(), "the long request was too short")
            self.end_all({"gateway": blue["gateway"]})
            # With blue's bits, or where half a minute was too short, whole with green's.
            self.assertIn(in_flight.result(), (long_answer, generate(LONG, FRONT, [])))
            load.wait_for_more()
            # Nobody needs the rest of blue any more.
            self.end_all({name: running for name, running in blue.items() if name != "gateway"})
            load.wait_for_more()
        load.measured("move")
        self.assertEqual(load.wrong, [])
        self.end_all()


if __name__ == "__main__":
    pod_cases.main()
