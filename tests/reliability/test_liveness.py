"""Processes that hang or die, and strangers at the door: noticed, blamed on whom it was, and survived."""
import socket
import threading

from drills import *


def listening_ports(pids):
    """TCP ports that these processes listen on, by the kernel's tables."""
    inodes = set()
    for pid in pids:
        try:
            links = [os.readlink(link) for link in pathlib.Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            continue
        inodes |= {link[8:-1] for link in links if link.startswith("socket:[")}
    ports = set()
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            ports.add(int(fields[1].split(":")[1], 16))
    return ports


class Stranger(threading.Thread):
    """Connects to every port that a run opens, at once, says `words` and holds the connection."""

    def __init__(self, process, words):
        super().__init__(daemon=True)
        self.process, self.words, self.held, self.over = process, words, {}, False

    def pids(self):
        try:
            children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        except OSError:
            children = []
        return [self.process.pid, *map(int, children)]

    def run(self):
        while not self.over and self.process.poll() is None:
            for port in listening_ports(self.pids()) - set(self.held):
                try:
                    self.held[port] = socket.create_connection(("127.0.0.1", port), timeout=1)
                    self.held[port].sendall(self.words)
                except OSError:
                    continue

    def stop(self):
        self.over = True
        self.join()
        for connection in self.held.values():
            connection.close()


class Strangers(Drill):
    def visited(self, words):
        job = self.text_job(ranks=4, steps=30, communication={"backend": "tcp"})
        whole = self.train(job)["final_loss"]
        process = self.start("train", job, "--json")
        stranger = Stranger(process, words)
        stranger.start()
        (code, out, err), = self.finish([process])
        stranger.stop()
        self.assertEqual(code, 0, out + err)
        self.assertGreater(len(stranger.held), 1)  # the store of the agent is one of them
        last = json.loads(out.strip().splitlines()[-1])
        self.assertEqual(last["restarts"], 0)
        self.assertEqual(last["final_loss"], whole)

    def test_one_that_connects_and_says_nothing_does_not_end_the_run(self):
        self.visited(b"")

    def test_one_that_speaks_of_something_else_does_not_end_the_run(self):
        self.visited(b"GET / HTTP/1.1\r\n\r\n" + bytes(range(256)))


class TheFirstRank(Drill):
    def test_its_death_under_a_launcher_is_blamed_on_it(self):
        job = self.text_job(ranks=3, steps=1000000, communication={"timeout": "10s"},
                            checkpoint={"directory": str(self.folder / "ck"), "every_steps": 5})
        ranks = self.start_ranks(job, [], [], [], environment={"LOCKSTEP_TOKEN": "x" * 32})
        wait_for(lambda: self.saved_steps(self.folder / "ck"))
        ranks[0].kill()
        for code, out, err in self.finish(ranks)[1:]:
            self.assertEqual(code, 1, out + err)
            said = [line for line in err.splitlines() if line.startswith("lockstep: ")][-1]
            self.assertRegex(said, r"rank 0\b.*(ended|closed|lost|died|gone|did not answer)")
            self.assertNotRegex(said.split(":", 2)[-1], r"rank [12] (ended|closed|died|did not answer|was killed)")


class Silence(Drill):
    def test_a_rank_that_is_stopped_is_replaced_after_the_silence_that_the_job_allows(self):
        job = self.text_job(ranks=2, steps=200, recovery={"silence": "3s"})
        whole = self.train(job)["final_loss"]
        process = self.start("train", job, "--json")
        ranks = self.ranks_of(process)
        before = self.recorded_steps()
        wait_for(lambda: self.recorded_steps() != before)
        os.kill(ranks[1], signal.SIGSTOP)
        (code, out, err), = self.finish([process])
        self.assertEqual(code, 0, out + err)
        self.assertIn("rank 1 gave no sign of life for 3 s", err)
        last = json.loads(out.strip().splitlines()[-1])
        self.assertGreaterEqual(last["restarts"], 1)
        self.assertEqual(last["final_loss"], whole)


@unittest.skipUnless(os.environ.get("LOCKSTEP_SLOW"), "a minute of waiting: ctest -L slow")
class Hangs(Drill):
    def stopped(self, choose):
        """Ranks that are stopped for good are replaced, and the result is the undisturbed run's."""
        job = self.text_job(ranks=3, steps=80)
        whole = self.train(job)["final_loss"]
        process = self.start("train", job, "--json")
        ranks = self.ranks_of(process)
        before = self.recorded_steps()
        wait_for(lambda: self.recorded_steps() > before or self.recorded_steps() >= 80)
        for rank in choose(ranks):
            os.kill(ranks[rank], signal.SIGSTOP)
        (code, out, err), = self.finish([process], timeout=600)
        self.assertEqual(code, 0, out + err)
        last = json.loads(out.strip().splitlines()[-1])
        self.assertGreaterEqual(last["restarts"], 1)
        self.assertEqual(last["final_loss"], whole)

    def test_a_rank_that_is_stopped_is_replaced(self):
        self.stopped(lambda ranks: [1])

    def test_all_ranks_stopped_at_once_are_replaced(self):
        self.stopped(lambda ranks: list(ranks))


if __name__ == "__main__":
    unittest.main(verbosity=2)
