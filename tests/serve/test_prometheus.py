"""/metrics, the alert rules and the Grafana dashboard: checked by Prometheus' own tools where they are installed."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from served import HOSTILE, Run, Server

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
RULES = SOURCE / "packaging/prometheus/lockstep.rules.yml"
GRAFANA = SOURCE / "packaging/grafana/lockstep.json"
DOCS = SOURCE / "docs/reference/prometheus.md"
NAME = re.compile(r"\blockstep_[a-z0-9_]+")
EVERYTHING = ("loss evaluation_loss evaluation_accuracy learning_rate gradient_norm mfu efficiency goodput memory_bytes allocated_bytes "
              "node_cpu_percent node_available_bytes node_disk_free_bytes gpu_percent gpu_memory_bytes gpu_clock_ratio "
              "gpu_temperature_celsius gpu_throttled compute_seconds comm_seconds wait_seconds data_seconds optimizer_seconds "
              "checkpoint_seconds host_seconds").split()
INTERVALS = {name: {"low": 1.0, "expected": 2.0, "high": 3.0}
             for name in ("tokens_per_second", "samples_per_second", "step_seconds", "mfu")}
PLAN = {"model": {"name": "gpt"}, "best": {"layout": {"dp": 2}, "memory_gib": {"total": 1.0},
                                           "prediction": {"tokens_per_second": 2.0, "samples_per_second": 2.0, "intervals": INTERVALS}}}


def make_runs(home: pathlib.Path):
    """One run that records everything, one that counts samples and has ended, and one that ended long ago."""
    full = Run(home, "20261118-010101-aaaaaa-one", HOSTILE)
    full.plan(PLAN)
    for step in range(1, 30):
        full.step(step, tokens_per_second=1000.0, **{name: 50.0 for name in EVERYTHING})
    full.event("alert", "loss", "warning", rule="spike", state="firing")
    full.event("checkpoint", "saved", path="x")
    samples = Run(home, "20261118-020202-bbbbbb-two", "images")
    samples.plan(PLAN)
    samples.step(1, samples_per_second=10.0, loss="nan")
    samples.end("failed")
    old = Run(home, "20261118-030303-cccccc-three", "old")
    old._append("run.jsonl", type="end", time=1000.0, status="done", exit_reason="", summary={})
    return full, samples, old


class Metrics(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        home = pathlib.Path(cls.folder.name)
        cls.runs = make_runs(home)
        with Server(home) as server:
            _, cls.headers, body = server.ask("/metrics")
            cls.text = body.decode()
            _, cls.open_headers, body = server.ask("/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"})
            cls.open_text = body.decode()
        cls.families = set(re.findall(r"^# TYPE (\S+)", cls.text, re.M))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def sample(self, pattern: str) -> float:
        found = re.findall(rf"^{pattern} (\S+)$", self.text, re.M)
        self.assertEqual(len(found), 1, (pattern, found))
        return float(found[0])

    def test_values_are_in_base_units_and_joined_by_run(self):
        run = self.runs[0].id
        self.assertEqual(self.headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
        self.assertEqual(self.sample(rf'lockstep_run_tokens_per_second\{{run="{run}"\}}'), 1000)
        self.assertEqual(self.sample(rf'lockstep_gpu_utilization_ratio\{{run="{run}",rank="0"\}}'), 0.5)
        self.assertEqual(self.sample(rf'lockstep_rank_phase_seconds\{{run="{run}",rank="0",phase="wait"\}}'), 50)
        self.assertEqual(self.sample(rf'lockstep_run_status\{{run="{run}",status="running"\}}'), 1)
        self.assertEqual(self.sample(rf'lockstep_run_alert_firing\{{run="{run}",rule="spike",subject=""\}}'), 1)
        info = [line for line in self.text.splitlines() if line.startswith("lockstep_run_info{")]
        self.assertEqual(len(info), 2)  # the one that ended long ago is gone
        for line in self.text.splitlines():
            if not line.startswith(("#", "lockstep_run_info")):
                self.assertNotIn("name=", line)
                self.assertNotIn("model=", line)

    def test_hostile_names_stay_inside_their_label(self):
        line = next(line for line in self.text.splitlines() if self.runs[0].id in line and line.startswith("lockstep_run_info"))
        self.assertTrue(line.endswith("} 1"))
        self.assertIn(r"<script>alert(1)</script>\"'`", line)
        self.assertNotIn("\x1b", self.text)

    def test_open_metrics_when_asked_for(self):
        self.assertTrue(self.open_headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0"))
        self.assertTrue(self.open_text.endswith("# EOF\n"))
        self.assertIn("# TYPE lockstep_run_steps counter\n", self.open_text)
        self.assertIn("# TYPE lockstep_run_steps_total counter\n", self.text)

    def test_every_name_is_documented_and_no_other(self):
        documented = set(NAME.findall(DOCS.read_text().partition("## Metrics")[2].partition("## DCGM")[0]))
        self.assertEqual(self.families, documented)

    def test_rules_and_dashboard_use_only_what_is_exported(self):
        for file in (RULES, GRAFANA):
            used = set(NAME.findall(re.sub(r"lockstep\.rules\.yml", "", file.read_text())))
            self.assertTrue(used)
            self.assertLessEqual(used, self.families, file)
        dashboard = json.loads(GRAFANA.read_text())
        identifiers = [panel["id"] for panel in dashboard["panels"]]
        self.assertEqual(len(identifiers), len(set(identifiers)))
        for panel in dashboard["panels"]:
            self.assertTrue(panel["targets"] and all(target["expr"] for target in panel["targets"]), panel["title"])

    @unittest.skipUnless(shutil.which("promtool"), "promtool (Debian's prometheus) is not installed")
    def test_promtool_finds_nothing(self):
        for text in (self.text,):
            done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=120)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        done = subprocess.run(["promtool", "check", "rules", RULES], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = subprocess.run(["promtool", "test", "rules", SOURCE / "tests/serve/rules_test.yml"], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    @unittest.skipUnless(shutil.which("promtool"), "promtool (Debian's prometheus) is not installed")
    def test_promtool_is_not_deaf(self):
        broken = self.text.replace("# TYPE lockstep_run_steps_total counter", "# TYPE lockstep_run_steps_total gauge")
        done = subprocess.run(["promtool", "check", "metrics"], input=broken, capture_output=True, text=True, timeout=120)
        self.assertNotEqual(done.returncode, 0)


class Dcgm(unittest.TestCase):
    """An exporter of made-up values, blanks among them."""

    def test_its_fields_are_shown_without_blanks(self):
        import http.server
        import threading
        label = 'gpu="0",UUID="GPU-1",device="nvidia0",modelName="NVIDIA H100",Hostname="node1",DCGM_FI_DRIVER_VERSION="550"'
        text = "\n".join([f"DCGM_FI_DEV_SM_CLOCK{{{label}}} 1980", f"DCGM_FI_DEV_MEMORY_TEMP{{{label}}} 9223372036854775794",
                          f"DCGM_FI_DEV_XID_ERRORS{{{label}}} 2147483632", f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{label}}} 140737488355328",
                          f"DCGM_FI_DEV_GPU_TEMP{{{label}}} 61 1731900000000", "go_goroutines 7", "broken{ 1", ""])

        class Exporter(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                pass

        exporter = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
        threading.Thread(target=exporter.serve_forever, daemon=True).start()
        self.addCleanup(exporter.shutdown)
        home = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        make_runs(home)
        with Server(home, "--dcgm", f"http://127.0.0.1:{exporter.server_port}/metrics") as server:
            cluster = server.json("/api/v1/cluster")
        self.assertEqual(cluster["dcgm"]["gpus"], [{"gpu": "0", "uuid": "GPU-1", "host": "node1", "model": "NVIDIA H100",
                                                    "values": {"DCGM_FI_DEV_SM_CLOCK": 1980.0, "DCGM_FI_DEV_GPU_TEMP": 61.0}}])
        node = cluster["runs"][-1]["ranks"][0]
        self.assertEqual(node["values"]["gpu_percent"], 50)

    def test_an_exporter_that_is_not_there_is_said(self):
        home = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        with Server(home, "--dcgm", "http://127.0.0.1:9/metrics") as server:
            self.assertIn("error", server.json("/api/v1/cluster")["dcgm"])
        with Server(home) as server:
            self.assertIsNone(server.json("/api/v1/cluster")["dcgm"])


if __name__ == "__main__":
    unittest.main()
