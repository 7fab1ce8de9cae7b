"""A real Prometheus and a real Alertmanager (Debian's) watch a run that goes wrong: the alert reaches a webhook."""
import http.server
import json
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from served import Run, Server

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
RULES = SOURCE / "packaging/prometheus/lockstep.rules.yml"
PROGRAMS = ("prometheus", "prometheus-alertmanager")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Webhook(http.server.BaseHTTPRequestHandler):
    got: list = []

    def do_POST(self):
        Webhook.got += json.loads(self.rfile.read(int(self.headers["Content-Length"])))["alerts"]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


@unittest.skipUnless(all(map(shutil.which, PROGRAMS)), "prometheus and prometheus-alertmanager are not installed: scripts/setup.sh prometheus")
class Delivered(unittest.TestCase):
    def start(self, folder: pathlib.Path, name: str, *flags: str):
        log = open(folder / f"{name}.log", "w", encoding="utf-8")
        process = subprocess.Popen([name, *flags], stdout=log, stderr=log, cwd=folder)

        def end():
            process.terminate()
            process.wait(60)
            log.close()

        self.addCleanup(end)
        return process

    def wait_for(self, what: str, found, seconds: float = 120):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if result := found():
                return result
            time.sleep(0.2)
        self.fail(f"{what} did not come within {seconds} s")

    def test_alerts_reach_a_webhook(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        hook = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Webhook)
        threading.Thread(target=hook.serve_forever, daemon=True).start()
        self.addCleanup(hook.shutdown)
        home = folder / "home"
        home.mkdir()
        run = Run(home, "20261118-010101-aaaaaa-one", "gpt")
        run.steps(30)
        server = self.enterContext(Server(home))
        manager, prometheus = free_port(), free_port()
        (folder / "alertmanager.yml").write_text(
            "route: {receiver: hook, group_wait: 0s, group_interval: 1s, repeat_interval: 1h, group_by: [alertname]}\n"
            f"receivers: [{{name: hook, webhook_configs: [{{url: 'http://127.0.0.1:{hook.server_port}/'}}]}}]\n")
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
            f"rule_files: ['{RULES}']\n"
            f"alerting: {{alertmanagers: [{{static_configs: [{{targets: ['127.0.0.1:{manager}']}}]}}]}}\n"
            f"scrape_configs: [{{job_name: lockstep, static_configs: [{{targets: ['127.0.0.1:{server.port}']}}]}}]\n")
        self.start(folder, "prometheus-alertmanager", f"--config.file={folder}/alertmanager.yml", f"--storage.path={folder}/am",
                   f"--web.listen-address=127.0.0.1:{manager}", "--cluster.listen-address=")
        self.start(folder, "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
                   f"--web.listen-address=127.0.0.1:{prometheus}")

        def query(expression: str):
            import urllib.parse
            import urllib.request
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{prometheus}/api/v1/query?query={urllib.parse.quote(expression)}", timeout=10) as answer:
                    return json.load(answer)["data"]["result"]
            except OSError:
                return []

        self.wait_for("a scrape", lambda: query("lockstep_run_loss * on (run) group_left (name) lockstep_run_info{name='gpt'}"))
        time.sleep(3)
        self.assertEqual(Webhook.got, [])  # a healthy run raises nothing
        run.step(31, loss="nan")

        def delivered(name: str):
            return [alert for alert in list(Webhook.got) if alert["labels"]["alertname"] == name and alert["status"] == "firing"]

        alert = self.wait_for("LockstepLossNotFinite", lambda: delivered("LockstepLossNotFinite"))[0]
        self.assertEqual(alert["labels"]["run"], run.id)
        self.assertIn("NaN", alert["annotations"]["summary"])
        run.end("failed")
        alert = self.wait_for("LockstepRunFailed", lambda: delivered("LockstepRunFailed"))[0]
        self.assertEqual((alert["labels"]["run"], alert["labels"]["name"]), (run.id, "gpt"))
        self.assertEqual({one["labels"]["alertname"] for one in Webhook.got}, {"LockstepLossNotFinite", "LockstepRunFailed"})


if __name__ == "__main__":
    unittest.main()
