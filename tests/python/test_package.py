"""The package `lockstep` on PYTHONPATH: doctests of its modules and README, types, errors, command line."""
import doctest
import importlib
import json
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import threading
import unittest

import lockstep
from lockstep import _core

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
LOCKSTEP = pathlib.Path(os.environ["LOCKSTEP_BUILD_DIR"]) / "lockstep"


DOCUMENTED = ("lockstep", "lockstep._suggestion", "lockstep.suggest", "lockstep.errors", "lockstep.comm")


def load_tests(loader, tests, pattern):
    for name in DOCUMENTED:
        tests.addTests(doctest.DocTestSuite(importlib.import_module(name)))
    tests.addTests(doctest.DocFileSuite(str(SOURCE / "python" / "README.md"), module_relative=False))
    return tests


def basic(**more):
    return lockstep.suggest(**{"model_size": "7B", "gpus": 8, "dataset_size": "1B tokens", "studies": False, **more})


class Package(unittest.TestCase):
    def test_there_are_doctests_to_run(self):
        found = [test for name in DOCUMENTED
                 for test in doctest.DocTestFinder().find(importlib.import_module(name)) if test.examples]
        self.assertGreaterEqual(len(found), 5)

    def test_sizes_may_be_numbers_or_texts(self):
        texts = basic().to_dict()
        for size, tokens in ((7e9, 1e9), (7_000_000_000, 1_000_000_000), ("7e9", "1e9"), ("7b", "1B")):
            document = basic(model_size=size, dataset_size=tokens).to_dict()
            document["search"] = texts["search"]  # has a time
            self.assertEqual(document, texts)

    def test_it_answers_what_the_executable_answers(self):
        printed = subprocess.run([str(LOCKSTEP), "suggest", "--params", "7e9", "--gpus", "8", "--dataset-tokens", "1e9",
                                  "--no-studies", "--json"], capture_output=True, text=True, timeout=60, check=True)
        expected, document = json.loads(printed.stdout), basic().to_dict()
        expected.pop("search")
        document.pop("search")
        self.assertEqual(document, expected)

    def test_one_h200_is_priced_by_the_profile_of_our_engine(self):
        one = basic(model_size="1.1B", gpus=1, gpu="H200").to_dict()["profile"]
        self.assertNotEqual(one, basic(gpus=1, gpu="H200", model_size="1.1B", stack="deepspeed").to_dict()["profile"])
        self.assertEqual(lockstep.plan("tinyllama-1.1b", "1x1xH200")["profile"], one)

    def test_attributes_have_the_types_that_the_annotations_promise(self):
        s = basic()
        self.assertIsInstance(s.layout.stage_layers, list)
        self.assertIsInstance(s.batch.micro, int)
        self.assertIsInstance(s.memory.total, float)
        self.assertIsInstance(s.prediction.mfu, lockstep.Interval)
        self.assertIsInstance(s.environment, dict)
        self.assertGreater(s.cost.usd, 0)
        self.assertLess(s.memory.total, s.memory.capacity)
        for name in lockstep.Suggestion.__annotations__:
            self.assertTrue(hasattr(s, name), name)
        with self.assertRaises(AttributeError):
            s.layout.tp = 4

    def test_values_are_pickled_and_compared(self):
        layout = basic().layout
        self.assertEqual(pickle.loads(pickle.dumps(layout)), layout)

    def test_wrong_questions_are_value_errors_of_one_line(self):
        for wrong in ({"model_size": -1}, {"model_size": float("nan")}, {"model_size": "1e30"}, {"gpus": 0},
                      {"gpus": 2.5}, {"dataset_size": "many"}, {"gpu": "H1000"}, {"task": "train"}, {"stack": "x"},
                      {"model": "llama2-7b"}, {"epochs": -1}, {"sequence_length": 0}, {"model_size": None},
                      {"model_size": None, "model": "/nowhere"}, {"model_size": "70B", "gpus": 1}):
            with self.assertRaises(ValueError, msg=str(wrong)) as caught:
                basic(**wrong)
            self.assertNotIn("\n", str(caught.exception))
            self.assertGreater(len(str(caught.exception)), 10)

    def test_pages_escape_what_they_show(self):
        s = basic()
        s.reasons.append("<script>")
        self.assertIn("&lt;script&gt;", s._repr_html_())
        self.assertIn("llama2-7b", repr(s))
        self.assertIn("tokens/s per GPU", str(s))

    def test_threads_may_ask_at_the_same_time(self):
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(basic().layout)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual(len(answers), 4)
        self.assertEqual(len({str(answer) for answer in answers}), 1)

    def test_the_module_is_a_command(self):
        command = [sys.executable, "-W", "error", "-m", "lockstep.suggest", "--no-studies"]
        words = ["--model-size", "7B", "--gpus", "8", "--dataset-size", "1B tokens"]
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=60, check=True)
        self.assertIn("llama2-7b", done.stdout)
        done = subprocess.run([*command, *words, "--json"], capture_output=True, text=True, timeout=60, check=True)
        self.assertEqual(json.loads(done.stdout)["schema"], "lockstep.suggest/1")
        done = subprocess.run([*command, *words, "--gpu", "H1000"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stderr, "lockstep: there is no GPU kind `H1000`; did you mean `H100`?\n")
        with tempfile.TemporaryDirectory() as folder:
            job = pathlib.Path(folder) / "job.yaml"
            subprocess.run([*command, *words, "--print", "job", "--output", str(job)], timeout=60, check=True)
            self.assertEqual(job.read_text(), basic().job_yaml())

    def test_the_extension_shows_nothing_but_its_entry(self):
        symbols = subprocess.run(["nm", "-D", "--defined-only", "-C", _core.__file__], capture_output=True, text=True,
                                 timeout=60)
        if symbols.returncode == 0:
            ours = [line for line in symbols.stdout.splitlines() if "lockstep::" in line or "YAML::" in line]
            self.assertEqual(ours, [])

    def test_the_package_says_that_it_is_typed(self):
        self.assertTrue((pathlib.Path(lockstep.__file__).parent / "py.typed").exists())


if __name__ == "__main__":
    unittest.main()
