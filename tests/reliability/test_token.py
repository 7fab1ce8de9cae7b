"""A token in the environment is for runs on several machines; it must not hinder a run on one."""
from drills import *


class Token(Drill):
    def test_an_exported_token_does_not_break_a_local_run(self):
        self.assertEqual(self.train(self.text_job(ranks=2, steps=3), environment={"LOCKSTEP_TOKEN": "abc"})["steps"], 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
