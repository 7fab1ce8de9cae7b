"""`lockstep runbook` as a user runs it: every figure is the plan's, every command is one that our programs take.

The figures are recomputed here from what `lockstep plan`, `plan --fix`, `plan --scaling` and `simulate` print, and looked
for in the text of the Markdown, the PDF (by pdftotext) and the HTML. Needs no engine.
"""
import html
import json
import math
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "end_to_end"))
from harness import EndToEnd  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
JOBS = {"13b": "llama2-13b-32xH100.yaml", "70b": "llama2-70b-256xH100.yaml", "7b": "7b-instruct.yaml"}
GIB = 1024.0**3
# What the text says with a digit and is no figure of the plan: probabilities by definition, the port of the page, an exit
# code, names of devices and fractions of the glossary.
CONSTANTS = {"90%", "99%", "0.1%", "8642", "75", "H100"}
SI = {"": 1, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12, "G": 1e9, "P": 1e15}
BINARY = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": GIB, "TiB": 1024 * GIB, "PiB": 1024**2 * GIB}
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86400}


def number(text):
    """A number as printed and half a unit of its last digit."""
    digits = text.lstrip("+-")
    exponent = int(digits.split("e")[1]) if "e" in digits else 0
    mantissa = digits.split("e")[0]
    decimals = len(mantissa.split(".")[1]) if "." in mantissa else 0
    return float(text), 0.5000001 * 10.0 ** (exponent - decimals)


def seconds(text):
    parts = re.findall(r"([\d.]+) ?(ns|us|ms|d|h|m|s)\b", text)
    assert parts, text
    total = sum(float(value) * SECONDS[unit] for value, unit in parts)
    value, half = number(parts[-1][0])
    return total, half * SECONDS[parts[-1][1]] * (1 if len(parts) == 1 else 1.001)


def scaled(text, units):
    value, unit = (text.split(" ") + [""])[:2]
    amount, half = number(value)
    return amount * units[unit], half * units[unit]


def parsed(how, text):
    """What a printed figure says, and by how much rounding may have changed it."""
    if how == "seconds":
        return seconds(text)
    if how == "days":
        if text.endswith(" days"):
            return number(text[:-5])
        value, half = seconds(text)
        return value / 86400, half / 86400
    if how == "gib":
        value, half = scaled(text, BINARY)
        return value / GIB, half / GIB
    if how == "bytes":
        return scaled(text, BINARY)
    if how == "rate":
        return scaled(text.replace("B/s", ""), SI)
    if how == "count":
        return scaled(text, SI)
    if how == "dollars":
        return scaled(text.removesuffix(" USD"), SI)
    if how == "percent":
        value, half = number(text.removesuffix("%"))
        return value / 100, half / 100
    if how == "percent_number":
        return number(text.removesuffix("%"))
    if how in ("whole", "real"):
        value, half = number(text)
        return value, half
    raise AssertionError(how)


def at(document, path):
    for key in path.split("/")[1:]:
        document = document[int(key)] if isinstance(document, list) else document[key]
    return document


def llama_parameters(model):
    head = model["hidden"] // model["heads"]
    layer = (2 * model["hidden"] * model["heads"] * head + 2 * model["hidden"] * model["kv_heads"] * head +
             3 * model["hidden"] * model["ffn_hidden"] + 2 * model["hidden"])
    return 2 * model["vocab"] * model["hidden"] + model["layers"] * layer + model["hidden"]


def derived(plan, tokens, spares, every, keep):
    """The figures of a runbook that are no figures of the plan's file, from the plan's file."""
    best, group = plan["best"], plan["cluster"]["groups"][0]
    layout, batch, memory, rate = best["layout"], best["batch"], best["memory_gib"], best["prediction"]["intervals"]["tokens_per_second"]
    world = layout["pp"] * layout["dp"] * layout["shard"] * layout["cp"] * layout["tp"]
    nodes = world // group["devices_per_node"]
    check, step = dict(best["checkpoint"]), best["prediction"]["intervals"]["step_seconds"]
    if every:  # the job's file fixes it
        durable = check["worst_lost_seconds"] - check["interval_seconds"]
        check.update(interval_seconds=every, worst_lost_seconds=every + durable, expected_lost_seconds=every / 2 + durable)
    hourly = world * group["price_per_device_hour_usd"]
    days = lambda work, per_second: work / per_second / check["goodput"] / 86400
    state = 14.0 * llama_parameters(plan["model"])
    storage = plan["cluster"]["storage"]
    failures = nodes * group["failures_per_1000_node_days"] / 1000 / 86400
    read = 300 + state / storage["read_bytes_per_second"]
    total = sum(best["breakdown_seconds"].values())
    per_step = batch["global_sequences"] * batch["sequence_length"]
    run_days = best["cost"]["days"] if best["cost"] else 30
    out = {
        "/size/parameters": llama_parameters(plan["model"]), "/size/gpus": world, "/size/nodes": nodes,
        "/size/gpus_per_node": group["devices_per_node"], "/size/data_ranks": layout["dp"] * layout["shard"],
        "/size/tokens_per_step": per_step, "/size/spares": spares,
        "/memory/free_gib": memory["capacity"] - memory["total"], "/memory/used_share": memory["total"] / memory["capacity"],
        "/memory/snapshots_node_gib": memory.get("snapshots", 0) * group["devices_per_node"],
        "/money/usd_per_hour": hourly, "/money/usd_per_day": 24 * hourly,
        "/money/days_per_billion": days(1e9, rate["expected"]),
        "/money/usd_per_billion": 24 * hourly * days(1e9, rate["expected"]),
        "/money/usd_per_spare_day": 24 * hourly / nodes,
        "/checkpoint/bytes": state, "/checkpoint/kept_bytes": (keep + 1) * state,
        "/checkpoint/write_seconds": check["worst_lost_seconds"] - check["interval_seconds"] - check["stall_seconds"],
        "/checkpoint/per_day": 86400 / check["interval_seconds"],
        "/checkpoint/stall_share": check["stall_seconds"] / check["interval_seconds"],
        "/checkpoint/steps": round(check["interval_seconds"] / step["expected"]),
        "/checkpoint/failures_per_1000_node_days": group["failures_per_1000_node_days"],
        "/checkpoint/days_between_failures": 1 / failures / 86400,
        "/checkpoint/failures_expected": failures * run_days * 86400,
        "/recovery/detect_seconds": 1, "/recovery/wait_seconds": 2, "/recovery/wait_until_seconds": 3,
        "/recovery/disk_total_seconds": read,
        "/recovery/disk_expected_seconds": read + check["expected_lost_seconds"],
        "/recovery/disk_worst_seconds": read + check["worst_lost_seconds"],
        "/alerts/hold_seconds": 10,
        "/alerts/slow_down/limit": 0.025, "/alerts/slow_down/step_seconds": 1.025 * step["expected"],
        "/alerts/slow_down/usd_per_day": 0.025 * 24 * hourly,
        "/alerts/mfu_drop/limit": 0.08, "/alerts/mfu_drop/step_seconds": step["expected"] / 0.92,
        "/alerts/below_prediction/limit": 0.1, "/alerts/below_prediction/step_seconds": 1.1 * step["high"],
        "/alerts/straggler/limit": 0.1, "/alerts/loss_spike/limit": 8, "/alerts/gradient_outlier/limit": 5,
        "/alerts/loader_stall/limit": 0.1, "/alerts/loader_stall/wait_seconds": 0.1 * step["expected"],
        "/alerts/checkpoint_overdue/age_seconds": 2 * every if every else 1800, "/alerts/heartbeat/limit_seconds": max(60, 10 * step["expected"]),
        "/alerts/disk_filling/least_bytes": 1.2 * state, "/alerts/disk_filling/limit_seconds": 7200,
        "/job/keep": keep, "/job/stop_seconds": 300, "/job/notice_seconds": 90, "/job/restarts": 10, "/job/hang_seconds": 600,
        "/job/max_lost_seconds": 1800,
    }
    out.update({f"/checkpoint/{key}": value for key, value in check.items()})
    for term, value in best["breakdown_seconds"].items():
        out[f"/time_shares/{term}"] = value / total
    if tokens:
        out.update({"/size/tokens": tokens, "/size/steps": math.ceil(tokens / per_step),
                    "/money/days_low": days(tokens, rate["high"]), "/money/days_high": days(tokens, rate["low"]),
                    "/money/usd_low": 24 * hourly * days(tokens, rate["high"]),
                    "/money/usd_high": 24 * hourly * days(tokens, rate["low"])})
    # What a lost rank reads back: a copy of what it holds (two copies each of its own and of a peer's state are kept).
    if nodes > 1:
        own = memory["snapshots"] * GIB / 4
        nic = group["nic"]["bytes_per_second"] * group["nics_per_node"] / group["devices_per_node"]
        model = layout["pp"] * layout["cp"] * layout["tp"]
        left = next(n for n in range(nodes - 1, 0, -1) if n * group["devices_per_node"] % model == 0)
        memory_total = 1 + 2 + own / nic
        shrink = memory_total + 2 + 5
        out.update({"/recovery/copy_bytes": own, "/recovery/memory_total_seconds": memory_total,
                    "/recovery/memory_step_seconds": memory_total + step["expected"],
                    "/recovery/shrink_total_seconds": shrink, "/recovery/smaller_nodes": left,
                    "/recovery/smaller_share": left / nodes, "/recovery/smaller_step_seconds": step["expected"] * nodes / left,
                    "/recovery/shrink_step_seconds": shrink + step["expected"] * nodes / left})
    return out


def unchosen(candidate):
    """How much faster it was predicted before it was chosen."""
    seconds = candidate["prediction"]["step_seconds"]
    return seconds / (seconds - candidate["breakdown_seconds"].get("selection", 0))


def unescaped(text):
    return re.sub(r"\\([\\`*_\[\]<>|#~])", r"\1", text.replace("**", ""))


def prose_and_code(markdown):
    prose, code, inside = [], [], False
    for line in markdown.splitlines():
        if line.startswith("```"):
            inside = not inside
        elif inside:
            code.append(line)
        else:
            prose.append(line)
    return prose, code


def pieces(prose):
    """Texts as a page shows them: lines, items and cells."""
    for line in prose:
        if re.fullmatch(r"[|:-]+", line) or not line.strip():
            continue
        if line.startswith("|"):
            yield from (unescaped(cell.strip()) for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1])
        elif line.startswith("- **") and "**: " in line:
            yield from (unescaped(part) for part in line[4:].split("**: ", 1))
        elif line.startswith("- ") and ": **" in line:  # a card of the front
            label, rest = line[2:].split(": **", 1)
            figure, *details = rest.split("**; ")
            yield from [unescaped(label), unescaped(figure)]
            yield from (unescaped(each) for detail in details for each in detail.split("; "))
        else:
            yield unescaped(re.sub(r"^(#+ |- |> |\*(?=\S))", "", line.replace("**", "")).removesuffix("*"))


def squeezed(text):
    return re.sub(r"\s+", "", text)


class Runbook(EndToEnd):
    def lockstep(self, *arguments, expect=0):
        done = self.run_lockstep(*arguments, timeout=120)
        self.assertEqual(done.returncode, expect, f"{arguments}: {done.stdout[-1500:]}{done.stderr[-1500:]}")
        return done.stdout

    def json(self, *arguments):
        return json.loads(self.lockstep(*arguments, "--json"))

    def make(self, name):
        job = f"specs/jobs/{JOBS[name]}"
        files = [self.folder / f"book.{end}" for end in ("pdf", "md", "html", "json")]
        self.lockstep("runbook", job, *[word for file in files for word in ("-o", file)])
        pdf, markdown, page, facts = files
        return job, pdf, markdown.read_text(), page.read_text(), json.loads(facts.read_text())

    def check_figures(self, name, tokens, spares):
        job, pdf, markdown, page, facts = self.make(name)
        plan = self.json("plan", job)
        self.assertEqual(plan["best"], facts["plan"]["best"])
        mine = derived(plan, tokens, spares, 1800 if name == "7b" else 0, facts["job"]["keep"])
        looked_up = 0
        for figure in facts["figures"]:
            path, how, text = figure["path"], figure["as"], figure["text"]
            with self.subTest(path=path, text=text):
                value = at({**facts, "plan": plan}, path)
                if how == "text":
                    self.assertEqual(text, value)
                    continue
                if how == "layout":
                    self.assertEqual(text.split(", "), [part for part in value.split(",") if not part.startswith("precision=")])
                    continue
                said, half = parsed(how, text)
                self.assertLessEqual(abs(said - value), half * 1.001, f"printed {text} for {value}")
                top = path.split("/")[1]
                if top in ("plan", "scaling", "scaling_per_gpu", "goodput", "strategies", "validation"):
                    continue
                if path in ("/size/epochs", "/job/lora_rank"):
                    continue  # of the job file
                self.assertIn(path, mine, "a figure that this test does not compute")
                self.assertAlmostEqual(value / mine[path] if mine[path] else value, 1 if mine[path] else 0, delta=1e-6, msg=path)
                looked_up += 1
        self.assertGreater(looked_up, 40)
        self.check_other_programs(name, job, plan, facts)
        return pdf, markdown, page, facts

    def check_other_programs(self, name, job, plan, facts):
        """Figures of searches and of the failure study, against the verbs that print them."""
        if name != "7b":  # its file names the layout: other strategies and sizes cannot be asked for with it
            for strategy in facts["strategies"]:
                if strategy["is_planned"] or strategy["name"] in ("pipeline",) or not strategy["fits"]:
                    continue
                fix = {"data parallel": "tp=1,pp=1,cp=1,zero=0", "sharded optimizer": "tp=1,pp=1,cp=1,zero=1",
                       "FSDP": "tp=1,pp=1,cp=1,zero=3", "tensor parallel": "tp=8,pp=1,cp=1"}[strategy["name"]]
                if strategy["name"] in ("data parallel", "FSDP"):
                    # What that framework can run: it does not recompute attention alone. --stack would price by its runs.
                    self.assertNotIn("recompute=selective", strategy["layout"])
                    fix += ",recompute=" + (re.findall(r"recompute=(\w+)", strategy["layout"]) or ["none"])[0]
                best = self.json("plan", job, "--no-what-if", "--fix", fix + ",offload=none")["best"]
                # All strategies are compared with the plan, so each bears what choosing costs there; the verb, asked
                # for one kind alone, what choosing costs among that kind.
                expected = strategy["per_second"] * unchosen(plan["best"])
                self.assertAlmostEqual(best["prediction"]["tokens_per_second"] * unchosen(best), expected, delta=1e-6 * expected)
                self.assertAlmostEqual(best["memory_gib"]["total"], strategy["memory_gib"], delta=1e-6)
            sizes = ",".join(str(point["devices"]) for point in facts["scaling"]["points"])
            self.assertEqual(self.json("plan", job, "--scaling", sizes), facts["scaling"])
            path = self.folder / "plan.json"
            self.lockstep("plan", job, "--output", path)
            study = self.json("simulate", path, "--days", facts["goodput"]["days"], "--samples", facts["goodput"]["samples"],
                              "--spares", facts["size"]["spares"])
            self.assertAlmostEqual(study["goodput"]["mean"], facts["goodput"]["goodput"]["mean"], delta=1e-4)
            self.assertEqual(study["spares"], facts["goodput"]["spares"])

    def check_text(self, pdf, markdown, page, facts):
        prose, code = prose_and_code(markdown)
        texts = list(pieces(prose))
        # Every figure is there.
        everything = "\n".join(texts)
        for figure in facts["figures"]:
            self.assertIn(figure["text"], everything + "\n".join(code), figure["path"])
        # And nothing else that looks like one.
        known = sorted({figure["text"] for figure in facts["figures"]} | CONSTANTS, key=len, reverse=True)
        pattern = re.compile("|".join(rf"(?<![\w.]){re.escape(text)}(?![\w%]|\.\d)" for text in known))
        for text in texts[:-1]:  # the footer has the version and the date
            left = pattern.sub(" ", text)
            self.assertIsNone(re.search(r"\d", left), f"a figure of nobody: {left!r} in {text!r}")
        for line in code:
            words = {squeezed(command["text"]) for command in facts["commands"]} | {squeezed(a["command"]) for a in facts["plan"].get("sensitivity", {}).get("assumptions", [])}
            self.assertTrue(line.startswith("#") or squeezed(line) in words, line)
        # The same texts in the other two forms.
        shown = squeezed(html.unescape(re.sub(r"<[^>]+>", "", re.sub(r"<(style|svg).*?</\1>", "", page, flags=re.S))))
        texts = [text for text in texts if not text.startswith("Drawn: ")]
        for text in texts[2:]:
            self.assertIn(squeezed(text), shown)
        if shutil.which("pdftotext") is None:
            self.skipTest("pdftotext is not installed: scripts/setup.sh build")
        paper = subprocess.run(["pdftotext", "-raw", pdf, "-"], capture_output=True, text=True, check=True).stdout
        footer = texts[-1]
        paper = squeezed("\n".join(line for line in paper.replace("\f", "\n").splitlines() if not line.startswith(footer)))
        for text in texts[2:-1]:
            self.assertIn(squeezed(text), paper)
        pages = int(re.search(r"Pages:\s+(\d+)", subprocess.run(["pdfinfo", pdf], capture_output=True, text=True, check=True).stdout)[1])
        self.assertTrue(5 <= pages <= 8, pages)

    def check_commands(self, facts):
        groups = set()
        settling = [{"group": "settle", "text": each["command"]} for each in
                    facts["plan"].get("sensitivity", {}).get("assumptions", [])[:1] if each["command"].startswith("lockstep ")]
        for command in facts["commands"] + settling:
            groups.add(command["group"])
            with self.subTest(command=command["text"]):
                self.assertEqual(subprocess.run(["bash", "-n", "-c", command["text"]]).returncode, 0)
                words = shlex.split(command["text"])
                if words[1] == "validate" and "\n  validate " not in self.lockstep("--help"):
                    continue  # a build without it
                self.assertEqual(words[0], "lockstep")
                self.lockstep("--parse-only", *words[1:])
                if words[1] == "launch" and "--on" in words and "--plan" in words:
                    self.check_submission(words)
        return groups

    def check_submission(self, words):
        words = [str(self.plan) if word == "plan.json" else str(self.hosts) if word == "hosts" else word for word in words]
        words = [word for word in words if word not in ("--detach", "--dry-run")]
        script = json.loads(self.lockstep(*words[1:], "--dry-run", "--json"))
        for file in script["files"]:
            if file["path"].endswith(".sh"):
                subprocess.run(["bash", "-n"], input=file["text"], text=True, check=True)

    def setUp(self):
        super().setUp()
        (self.folder / "specs").symlink_to(ROOT / "specs")
        self.plan = self.folder / "plan-13b.json"
        self.hosts = self.folder / "hosts"
        self.hosts.write_text("".join(f"n{i} slots=8\n" for i in range(4)))
        self.lockstep("plan", "specs/jobs/llama2-13b-32xH100.yaml", "--output", self.plan)

    def test_13b_on_32_h100(self):
        pdf, markdown, page, facts = self.check_figures("13b", 300e9, 0)
        self.check_text(pdf, markdown, page, facts)
        self.assertLessEqual({"plan", "check", "launch", "watch", "resume", "stop", "keep", "drill", "ask", "validate"},
                             self.check_commands(facts))

    def test_70b_on_256_h100(self):
        pdf, markdown, page, facts = self.check_figures("70b", 1e12, 1)
        self.check_text(pdf, markdown, page, facts)
        self.plan = self.folder / "plan-70b.json"
        self.lockstep("plan", "specs/jobs/llama2-70b-256xH100.yaml", "--output", self.plan)
        self.check_commands(facts)
        self.assertIn("A spare node takes its place", markdown)

    def test_7b_fine_tune_on_8_h100(self):
        pdf, markdown, page, facts = self.check_figures("7b", 0, 0)
        self.check_text(pdf, markdown, page, facts)
        self.check_commands(facts)
        self.assertIn("The only node is gone", markdown)
        self.assertIn("for 3 epochs", markdown)

    def test_the_check_of_commands_can_fail(self):
        self.lockstep("--parse-only", "launch", "--on", "slurn", "job.yaml", expect=2)
        self.lockstep("--parse-only", "watch", "last", "--tabb", "ranks", expect=2)

    def test_every_scheduler_gets_commands_that_it_takes(self):
        for scheduler in ("slurm", "kubernetes", "kubeflow", "ray", "skypilot", "ssh", "mpi"):
            with self.subTest(scheduler=scheduler):
                facts = self.json("runbook", "specs/jobs/llama2-13b-32xH100.yaml", "--scheduler", scheduler)
                self.check_commands(facts)
        self.lockstep("runbook", "specs/jobs/llama2-13b-32xH100.yaml", "--scheduler", "local", expect=2)

    def test_a_plan_file_brings_a_job_that_can_be_read(self):
        markdown = self.lockstep("runbook", self.plan)
        job = self.folder / "job.yaml"
        job.write_text(re.search(r"```\n(model: .*?)```", markdown, re.S)[1])
        again = self.json("plan", job)
        self.assertEqual(again["model"], json.loads(self.plan.read_text())["model"])
        self.assertEqual(again["best"]["layout"], json.loads(self.plan.read_text())["best"]["layout"])
        self.lockstep("runbook", self.plan, "--job", "specs/jobs/llama2-13b-32xH100.yaml", "-o", self.folder / "x.pdf")

    def test_a_validation_is_shown(self):
        interval = {"low": 90.5, "expected": 100.25, "high": 110.75}
        found = {"schema": "lockstep.validation/1", "job": "llama2-13b-32xH100", "date": "2026-11-18T06:00:00Z", "unit": "tokens",
                 "machine": {"kind": "cpu", "hardware": "2 x something", "ranks": 2},
                 "summary": {"median_error_percent": 3.25, "worst_error_percent": 6.5, "median_memory_error_percent": 1.0},
                 "proxies": [{"name": "proxy-1", "layout": "tp=2,precision=fp32", "model": {"parameters": 12345678},
                              "predicted": {"per_second": interval}, "measured": {"per_second": 97.5},
                              "error_percent": {"per_second": -2.74, "memory_bytes": None}}],
                 "target": {"before": {"per_second": interval}, "after": {"per_second": interval},
                            "does_not_carry": ["links between nodes were not used"]}}
        file, files = self.folder / "found.json", [self.folder / f"book.{end}" for end in ("pdf", "md", "html", "json")]
        file.write_text(json.dumps(found))
        self.lockstep("runbook", "specs/jobs/llama2-13b-32xH100.yaml", "--validation", file,
                      *[word for each in files for word in ("-o", each)])
        facts = json.loads(files[3].read_text())
        for figure in facts["figures"]:
            if figure["path"].startswith("/validation") and figure["as"] not in ("text", "layout"):
                said, half = parsed(figure["as"], figure["text"])
                self.assertLessEqual(abs(said - at(found, figure["path"].removeprefix("/validation"))), half * 1.001)
        markdown = files[1].read_text()
        self.check_text(files[0], markdown, files[2].read_text(), facts)
        self.assertIn("VALIDATED", markdown)
        self.assertNotIn("Not validated", markdown)

    def test_a_bound_on_lost_work_that_cannot_be_kept_gets_no_runbook(self):
        job = "specs/jobs/llama2-13b-32xH100.yaml"
        for source in ((job,), (self.plan, "--job", job)):
            book = self.folder / "refused.md"
            done = self.run_lockstep("runbook", *source, "checkpoint.max_lost=60s", "-o", book, timeout=120)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn("the bound on lost work cannot be kept", done.stderr)
            self.assertFalse(book.exists())

    def test_the_assumption_that_matters_most_is_in_it(self):
        markdown = self.lockstep("runbook", self.plan)  # a file keeps it
        first = json.loads(self.plan.read_text())["sensitivity"]["assumptions"][0]
        self.assertIn("The assumption it is most sensitive to", markdown)
        self.assertIn(first["measurement"], unescaped(markdown))
        self.assertIn(first["command"], markdown)

    def test_what_cannot_be_done_is_said(self):
        self.lockstep("runbook", "specs/jobs/llama2-13b-32xH100.yaml", "-o", "x.docx", expect=2)
        self.lockstep("runbook", self.folder / "none.yaml", expect=4)
        other = self.folder / "other.json"
        other.write_text("{}")
        self.lockstep("runbook", self.plan, "--validation", other, expect=2)


if __name__ == "__main__":
    unittest.main()
