"""What `lockstep export` writes, read by those it is for: pyarrow, TensorBoard, Holistic Trace Analysis, spreadsheets' CSV.

usage: read_exports.py LOCKSTEP   (python with pyarrow, tensorboard and HolisticTraceAnalysis from PyPI)
"""
import csv
import json
import math
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time
import unittest

LOCKSTEP = pathlib.Path(sys.argv.pop(1)).resolve()
RUN = "20261115-031500-a1b2c3-interop"
HOSTILE = ["=cmd|'/c calc'!A1", "<script>alert(1)</script>", "\x1b[31mred", "../../up", "quote\"comma,\nline", "tab\tname", "ünïcode ☃"]
STEPS, RANKS = 300, 4


def spans_of(rank, step, rng):
    """Rows of a step with forward, backward, reduces that overlap it, and a wait at its end."""
    rows = [["step", "main", 0.0, 100000.0]]
    rows.append(["forward", "main", 1000.0, 29000.0, -1, -1, 0, -1, -1, 0, 0])
    rows.append(["backward", "main", 30000.0, 50000.0, -1, -1, 0, -1, -1, 0, 0])
    for bucket in range(3):  # members begin when they come and end together
        begin, ends = 41000.0 + 16000.0 * bucket + rng.uniform(0, 1500), 56500.0 + 16000.0 * bucket
        rows.append(["collective", "comm", begin, ends - begin, 0, 1, 1 << 20, step * 3 + bucket])
    rows.append(["wait", "main", 75000.0, 2000.0, 0, 1])  # inside of the backward
    rows.append(["wait", "main", 80000.0, ends - 80000.0, 0, 1])
    rows.append(["optimizer", "main", ends + 10.0, 3000.0])
    # A message to the next rank, and what came from the one before.
    rows.append(["collective", "comm", 2000.0, 400.0, 2, 3, 4096, step, (rank + 1) % RANKS])
    rows.append(["collective", "comm", 2100.0, 500.0, 4, 3, 4096, step, (rank - 1) % RANKS])
    rows.sort(key=lambda row: row[2])
    return rows


def lines_of_run():
    rng = random.Random(3)
    yield {"run": RUN, "type": "run", "name": HOSTILE[1], "started_at": 1000.0, "world": RANKS, "backend": "gloo", "host": "h",
           "pid": 0, "pid_started": 0, "job": "a: b", "versions": {}}
    for step in range(1, STEPS + 1):
        for rank in range(RANKS):
            values = {"step_seconds": 0.1 + 0.001 * rank}
            if rank == 0:
                values["loss"] = "nan" if step == 7 else 10.0 / step
                values.update({name: -float(step) for name in HOSTILE})
            yield {"run": RUN, "type": "metrics", "rank": rank, "step": step, "time": 1000.0 + step * 0.1, "values": values}
            if step > STEPS - 30:
                skew = 5.0 if rank >= 2 else 0.0  # the clock of another node
                yield {"run": RUN, "type": "spans", "rank": rank, "step": step, "time": 1000.0 + step * 0.1 + skew,
                       "names": ["all_reduce (dp: gradients)", "dp:0-3", "send", "pp:0-3", "recv"],
                       "spans": spans_of(rank, step, rng)}
    yield {"run": RUN, "type": "event", "time": 1001.0, "level": "warning", "kind": "note", "rank": -1, "step": -1,
           "message": HOSTILE[2], "data": {}}
    yield {"run": RUN, "type": "end", "time": 1031.0, "status": "done", "exit_reason": "", "summary": {"steps": STEPS}}


class ReadExports(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        cls.environment = {**os.environ, "LOCKSTEP_HOME": str(cls.folder / "home")}
        (cls.folder / "run.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines_of_run()))
        cls.lockstep("import", str(cls.folder / "run.jsonl"))

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    @classmethod
    def lockstep(cls, *words):
        done = subprocess.run([LOCKSTEP, *words], env=cls.environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def export(self, name, *words):
        self.lockstep("export", RUN, "--to", str(self.folder / name), *words)
        return self.folder / name

    def test_pyarrow_reads_the_parquet_file(self):
        import pyarrow.parquet
        table = pyarrow.parquet.read_table(self.export("run.parquet"))
        self.assertEqual(table.num_rows, STEPS * (RANKS + 1 + len(HOSTILE)))
        rows = table.to_pylist()
        losses = [row for row in rows if row["metric"] == "loss"]
        self.assertEqual([row["step"] for row in losses], list(range(1, STEPS + 1)))
        self.assertTrue(math.isnan(losses[6]["value"]))
        self.assertEqual(losses[9]["value"], 1.0)
        self.assertEqual(losses[9]["time"].timestamp(), 1001.0)
        self.assertEqual({row["rank"] for row in rows if row["metric"] == "step_seconds"}, set(range(RANKS)))
        self.assertLessEqual(set(HOSTILE), {row["metric"] for row in rows})
        self.assertEqual(pyarrow.parquet.read_metadata(self.folder / "run.parquet").metadata[b"lockstep.run"].decode(), RUN)
        few = pyarrow.parquet.read_table(self.export("few.parquet", "--metric", "loss", "--steps", "5..8")).to_pylist()
        self.assertEqual([row["step"] for row in few], [5, 6, 7, 8])

    def test_tensorboard_reads_the_event_files(self):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        self.export("boards", "--format", "tensorboard")
        events = EventAccumulator(str(self.folder / "boards" / RUN), size_guidance={"scalars": 0})
        events.Reload()
        self.assertLessEqual({"loss", "step_seconds", *HOSTILE}, set(events.Tags()["scalars"]))
        losses = events.Scalars("loss")
        self.assertEqual([event.step for event in losses], list(range(1, STEPS + 1)))
        self.assertAlmostEqual(losses[99].value, 0.1, places=6)
        self.assertAlmostEqual(losses[99].wall_time, 1010.0, places=3)
        self.assertTrue(math.isnan(losses[6].value))
        other = EventAccumulator(str(self.folder / "boards" / RUN / "rank-00003"))
        other.Reload()
        self.assertEqual(other.Tags()["scalars"], ["step_seconds"])
        written = sorted(path.relative_to(self.folder / "boards").parts[0] for path in (self.folder / "boards").rglob("*") if path.is_file())
        self.assertEqual(set(written), {RUN}, "nothing lies beside the run's folder")

    def test_tensorboard_reads_a_run_while_it_goes_on(self):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        name = "20261116-000000-ffffff-live"
        home = self.folder / "home" / "runs" / name
        home.mkdir(parents=True)
        with open(home / "run.jsonl", "w") as lines:
            def write(record):
                lines.write(json.dumps({"run": name, **record}) + "\n")
                lines.flush()
            write({"type": "run", "name": "live", "started_at": time.time(), "world": 1, "backend": "gloo", "host": os.uname().nodename,
                   "pid": os.getpid(), "pid_started": 0, "job": "", "versions": {}})
            write({"type": "metrics", "rank": 0, "step": 1, "time": time.time(), "values": {"loss": 4.0}})
            follower = threading.Thread(target=self.lockstep, args=("export", name, "--to", str(self.folder / "live"), "--format", "tensorboard", "--follow"))
            follower.start()
            while not (self.folder / "live" / name).exists() and follower.is_alive():
                time.sleep(0.1)
            events = EventAccumulator(str(self.folder / "live" / name))
            for step in range(2, 6):
                write({"type": "metrics", "rank": 0, "step": step, "time": time.time(), "values": {"loss": 4.0 / step}})
                deadline = time.time() + 30
                while time.time() < deadline:
                    events.Reload()
                    if "loss" in events.Tags()["scalars"] and len(events.Scalars("loss")) == step:
                        break
                    time.sleep(0.2)
                self.assertEqual([event.step for event in events.Scalars("loss")], list(range(1, step + 1)))
            for step in range(3, 7):  # a recovery: from here on again
                write({"type": "metrics", "rank": 0, "step": step, "time": time.time(), "values": {"loss": 7.0}})
            deadline = time.time() + 30
            while time.time() < deadline and len(events.Scalars("loss")) != 6:
                time.sleep(0.2)
                events.Reload()
            self.assertEqual([(event.step, event.value) for event in events.Scalars("loss")],
                             [(1, 4.0), (2, 2.0), (3, 7.0), (4, 7.0), (5, 7.0), (6, 7.0)])
            write({"type": "end", "time": time.time(), "status": "done", "exit_reason": "", "summary": {}})
            follower.join(30)
            self.assertFalse(follower.is_alive())

    def test_hta_finds_our_overlap(self):
        from hta.trace_analysis import TraceAnalysis
        told = json.loads(self.lockstep("export", RUN, "--to", str(self.folder / "traces"), "--format", "trace", "--json"))
        ours = {entry["rank"]: 100 * entry["overlap"] for entry in told["overlap"]}
        self.assertEqual(sorted(ours), list(range(RANKS)))
        for share in ours.values():
            self.assertTrue(40 < share < 95, ours)  # the made-up steps hide some of it, not all
        analysis = TraceAnalysis(trace_dir=str(self.folder / "traces"), include_last_profiler_step=True)
        theirs = analysis.get_comm_comp_overlap(visualize=False)
        found = dict(zip(theirs["rank"], theirs["comp_comm_overlap_pctg"]))
        self.assertEqual(sorted(found), sorted(ours))
        for rank, share in ours.items():
            self.assertAlmostEqual(found[rank], share, delta=0.01 * share)
        print("overlap, ours and HTA's:", {rank: (round(ours[rank], 2), float(found[rank])) for rank in ours})
        breakdown = analysis.get_temporal_breakdown(visualize=False)
        self.assertEqual(len(breakdown), RANKS)

    def test_a_trace_of_all_ranks_has_nested_tracks_and_flows_that_meet_their_spans(self):
        trace = json.loads(self.export("all.json", "--format", "perfetto", "--steps", "290..294").read_text())["traceEvents"]
        spans = [event for event in trace if event["ph"] == "X"]
        self.assertEqual({event["pid"] for event in spans}, set(range(RANKS)))
        self.assertEqual({event["args"]["step"] for event in spans}, set(range(290, 295)))
        tracks = {}
        for span in spans:
            tracks.setdefault((span["pid"], span["tid"]), []).append(span)
        named = {(event["pid"], event["tid"]) for event in trace if event["ph"] == "M" and event["name"] == "thread_name"}
        self.assertEqual(set(tracks), named)
        for track in tracks.values():
            open_ends = []
            for span in sorted(track, key=lambda span: (span["ts"], -span["dur"])):
                while open_ends and open_ends[-1] <= span["ts"] + 1e-3:
                    open_ends.pop()
                self.assertTrue(not open_ends or span["ts"] + span["dur"] <= open_ends[-1] + 0.01, span)
                open_ends.append(span["ts"] + span["dur"])
        flows = {}
        for event in trace:
            if event["ph"] in "sf":
                flows.setdefault(event["id"], {})[event["ph"]] = event
        self.assertEqual(len([flow for flow in flows.values() if flow["s"]["cat"] == "message"]), 5 * RANKS)
        self.assertEqual(len([flow for flow in flows.values() if flow["s"]["cat"] == "collective"]), 5 * 3 * (RANKS - 1))
        for flow in flows.values():
            for end in flow.values():
                around = [span for span in tracks[end["pid"], end["tid"]] if span["ts"] - 0.01 <= end["ts"] <= span["ts"] + span["dur"] + 0.01]
                self.assertTrue(around, end)
            self.assertNotEqual(flow["s"]["pid"], flow["f"]["pid"])
            self.assertLessEqual(flow["s"]["ts"], flow["f"]["ts"] + 1, "clocks of nodes are aligned")
        waits = [span["args"]["wait_us"] for span in spans if "wait_us" in span["args"]]
        self.assertGreater(max(waits), 100)
        self.assertLess(max(waits), 10000, "five seconds are another clock, not a wait")

    def test_csv_is_read_as_it_was_and_never_executed(self):
        with open(self.export("run.csv"), newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(len(rows), STEPS * RANKS)
        first = next(row for row in rows if row["rank"] == "0" and row["step"] == "10")
        self.assertEqual(float(first["loss"]), 1.0)
        self.assertEqual(float(first["<script>alert(1)</script>"]), -10.0)
        for column in rows[0]:
            self.assertNotIn(column[0], "=+-@\t\r\n|%", column)
        self.assertIn("'" + HOSTILE[0], rows[0])
        with open(self.export("long.csv", "--long"), newline="") as file:
            for row in csv.DictReader(file):
                self.assertNotIn(row["metric"][0], "=+-@\t\r\n|%")
                float(row["value"])

    def test_json_and_json_lines_hold_the_whole_run(self):
        document = json.loads(self.export("run.json").read_text())
        self.assertEqual(document["run"]["name"], HOSTILE[1])
        self.assertEqual(len(document["metrics"]), RANKS + 1 + len(HOSTILE))
        loss = next(series for series in document["metrics"] if series["metric"] == "loss")
        self.assertIsNone(loss["values"][6])
        self.assertEqual(loss["steps"][-1], STEPS)
        lines = self.export("again.jsonl")
        other = {**self.environment, "LOCKSTEP_HOME": str(self.folder / "other")}
        subprocess.run([LOCKSTEP, "import", lines], env=other, check=True, capture_output=True, timeout=120)
        copied = subprocess.run([LOCKSTEP, "export", RUN, "--to", "-", "--format", "json"], env=other, check=True, capture_output=True, timeout=120)
        self.assertEqual(json.loads(copied.stdout), document)


if __name__ == "__main__":
    unittest.main(verbosity=2)
