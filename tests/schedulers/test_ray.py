"""`lockstep launch --on ray` against a made-up Jobs API that keeps what it is sent; and the driver, with a made-up ray."""
import base64
import http.server
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
import types
import unittest

sys.path.insert(0, os.path.join(os.environ["LOCKSTEP_SOURCE_DIR"], "tests", "end_to_end"))
from harness import SOURCE, EndToEnd, free_port  # noqa: E402

HOSTILE = ["$(touch HACKED)", "`touch HACKED`", "'; touch HACKED; '", '"; touch HACKED; "', "${HOME}", "&anchor", "*alias",
           "--flag", "!!python/object:os.system", "${{ secrets.X }}", "a: b", "{a: b}", "# not a comment", "\u00e9\u4e2d"]


RESULT = '{"schema": "lockstep.run/1", "status": "done"}\n'  # following a log ends with it


class JobsApi(http.server.ThreadingHTTPServer):
    """Answers with the states in turn, then with the last one."""

    def __init__(self, states=("SUCCEEDED",), logs="", code=0, refuse=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.states, self.logs, self.code, self.refuse = list(states), logs, code, refuse
        self.submitted, self.asked, self.headers = [], [], []
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, code, body):
        text = json.dumps(body).encode() if not isinstance(body, str) else body.encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_POST(self):
        api = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        api.asked.append("POST " + self.path)
        api.headers.append(dict(self.headers))
        if self.path.endswith("/stop"):
            api.states = ["STOPPED"]
            return self.answer(200, {"stopped": True})
        if api.refuse:
            return self.answer(400, api.refuse)
        api.submitted.append(json.loads(body))
        return self.answer(200, {"submission_id": api.submitted[-1]["submission_id"]})

    def do_GET(self):
        api = self.server
        api.asked.append("GET " + self.path)
        if self.path.endswith("/logs"):
            return self.answer(200, {"logs": api.logs})
        state = api.states.pop(0) if len(api.states) > 1 else api.states[0]
        over = state in ("SUCCEEDED", "FAILED")
        return self.answer(200, {"status": state, "message": "Traceback\nit broke", "driver_exit_code": api.code if over else None})


class Submitting(EndToEnd):
    def setUp(self):
        super().setUp()
        for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_TOKEN", "RAY_JOB_HEADERS"):
            self.environment.pop(name, None)

    def api(self, *arguments, **options):
        api = JobsApi(*arguments, **options)
        self.addCleanup(api.server_close)
        self.addCleanup(api.shutdown)
        return api

    def job(self, api, **launch):
        launch.setdefault("ray", {})["address"] = api.address if api else f"http://127.0.0.1:{free_port()}"
        return self.text_job(launch=launch, cluster="2x2xcpu")

    def launch(self, job, *arguments, **options):
        return self.run_lockstep("launch", job, "--on", "ray", *arguments, **options)

    def start_of(self, submitted):
        return json.loads(base64.b64decode(submitted["runtime_env"]["env_vars"]["LOCKSTEP_RAY_START"]))

    def test_the_command_that_ray_runs_is_the_same_whatever_the_user_wrote(self):
        seen = set()
        for text in HOSTILE:
            api = self.api()
            job = self.job(api, environment={"WORD": text}, directory=text, lockstep=text)
            done = self.launch(job, f"name={json.dumps(text)}", "--detach")
            self.assertEqual(done.returncode, 0, done.stderr)
            sent = api.submitted[0]
            seen.add(sent["entrypoint"])
            start = self.start_of(sent)
            self.assertEqual(start["executable"], text)
            self.assertEqual(start["directory"], text)
            self.assertEqual(start["submission"]["environment"]["WORD"], text)
            self.assertEqual(sent["metadata"]["name"], text)
            # Ray would expand ${...} in variables: nothing of the user's is written there as it is.
            for name, value in sent["runtime_env"]["env_vars"].items():
                self.assertRegex(value, r"\A[A-Za-z0-9+/=._-]*\Z", name)
        self.assertEqual(len(seen), 1)

    def test_a_shell_starts_the_driver_and_nothing_else(self):
        api = self.api()
        self.launch(self.job(api, environment={"WORD": "$(touch HACKED)"}), "--detach")
        sent = api.submitted[0]
        program = self.folder / "python with space"
        program.write_text("#!/bin/sh\nprintf '%s\\n' \"$#\" \"$1\" \"$2\" > \"$0.out\"\n")
        program.chmod(0o755)
        variables = {**os.environ, **sent["runtime_env"]["env_vars"], "LOCKSTEP_RAY_PROGRAM": str(program)}
        subprocess.run(sent["entrypoint"], shell=True, check=True, env=variables, cwd=self.folder)
        said = pathlib.Path(f"{program}.out").read_text().splitlines()
        self.assertEqual(said[:2], ["2", "-c"])
        self.assertFalse((self.folder / "HACKED").exists())

    def test_the_secret_of_the_agents_is_not_sent(self):
        api = self.api()
        self.launch(self.job(api), "--detach")
        self.assertNotIn("LOCKSTEP_TOKEN", json.dumps(self.start_of(api.submitted[0])))

    def test_nodes_spares_and_resources_are_asked_for(self):
        api = self.api()
        self.launch(self.job(api, spares=1, cpus_per_node=6, memory_per_node="2GiB",
                             ray={"placement": "pack", "resources": {"fast": 2}, "runtime_env": {"pip": ["x"]}}), "--detach")
        start = self.start_of(api.submitted[0])
        self.assertEqual((start["nodes"], start["placement"]), (3, "PACK"))
        self.assertEqual(start["bundle"], {"CPU": 6, "memory": 2 << 30, "fast": 2})
        self.assertEqual(api.submitted[0]["runtime_env"]["pip"], ["x"])

    def test_it_is_followed_to_its_end(self):
        api = self.api(["PENDING", "RUNNING", "RUNNING", "SUCCEEDED"], logs="step 1\nstep 2\n" + RESULT)
        done = self.launch(self.job(api))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("step 1"), 1)
        self.assertIn("step 2", done.stdout)

    def test_the_exit_code_is_the_runs(self):
        done = self.launch(self.job(self.api(["FAILED"], logs=RESULT, code=3)))
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("it broke", done.stdout)

    def test_it_is_cancelled_through_the_api(self):
        api = self.api(["RUNNING"])
        self.launch(self.job(api), "--detach")
        done = self.run_lockstep("launch", "--cancel", "last")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"POST /api/jobs/{api.submitted[0]['submission_id']}/stop", api.asked)

    def test_a_dry_run_sends_nothing_and_shows_all(self):
        api = self.api()
        done = self.launch(self.job(api, environment={"WORD": "shown"}), "--dry-run")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(api.asked, [])
        self.assertIn('"WORD": "shown"', done.stdout)
        self.assertIn("/api/jobs/", done.stdout)

    def test_headers_come_from_rays_own_variables(self):
        api = self.api()
        self.launch(self.job(api), "--detach", environment={"RAY_AUTH_TOKEN": "abc", "RAY_JOB_HEADERS": '{"X-Team": "blue"}'})
        self.assertEqual((api.headers[0]["Authorization"], api.headers[0]["X-Team"]), ("Bearer abc", "blue"))
        self.expect_error(2, ["header"], "launch", self.job(api), "--on", "ray",
                          environment={"RAY_JOB_HEADERS": '{"X": "a\\r\\nB: c"}'})

    def test_what_cannot_work_is_refused(self):
        self.expect_error(4, ["nobody answers", "launch.ray.address"], "launch", self.job(None), "--on", "ray")
        refusing = self.api(refuse="Traceback\nValueError: no such thing")
        self.expect_error(4, ["refused the job (400): ValueError: no such thing"], "launch", self.job(refusing), "--on", "ray")
        job = self.job(self.api())
        for override, piece in (("launch.ray.address=https://x", "forward the port"), ("launch.ray.adress=x", "address"),
                                ("launch.ray.placement=near", "strict_spread"), ("launch.ray.resources=[1]", "amounts"),
                                ("launch.ray.python=$(x)", "python"), ("launch.ray.runtime_env={env_vars: {A: b}}", "env_vars")):
            self.expect_error(2, [piece], "launch", job, override, "--on", "ray")


def load_driver():
    """ray_driver.py as a module, with just enough of ray to be imported."""
    made_up = {name: types.ModuleType(name) for name in ("ray", "ray.util", "ray.util.placement_group",
                                                         "ray.util.scheduling_strategies")}
    made_up["ray"].util = made_up["ray.util"]
    made_up["ray.util"].get_node_ip_address = lambda: "10.0.0.7"
    made_up["ray.util.placement_group"].placement_group = None
    made_up["ray.util.scheduling_strategies"].PlacementGroupSchedulingStrategy = None
    sys.modules.update(made_up)
    spec = importlib.util.spec_from_file_location("ray_driver", SOURCE / "lockstep/schedulers/ray_driver.py")
    driver = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(driver)
    return driver


class Driver(EndToEnd):
    def setUp(self):
        super().setUp()
        self.driver = load_driver()
        self.node = self.driver.Node()

    def program(self, text):
        path = self.folder / "agent"
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)
        return str(path)

    def output(self):
        said, deadline = [b"", b""], time.monotonic() + 60
        while time.monotonic() < deadline:
            out, err, code = self.node.poll(1.0)
            said[0] += out
            said[1] += err
            if code is not None:
                return said[0], said[1], code
        self.fail("the agent did not end")

    def test_an_agent_gets_its_submission_and_is_listened_to(self):
        program = self.program('echo "$1 $2 $3"; printf "%s" "$LOCKSTEP_SUBMISSION"; echo oops >&2; exit 3\n')
        hostile = {"run": "r", "word": "$(touch HACKED) '\n"}
        self.assertIsInstance(self.node.start(program, dict(hostile), ""), int)
        out, err, code = self.output()
        first, rest = out.split(b"\n", 1)
        self.assertEqual((first, err, code), (b"launch --submission env", b"oops\n", 3))
        self.assertEqual(json.loads(rest), hostile)
        self.assertIsNone(self.node.poll(0.1), "nothing runs any more")

    def test_a_folder_that_is_there_is_used(self):
        program = self.program('printf "%s" "$LOCKSTEP_SUBMISSION"\n')
        for folder, used in ((str(self.folder), str(self.folder)), ("/nonexistent", None)):
            self.node.start(program, {}, folder)
            self.assertEqual(json.loads(self.output()[0]).get("directory"), used)

    def test_a_program_that_is_not_there_is_told(self):
        self.assertIn("cannot be started", self.node.start("/nonexistent/lockstep", {}, ""))

    def test_a_restarted_actor_keeps_its_port_where_its_machine_is_the_same(self):
        self.assertEqual(self.node.address(["10.0.0.7", 23456]), ("10.0.0.7", 23456))
        host, port = self.node.address(["10.0.0.8", 23456])
        self.assertEqual(host, "10.0.0.7")
        self.assertTrue(20000 <= port <= 29999)

    def test_a_node_that_comes_back_after_the_end_is_not_started(self):
        start = {"nodes": 2, "submission": {"environment": {}}}
        run = self.driver.Driver(start)
        run.waiting, run.later, run.codes, run.ended, run.again, run.all_begun = {}, {}, {1: 0}, {1: 0.0}, set(), True
        for comes_back in (lambda: run.handle(0, "address", ["10.0.0.8", 20000]), lambda: run.handle(0, "poll", None),
                           lambda: run.lost(0, "poll", RuntimeError())):
            run.codes.pop(0, None)
            comes_back()
            self.assertEqual(run.codes, {1: 0, 0: 75})
            self.assertEqual(run.waiting, {})
        del run.codes[0]
        run.waiting = {"pending": (0, "address")}
        run.start_again(time.monotonic())
        self.assertEqual((run.codes, run.waiting), ({1: 0, 0: 75}, {}))

    def test_an_agent_that_did_its_work_speaks_for_the_run(self):
        for codes, code in (([0, 75], 0), ([75, 0], 0), ([75, 3], 3), ([75, 75], 75), ([-9, 4], 4), ([-9, -9], 1), ([130, 130], 130)):
            self.assertEqual(self.driver.code_of_run(codes), code, codes)


if __name__ == "__main__":
    unittest.main()
