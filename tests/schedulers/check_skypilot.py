"""Tasks that `lockstep launch --on skypilot` writes, read by SkyPilot's own parser. Ends with 77 without skypilot.

The parser must also refuse a misspelt task, else its yes would mean nothing; and where ../shared has upstream's own examples, it must
accept them in the same way.
"""
import base64
import json
import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from test_skypilot import SOURCE, SkyPilotCase  # noqa: E402
from test_ray import HOSTILE  # noqa: E402

PYTHON = os.environ.get("LOCKSTEP_SKYPILOT_PYTHON") or "python3"
READ = """
import json, sys
import sky
for path in sys.argv[1:]:
    task = sky.Task.from_yaml(path)
    one = list(task.resources)[0]
    print(json.dumps({"name": task.name, "nodes": task.num_nodes, "run": task.run, "setup": task.setup, "spot": one.use_spot,
                      "count": len(task.resources), "accelerators": one.accelerators, "cpus": one.cpus, "memory": one.memory,
                      "image": one.image_id, "recovery": one.job_recovery, "mounts": task.file_mounts or {}}))
"""


class Parser(SkyPilotCase):
    def parse(self, *paths):
        return subprocess.run([PYTHON, "-c", READ, *map(str, paths)], capture_output=True, text=True, cwd=self.folder,
                              env={**self.environment, "SKYPILOT_DISABLE_USAGE_COLLECTION": "1", "HOME": str(self.folder)})

    def read(self, *paths):
        """What SkyPilot makes of each."""
        done = self.parse(*paths)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def test_a_task_means_to_skypilot_what_it_says(self):
        (self.folder / "data").mkdir()
        _, call = self.task(
            spares=1, image="ghcr.io/x/y:1", memory_per_node="7.5GiB",
            sky={"resources": {"use_spot": True, "any_of": [{"infra": "aws"}, {"infra": "gcp"}], "accelerators": "H100:8"},
                 "recovery": {"strategy": "FAILOVER", "max_restarts_on_errors": 2},
                 "file_mounts": {"/data": str(self.folder / "data")}, "setup": "echo a\necho b"})
        task, = self.read(call["words"][-1])
        self.assertEqual((task["nodes"], task["spot"], task["count"]), (3, True, 2))
        self.assertEqual((task["accelerators"], task["cpus"], task["memory"]), ({"H100": 8}, "2+", "8+"))
        self.assertEqual(task["recovery"], {"strategy": "FAILOVER", "max_restarts_on_errors": 2, "recover_on_exit_codes": [75]})
        self.assertEqual(task["mounts"], {"/data": str(self.folder / "data")})
        self.assertEqual(task["setup"], "echo a\necho b\n")
        self.assertIn("docker:ghcr.io/x/y:1", json.dumps(task["image"]))

    def test_hostile_values_change_nothing_but_the_secret(self):
        paths = []
        for text in HOSTILE:
            _, call = self.task(f"name={json.dumps(text)}", environment={"WORD": text}, lockstep=text)
            self.assertEqual(base64.b64decode(call["start"]).decode().split("\n", 1)[0], text)
            paths.append(call["words"][-1])
        tasks = self.read(*paths)
        self.assertEqual(len(tasks), len(HOSTILE))
        self.assertEqual(len({json.dumps({**task, "name": ""}) for task in tasks}), 1)

    def test_the_parser_refuses_a_misspelt_task(self):
        written, _ = self.task()
        wrong = self.folder / "wrong.yaml"
        wrong.write_text(written.replace("num_nodes:", "num_node:"))
        done = self.parse(wrong)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("num_nodes", done.stderr)

    def test_it_accepts_upstreams_examples(self):
        examples = pathlib.Path(SOURCE).parent / "shared" / "data" / "ops" / "skypilot"
        if not examples.is_dir():
            self.skipTest("no ../shared")
        self.assertEqual({task["nodes"] for task in self.read(*sorted(examples.glob("*.yaml")))}, {2})


if __name__ == "__main__":
    if subprocess.run([PYTHON, "-c", "import sky"], capture_output=True).returncode != 0:
        print("skipped: no Python with skypilot; make venv-launch, or set LOCKSTEP_SKYPILOT_PYTHON")
        sys.exit(77)
    unittest.main()
