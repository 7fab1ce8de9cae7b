"""A run that goes wrong says so: to the terminal, the store, a webhook and a command; one that goes well says nothing."""
import http.server
import json
import pathlib
import sqlite3
import threading
import unittest

from harness import *

ABOUT_TIMES = ["slow_down", "mfu_drop", "below_prediction", "straggler", "loader_stall", "heartbeat"]


class Webhook:
    """Takes what is posted to it."""

    def __init__(self, refuse=0):
        webhook = self
        self.bodies = []
        self.refused = 0

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                refused = webhook.refused < refuse
                webhook.refused += refused
                if not refused:
                    webhook.bodies.append(json.loads(body))
                self.send_response(503 if refused else 204)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *ignored):
                pass
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def alerts(self):
        return [(one["rule"], one["state"]) for body in self.bodies for one in body["alerts"]]

    def close(self):
        self._server.shutdown()
        self._server.server_close()


class AlertedRuns(EndToEnd):
    def webhook(self, **options):
        webhook = Webhook(**options)
        self.addCleanup(webhook.close)
        return webhook

    def events(self):
        """[(rule, state, rank)] of the newest run."""
        path = pathlib.Path(self.environment["LOCKSTEP_HOME"]) / "runs.db"
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5) as store:
            rows = store.execute("SELECT data, rank FROM events WHERE run = (SELECT max(number) FROM runs) AND kind = 'alert' "
                                 "ORDER BY time").fetchall()
        return [(data["rule"], data["state"], rank) for data, rank in ((json.loads(text), rank) for text, rank in rows)]

    def alerts_of(self, *, chaos=None, off, steps, ranks=2, webhook=None, expect=0, checkpoint=None, **alerts):
        job = self.text_job(ranks=ranks, steps=steps, checkpoint=checkpoint or {}, alerts={"off": off, "pause": "0s", "hold": "0s", **alerts,
                                                             **({"webhook": webhook.url} if webhook else {})})
        done = self.run_lockstep("train", job, *(["--chaos", chaos] if chaos else []))
        self.assertEqual(done.returncode, expect, done.stdout[-2000:] + done.stderr[-4000:])
        return done.stdout + done.stderr


class Alerts(AlertedRuns):
    def test_a_healthy_run_says_nothing(self):
        webhook = self.webhook()
        text = self.alerts_of(off=ABOUT_TIMES, steps=120, webhook=webhook)
        self.assertEqual(self.events(), [], text[-3000:])
        self.assertEqual(webhook.bodies, [])
        self.assertNotIn("alert ", text)

    def test_what_is_not_a_number_is_told_everywhere_and_is_over(self):
        webhook = self.webhook(refuse=2)
        told = self.folder / "told.txt"
        command = self.folder / "notify"
        command.write_text(f"#!/bin/sh\ncat >> '{told}'\n")
        command.chmod(0o700)
        text = self.alerts_of(chaos="nan rank=1 step=30", off=ABOUT_TIMES, steps=60, webhook=webhook, command=[str(command)])
        self.assertEqual([one[:2] for one in self.events()], [("nonfinite", "firing"), ("nonfinite", "resolved")], text[-3000:])
        self.assertEqual(webhook.alerts(), [("nonfinite", "firing"), ("nonfinite", "resolved")])
        self.assertEqual(webhook.refused, 2)
        self.assertIn("alert nonfinite: ", text)
        self.assertIn("over nonfinite: ", text)
        self.assertIn("do: ", webhook.bodies[0]["text"])
        self.assertIn("alert nonfinite: ", told.read_text())

    def test_an_address_is_taken_from_a_variable_and_is_nowhere_in_the_record(self):
        webhook = self.webhook()
        self.environment["MY_WEBHOOK"] = webhook.url + "/very-secret"
        job = self.text_job(ranks=2, steps=40, alerts={"off": ABOUT_TIMES, "pause": "0s", "webhook": "env:MY_WEBHOOK"})
        done = self.run_lockstep("train", job, "--chaos", "nan rank=1 step=20")
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        self.assertEqual(webhook.alerts(), [("nonfinite", "firing"), ("nonfinite", "resolved")])
        self.assertNotIn("very-secret", done.stdout + done.stderr)
        for file in (self.folder / "home").rglob("*"):
            if file.is_file():
                self.assertNotIn(b"very-secret", file.read_bytes(), file)

    def test_a_variable_that_is_not_set_is_said_before_anything_starts(self):
        job = self.text_job(ranks=2, steps=5, alerts={"webhook": "env:LOCKSTEP_TEST_NO_SUCH"})
        self.expect_error(4, ["LOCKSTEP_TEST_NO_SUCH is not set"], "train", job)

    def test_under_another_launcher_it_is_said_what_nobody_watches(self):
        def start(**alerts):
            job = self.text_job(ranks=2, steps=2, alerts=alerts)
            world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
            ranks = [self.start("train", job, environment={**world, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]
            outputs = [rank.communicate(timeout=240) for rank in ranks]
            self.assertEqual([rank.returncode for rank in ranks], [0, 0], outputs)
            self.assertNotIn("nobody watches", "".join(outputs[1]), "the first rank speaks for all")
            return "".join(outputs[0])

        told = start(command=["true"], off=["straggler", "node_health"])
        self.assertIn("under torchrun nobody watches for heartbeat, disk_filling", told)
        self.assertNotIn("nobody watches", start())


@timing
class AlertsTiming(AlertedRuns):
    def test_steps_that_wait_for_data(self):
        webhook = self.webhook()
        others = [rule for rule in ABOUT_TIMES if rule != "loader_stall"]
        text = self.alerts_of(chaos="slow rank=0 step=20 phase=loader delay=300ms", off=others, steps=60, webhook=webhook)
        self.assertEqual([one[:2] for one in self.events()], [("loader_stall", "firing")], text[-3000:])
        self.assertEqual(webhook.alerts(), [("loader_stall", "firing")])

    def test_the_rank_that_is_slow_is_named(self):
        others = [rule for rule in ABOUT_TIMES if rule != "straggler"]
        text = self.alerts_of(chaos="slow rank=2 step=5 phase=forward delay=200ms", off=others, steps=80, ranks=4)
        self.assertEqual(self.events()[:1], [("straggler", "firing", 2)], text[-3000:])
        self.assertNotIn(("straggler", "resolved", 2), self.events())

    def test_a_run_that_stands_still_and_goes_on(self):
        others = [rule for rule in ABOUT_TIMES if rule != "heartbeat"]
        text = self.alerts_of(chaos="hang rank=1 step=40 for=8s", off=others, steps=60, heartbeat="2s")
        self.assertEqual([one[:2] for one in self.events()], [("heartbeat", "firing"), ("heartbeat", "resolved")], text[-3000:])

    def test_a_checkpoint_that_is_overdue_and_comes(self):
        text = self.alerts_of(chaos="slow rank=0 phase=forward delay=20ms; slow-disk step=20 for=6s", off=ABOUT_TIMES, steps=400,
                              checkpoint={"every": "1s"})
        self.assertEqual([one[:2] for one in self.events()[:2]],
                         [("checkpoint_overdue", "firing"), ("checkpoint_overdue", "resolved")], text[-3000:])

    def test_memory_that_leaks(self):
        text = self.alerts_of(chaos="leak rank=0 size=256KiB", off=ABOUT_TIMES, steps=400)
        self.assertEqual([one[:2] for one in self.events()], [("memory_creep", "firing")], text[-3000:])

    def test_a_slow_down_in_the_middle(self):
        others = [rule for rule in ABOUT_TIMES if rule != "slow_down"]
        text = self.alerts_of(chaos="slow rank=1 step=120 phase=forward delay=100ms", off=others, steps=160)
        self.assertEqual(self.events()[0][:2], ("slow_down", "firing"), text[-3000:])


if __name__ == "__main__":
    unittest.main()
