"""What the reliability tests share: the end-to-end harness, and ranks started as torchrun starts them."""
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"]) / "tests" / "end_to_end"))
from harness import *  # noqa: E402,F403
import harness  # noqa: E402


class Drill(harness.EndToEnd):
    def start(self, *arguments, **options):
        """As in the harness, and ended with the test whatever becomes of it."""
        process = super().start(*arguments, **options)
        self.addCleanup(process.kill)
        return process

    def start_ranks(self, job, *per_rank, environment=None):
        """One process per entry of `per_rank`, the arguments of that rank."""
        port = str(harness.free_port())
        return [self.start("train", job, *map(str, arguments), environment={
            "RANK": str(rank), "WORLD_SIZE": str(len(per_rank)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            **(environment or {})}) for rank, arguments in enumerate(per_rank)]

    def finish(self, processes, timeout=240):
        """[(exit code, stdout, stderr)] of processes that were started."""
        ended = []
        for process in processes:
            try:
                out, err = process.communicate(timeout=timeout)
            except harness.subprocess.TimeoutExpired:
                for one in processes:
                    one.kill()
                self.fail(f"still running after {timeout} s")
            ended.append((process.returncode, out, err))
        return ended

    def events(self, kind):
        """Messages of one kind of event, of every run in the store."""
        import sqlite3
        path = pathlib.Path(self.environment["LOCKSTEP_HOME"]) / "runs.db"
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5) as store:
            return [row[0] for row in store.execute("SELECT message FROM events WHERE kind = ?", (kind,))]

    def saved_steps(self, folder):
        return sorted(int(path.name.split("-")[1]) for path in pathlib.Path(folder).glob("step-*"))


__all__ = [*harness.__all__, "Drill", "os", "pathlib"]
