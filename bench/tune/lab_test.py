"""What lab.py says about studies is right. Run by `make bench-tune` in its own environment; needs no build."""
import pathlib
import sys
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parent.parent)]
import lab_report  # noqa: E402
import lab_score  # noqa: E402
import optuna_study  # noqa: E402

DESCRIPTION = {"rules": [], "knobs": [
    {"name": "workers", "levels": [0, 1, 2], "written": "int", "ordered": True, "default": 0},
    {"name": "prefetch", "levels": [1, 2, 3], "written": "int", "ordered": True, "default": 1, "parent": "workers",
     "parent_levels": [1, 2]},
    {"name": "mode", "levels": ["a", "b"], "written": "choices", "ordered": False, "default": 0}]}


class Reverting(unittest.TestCase):
    def test_a_knob_that_ceases_to_exist_is_left_out(self):
        config = {"workers": 2, "prefetch": 3, "mode": "b"}
        self.assertEqual(lab_score.reverted(DESCRIPTION, config, "workers"), {"workers": 0, "mode": "b"})
        self.assertEqual(lab_score.reverted(DESCRIPTION, config, "prefetch"), {"workers": 2, "prefetch": 2, "mode": "b"})

    def test_costs_are_what_is_lost_and_a_hundred_where_it_does_not_run(self):
        def truth_of(config):
            return 0 if config["mode"] == "a" else 100 + 50 * config["workers"]
        costs = lab_score.costs_of(DESCRIPTION, {"workers": 2, "prefetch": 2, "mode": "b"}, truth_of)
        self.assertEqual(costs, {"workers": 50, "prefetch": 0, "mode": 100})


class TopThree(unittest.TestCase):
    costs = {"a": 40.0, "b": 20.0, "c": 5.0, "d": 4.5, "e": 0.0}

    def test_the_three_largest_are_right_in_any_order(self):
        self.assertTrue(lab_score.top_is_right(self.costs, ["c", "a", "b"], []))
        self.assertFalse(lab_score.top_is_right(self.costs, ["a", "b", "d"], []))
        self.assertFalse(lab_score.top_is_right(self.costs, ["a", "b"], []))

    def test_a_tie_must_be_one(self):
        self.assertTrue(lab_score.top_is_right(self.costs, ["a", "b"], ["c", "d"]))
        self.assertFalse(lab_score.top_is_right(self.costs, ["a"], ["b", "c", "d"]))
        self.assertFalse(lab_score.top_is_right(self.costs, ["a", "b"], ["d", "e"]))

    def test_knobs_that_cost_nothing_need_no_name(self):
        self.assertTrue(lab_score.top_is_right({"a": 3.0, "b": 0.0, "c": 0.0, "d": 0.0}, ["a"], []))


class Report(unittest.TestCase):
    def document(self, ours, theirs, chance, hidden):
        statements = {"figure": True, "gain": None, "top": True}
        row = {"kind": "dev_x", "failed": 0.1, "milliseconds_per_trial": 10}
        def mine(regret, instance, is_hidden):
            return {**row, "instance": instance, "seed": 1, "trials": 60, "hidden": is_hidden, "regret": regret,
                    "statements": statements}
        def other(variant, regret, instance):
            return {**row, "instance": instance, "seed": 1, "variant": variant, "truth": {"60": 100 - regret},
                    "failed": {"60": 0.1}}
        return {"budgets": [60], "seeds": 1, "in_process": False, "surfaces": [{"kind": "dev_x", "instance": i, "best": 100} for i in (0, 1)],
                "ours": [mine(r, i, h) for h, r in ((False, ours), (True, hidden)) for i in (0, 1)],
                "optuna": [other(v, r, i) for v, r in (("gp/reject/worst", theirs), ("tpe/reject/zero", 2 * theirs),
                                                       ("random/reject/zero", chance)) for i in (0, 1)]}

    def met(self, **regrets):
        lines = lab_report.targets(lab_report.Table(self.document(**regrets)))
        return {what: met for what, _, _, met in lines}

    def test_the_best_of_optuna_is_the_yardstick(self):
        met = self.met(ours=5, theirs=10, chance=12, hidden=5.5)
        self.assertTrue(all(ok for what, ok in met.items() if "covers" not in what))
        self.assertFalse(met["interval of the winner covers"])  # always covering is too wide an interval
        worse = self.met(ours=7, theirs=10, chance=6, hidden=9)
        self.assertFalse(worse["mean regret at 60 against the best of Optuna (gp/reject/worst)"])
        self.assertFalse(worse["families not below random search at 60"])
        self.assertFalse(worse["names hidden at 60, against ours with names"])

    def test_a_variant_without_studies_of_an_instance_is_left_out(self):
        document = self.document(ours=5, theirs=10, chance=12, hidden=5)
        document["optuna"] = [r for r in document["optuna"] if not (r["variant"].startswith("gp") and r["instance"] == 1)]
        table = lab_report.Table(document)
        self.assertEqual(table.best_optuna(60), "tpe/reject/zero")
        self.assertEqual(table.incomplete, {"gp/reject/worst": 1})


class Telling(unittest.TestCase):
    def test_rejections_without_end_are_told_once_each(self):
        description = {**DESCRIPTION, "rules": [{"knobs": ["workers"], "allowed": []}]}
        study = optuna_study.optuna.create_study(sampler=optuna_study.make_sampler("random", 1, False))
        encoding = optuna_study.Encoding(description, "reject", flat=True)
        encoding.derived = {}
        trial, levels = optuna_study.ask(study, encoding, "zero", 0.0)
        self.assertIsNone(levels)
        optuna_study.tell(study, trial, "zero", None, 0.0)
        self.assertEqual(len(study.trials), optuna_study.MOST_REJECTIONS)


if __name__ == "__main__":
    unittest.main()
