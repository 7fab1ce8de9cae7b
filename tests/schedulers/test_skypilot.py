"""`lockstep launch --on skypilot` with a made-up `sky` that keeps what it is called with."""
import base64
import json
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.environ["LOCKSTEP_SOURCE_DIR"], "tests", "end_to_end"))
from harness import SOURCE, EndToEnd  # noqa: E402
from test_ray import HOSTILE  # noqa: E402

# Remembers its arguments, the secret and the task; the queue says what the test wants.
SKY = """#!/usr/bin/env python3
import json, os, pathlib, sys
here = pathlib.Path(__file__).parent
words = sys.argv[1:]
with open(here / "calls", "a") as calls:
    calls.write(json.dumps({"words": words, "start": os.environ.get("LOCKSTEP_START")}) + "\\n")
if "launch" in words:
    name = [line for line in open(words[-1]) if line.startswith("name: ")][0].split()[1]
    (here / "name").write_text(name)
elif "queue" in words:
    record = {"job_id": 7, "job_name": (here / "name").read_text(), "recovery_count": 2, "infra": "AWS (us-east-1)",
              "failure_reason": "it broke", "status": (here / "status").read_text()}
    print("Fetching...")
    print(json.dumps([record] if "jobs" in words else {words[-1]: [record]}, indent=2))
elif "logs" in words:
    print("step 1")
"""


class SkyPilotCase(EndToEnd):
    def setUp(self):
        super().setUp()
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        (self.bin / "sky").write_text(SKY)
        (self.bin / "sky").chmod(0o755)
        self.status("SUCCEEDED")
        self.environment["PATH"] = f"{self.bin}:{self.environment['PATH']}"

    def status(self, text):
        (self.bin / "status").write_text(text)

    def calls(self, *verb):
        lines = (self.bin / "calls").read_text().splitlines() if (self.bin / "calls").exists() else []
        calls = [json.loads(line) for line in lines]
        return [call for call in calls if call["words"][:len(verb)] == list(verb)]

    def launch(self, *arguments, sky=None, **launch):
        job = self.text_job(launch={**launch, "skypilot": sky or {}}, cluster="2x2xcpu")
        return self.run_lockstep("launch", job, "--on", "skypilot", *arguments)

    def task(self, *arguments, **options):
        """The text of the task, and the call that launched it."""
        done = self.launch("--detach", *arguments, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        call = self.calls("sky", "launch")[-1:] or self.calls("jobs", "launch")[-1:] or self.calls("launch")[-1:]
        with open(call[0]["words"][-1], encoding="utf-8") as file:
            return file.read(), call[0]


class SkyPilot(SkyPilotCase):
    def test_what_the_shell_runs_is_the_same_whatever_the_user_wrote(self):
        seen = set()
        for text in HOSTILE:
            written, call = self.task(f"name={json.dumps(text)}", environment={"WORD": text}, lockstep=text, directory=text)
            seen.add(written[written.index("run: "):])
            self.assertRegex(written.splitlines()[0], r"\Aname: [a-z][a-z0-9-]*\Z")
            program, start = base64.b64decode(call["start"]).decode().split("\n", 1)
            self.assertEqual(program, text)
            self.assertEqual(json.loads(start)["environment"]["WORD"], text)
            self.assertNotIn(text, call["words"])
        self.assertEqual(len(seen), 1)

    def test_a_node_gets_the_program_and_the_submission_as_they_were(self):
        program = self.folder / "lock $(touch HACKED) step"
        program.write_text('#!/bin/sh\nprintf "%s|" "$@"; printf "%s" "$LOCKSTEP_SUBMISSION"; echo "|${LOCKSTEP_START-gone}"\n')
        program.chmod(0o755)
        written, call = self.task(lockstep=str(program), environment={"WORD": "a'b\"c`d$e\\f"})
        lines = written[written.index("run: |\n") + len("run: |\n"):].splitlines()
        script = "\n".join(line[2:] for line in lines)
        for shell in ("bash", "sh"):
            done = subprocess.run([shell, "-c", script], capture_output=True, text=True, cwd=self.folder,
                                  env={**os.environ, "LOCKSTEP_START": call["start"]})
            words = done.stdout.split("|")
            self.assertEqual(words[:3], ["launch", "--submission", "env"], done.stderr)
            self.assertEqual(json.loads(words[3])["environment"]["WORD"], "a'b\"c`d$e\\f")
            self.assertEqual(words[4].strip(), "gone")
        self.assertFalse((self.folder / "HACKED").exists())

    def test_the_secret_is_neither_in_the_task_nor_in_the_arguments(self):
        written, call = self.task()
        token = json.loads(base64.b64decode(call["start"]).decode().split("\n", 1)[1])["environment"]["LOCKSTEP_TOKEN"]
        self.assertGreater(len(token), 20)
        self.assertNotIn(token, written + " ".join(call["words"]))
        self.assertIn("--secret LOCKSTEP_START ", " ".join(call["words"]))

    def test_resources_recovery_and_mounts_are_handed_on(self):
        written, call = self.task(
            spares=1, image="ghcr.io/x/y:1", memory_per_node="7.5GiB",
            sky={"resources": {"use_spot": True, "infra": "aws/us-east-1", "any_of": [{"region": "a"}, {"region": "b"}]},
                 "recovery": {"strategy": "FAILOVER", "max_restarts_on_errors": 2},
                 "file_mounts": {"/data": "s3://bucket/data"}, "setup": "pip install lockstep\necho ok"})
        self.assertEqual(call["words"][:4], ["jobs", "launch", "--yes", "--detach-run"])
        for line in ("num_nodes: 3", "  use_spot: true", '  infra: aws/us-east-1', '  - region: b', '  cpus: "2+"',
                     '  memory: "8+"', '  image_id: "docker:ghcr.io/x/y:1"', '    strategy: FAILOVER',
                     "    max_restarts_on_errors: 2", "    - 75", '  /data: "s3://bucket/data"', "setup: |",
                     "  pip install lockstep"):
            self.assertIn(line, written.splitlines(), written)

    def test_a_run_that_is_not_to_be_started_again_is_not_recovered_on_75(self):
        self.assertNotIn("job_recovery", self.task(requeue=False)[0])

    def test_a_managed_job_is_followed_and_cancelled_by_its_name(self):
        done = self.launch()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("step 1", done.stdout)
        self.assertIn("started again 2 times", done.stdout)
        self.status("RUNNING")
        self.assertEqual(self.launch("--detach").returncode, 0)
        self.assertEqual(self.run_lockstep("launch", "--cancel", "last").returncode, 0)
        name = (self.bin / "name").read_text()
        self.assertEqual(self.calls("jobs", "cancel")[0]["words"][2:], ["--yes", "--name", name])

    def test_a_failed_job_says_why(self):
        self.status("FAILED_SETUP")
        done = self.launch()
        self.assertEqual(done.returncode, 1)
        self.assertIn("it broke", done.stdout)

    def test_a_cluster_of_ones_own_is_used_when_it_is_not_managed(self):
        _, call = self.task(sky={"managed": False, "cluster": "mine", "idle_minutes": 30})
        self.assertEqual(call["words"][:8], ["launch", "--yes", "--detach-run", "--cluster", "mine",
                                             "--idle-minutes-to-autostop", "30", "--down"])
        self.run_lockstep("launch", "--cancel", "last")
        self.assertEqual(self.calls("cancel")[0]["words"], ["cancel", "--yes", "mine", "7"])

    def test_what_cannot_work_is_refused(self):
        job = self.text_job(cluster="2x2xcpu")
        for override, piece in (("launch.skypilot.resources.acelerators=x", "accelerators"),
                                ("launch.skypilot.resources.job_recovery=x", "launch.skypilot.recovery"),
                                ("launch.skypilot.cluster=x", "managed: false"), ("launch.skypilot.manged=false", "managed"),
                                ("launch.skypilot={managed: false, cluster: '--all'}", "cluster"),
                                ("launch.skypilot={managed: false, recovery: {strategy: x}}", "managed jobs")):
            self.expect_error(2, [piece], "launch", job, override, "--on", "skypilot")
        (self.bin / "sky").write_text("#!/bin/sh\necho 'No cloud access' >&2; exit 1\n")
        self.expect_error(4, ["No cloud access"], "launch", job, "--on", "skypilot")


if __name__ == "__main__":
    unittest.main()
