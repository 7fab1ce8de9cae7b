"""`lockstep watch` and `lockstep report` on a run that a test records line by line. Needs no engine."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "end_to_end"))
from harness import LOCKSTEP, EndToEnd  # noqa: E402

EVIL = "\x1b[2J\x1b]0;owned\x07<script>alert(1)</script>"


class Recorded(EndToEnd):
    """A run of two ranks in JSON lines, as ranks write them."""

    def setUp(self):
        super().setUp()
        self.environment.update(TERM="xterm-256color", LC_ALL="C.UTF-8")
        self.environment.pop("NO_COLOR", None)

    def begin(self, run="20270115-080000-a1b2c3-made", name="made", world=2):
        self.run_id, self.begun = run, time.time()
        self.home = pathlib.Path(self.environment["LOCKSTEP_HOME"])
        (self.home / "runs" / run).mkdir(parents=True)
        started = pathlib.Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()[19]
        self.write("run.jsonl", {"type": "run", "name": name, "started_at": self.begun, "world": world, "backend": "tcp",
                                 "host": os.uname().nodename, "pid": os.getpid(), "pid_started": int(started),
                                 "job": "model: gpt2-124m\nsteps: 100\n", "versions": {"lockstep": "0"}})

    def write(self, file, record):
        with open(self.home / "runs" / self.run_id / file, "a") as lines:
            lines.write(json.dumps({"run": self.run_id, **record}) + "\n")

    def step(self, step, loss=None):
        for rank in (0, 1):
            values = {"step_seconds": 0.5, "compute_seconds": 0.3 + 0.1 * rank, "comm_seconds": 0.15 - 0.1 * rank,
                      "wait_seconds": 0.12 - 0.1 * rank, "data_seconds": 0.05, "memory_bytes": 1e9 * (rank + 1)}
            if rank == 0:
                values.update(loss=loss or 4.0 / step, tokens_per_second=1000.0 + step)
            self.write(f"rank-{rank:05}.jsonl", {"type": "metrics", "rank": rank, "step": step,
                                                 "time": self.begun + step * 0.5, "values": values})

    def end(self, status="done"):
        self.write("run.jsonl", {"type": "end", "time": time.time(), "status": status, "exit_reason": "", "summary": {}})


class Report(Recorded):
    def test_the_page_has_the_figures_of_the_json(self):
        self.begin()
        for step in range(1, 31):
            self.step(step)
        self.end()
        html, pdf = self.folder / "run.html", self.folder / "run.pdf"
        done = self.run_lockstep("report", "last", "--html", html, "--pdf", pdf, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual(report["written"], [str(html), str(pdf)])
        page = html.read_text()
        self.assertNotIn("<script", page)
        self.assertIn("{:.2f} k tokens/s".format(report["measured_per_second"] / 1000), page)
        self.assertTrue(report["ranks"][1]["straggler"])
        self.assertIn("1 (straggler)", page)
        self.assertEqual(pdf.read_bytes()[:8], b"%PDF-1.4")

    def test_prints_the_job_to_run_it_again(self):
        self.begin()
        self.assertEqual(self.run_lockstep("report", "last", "--job").stdout, "model: gpt2-124m\nsteps: 100\n")
        self.expect_error(2, ["--html"], "report", "last", "--job", "--html", "x.html")

    def test_ranks_of_other_nodes_are_shown(self):
        self.begin(world=3)
        self.step(1)
        self.step(2)
        report = json.loads(self.run_lockstep("report", "last", "--json").stdout)
        self.assertEqual([rank["rank"] for rank in report["ranks"]], [0, 1])
        self.assertEqual(report["missing_ranks"], [2])
        self.assertIn("no records of 1 rank", self.run_lockstep("report", "last").stdout)


class WatchLines(Recorded):
    def test_one_frame_and_json(self):
        self.begin(name=EVIL)
        for step in range(1, 11):
            self.step(step)
        done = self.run_lockstep("watch", "--once", environment={"COLUMNS": "90"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("running", done.stdout)
        self.assertIn("10 of 100", done.stdout)
        self.assertNotIn("\x1b", done.stdout)
        self.assertTrue(all(len(line) <= 90 for line in done.stdout.splitlines()))
        for tab in ("waterfall", "ranks", "timeline", "incidents", "memory", "6"):
            self.assertEqual(self.run_lockstep("watch", "--once", "--tab", tab).returncode, 0)
        value = json.loads(self.run_lockstep("watch", "--once", "--json").stdout)
        self.assertEqual((value["schema"], value["step"], value["straggler"]), ("lockstep.watch/1", 10, 1))
        self.expect_error(2, ["overview"], "watch", "--once", "--tab", "overwiev")

    def test_follows_a_run_until_it_ends(self):
        self.begin()
        self.step(1)
        process = self.start("watch", "--json", "--every", "100ms")
        self.addCleanup(process.kill)
        seen = [json.loads(process.stdout.readline())["step"]]
        for step in (2, 3):
            self.step(step)
            seen.append(json.loads(process.stdout.readline())["step"])
        self.end()
        last = json.loads(process.stdout.readline())
        self.assertEqual(last["status"], "done")
        self.assertEqual(sorted(set(seen)), seen, "every line is about something new")
        self.assertEqual(process.wait(timeout=60), 0)
        process.communicate()


@unittest.skipUnless(shutil.which("tmux"), "tmux is not installed (scripts/setup.sh)")
class WatchScreen(Recorded):
    def tmux(self, *arguments):
        return subprocess.run(["tmux", "-S", str(self.folder / "tmux"), *arguments], check=True, text=True,
                              capture_output=True, env=self.environment).stdout

    def open_screen(self, *arguments, columns=80, rows=24, before=""):
        self.addCleanup(subprocess.run, ["tmux", "-S", str(self.folder / "tmux"), "kill-server"], capture_output=True)
        self.tmux("-u", "-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(rows), "sh")
        self.tmux("send-keys", f"{before} {LOCKSTEP} watch {' '.join(arguments)}; echo 'code '$?", "Enter")

    def wait_for(self, text, seconds=60):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            screen = self.tmux("capture-pane", "-p")
            if text in screen:
                return screen
            time.sleep(0.1)
        self.fail(f"'{text}' does not appear:\n{screen}")

    def test_pages_live_figures_and_the_way_out(self):
        self.begin()
        for step in range(1, 21):
            self.step(step)
        self.open_screen("--every", "200ms")
        self.wait_for("20 of 100")
        self.step(21)
        self.wait_for("21 of 100")  # live
        for key, text in (("2", "waiting for stragglers"), ("3", "straggler"), ("4", "No spans"), ("5", "No incident"),
                          ("6", "rank 1")):
            self.tmux("send-keys", key)
            self.wait_for(text)
        self.tmux("send-keys", "Right")
        screen = self.wait_for("21 of 100")
        self.assertEqual(len(screen.rstrip("\n").splitlines()), 24)
        self.write("run.jsonl", {"type": "event", "time": time.time(), "level": "error", "kind": "alert", "rank": 1,
                                 "step": 21, "message": EVIL, "data": {"rule": "x", "state": "firing"}})
        self.wait_for("\\x1b[2J")  # escaped, not obeyed
        self.tmux("send-keys", "q")
        self.assertNotIn("21 of 100", self.wait_for("code 0"))  # the screen is as it was

    def test_follows_the_size_of_the_terminal_and_the_newest_run(self):
        self.begin()
        for step in range(1, 21):
            self.step(step)
        self.open_screen("--every", "200ms", before="NO_COLOR=1 LC_ALL=C")
        self.wait_for("20 of 100")
        self.tmux("resize-window", "-x", "130", "-y", "40")
        deadline = time.monotonic() + 30
        while max(map(len, self.tmux("capture-pane", "-p").splitlines())) <= 80 and time.monotonic() < deadline:
            time.sleep(0.1)
        screen = self.tmux("capture-pane", "-p")
        self.assertGreater(max(map(len, screen.splitlines())), 100, screen)
        self.assertTrue(screen.isascii(), screen)
        self.end()
        self.begin("20270115-090000-a1b2c3-newer", "newer")
        self.step(1)
        self.wait_for("a1b2c3-newer")
        self.tmux("send-keys", "C-c")
        self.wait_for("code ")


if __name__ == "__main__":
    unittest.main()
