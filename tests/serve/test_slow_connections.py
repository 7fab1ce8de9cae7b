"""Ten thousand connections that send a byte now and then: `lockstep serve` answers the others as if they were not there."""
import pathlib
import resource
import selectors
import socket
import tempfile
import time
import unittest

from served import Run, Server, Stream

MANY = 10_000
BEGINNING = b"GET /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nX-Slow: "


class SlowConnections(unittest.TestCase):
    def open_many(self, port: int, count: int) -> list[socket.socket]:
        opened = []
        for number in range(count):
            source = f"127.0.{1 + number // 5000}.1"  # one address has 28,000 ports
            connection = socket.socket()
            connection.setblocking(False)
            connection.bind((source, 0))
            connection.connect_ex(("127.0.0.1", port))
            opened.append(connection)
            if number % 100 == 99:
                time.sleep(0.02)  # the queue of those not accepted yet is short
        return opened

    def drip(self, connections: list[socket.socket], data: bytes) -> int:
        sent = 0
        for connection in connections:
            try:
                sent += connection.send(data) > 0
            except OSError:
                pass
        return sent

    def test_others_are_answered_and_memory_is_bounded(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and hard < MANY + 200:
            self.skipTest(f"this machine grants {hard} open files")
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, MANY + 5000), hard))
        home = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        run = Run(home, "20261118-010101-aaaaaa-one")
        run.steps(200)
        with Server(home) as server:
            stream = Stream(server, f"/api/v1/runs/{run.id}/stream")
            stream.next("tick")
            threads = len(list(pathlib.Path(f"/proc/{server.process.pid}/task").iterdir()))
            resident = server.resident_bytes()
            slow = self.open_many(server.port, MANY)
            longest, rounds = 0.0, 0
            end = time.monotonic() + 30
            while time.monotonic() < end:
                self.drip(slow, BEGINNING if rounds == 0 else b"a")
                began = time.monotonic()
                self.assertEqual(server.ask("/api/v1/runs")[0], 200)
                self.assertEqual(server.ask("/")[0], 200)
                longest = max(longest, time.monotonic() - began)
                rounds += 1
                run.step(200 + rounds, loss=1.0)
            self.assertEqual(stream.next("tick")[0], "tick")  # a viewer that was there is still served
            grown = server.resident_bytes() - resident
            now = len(list(pathlib.Path(f"/proc/{server.process.pid}/task").iterdir()))
            print(f"{MANY} slow connections: {rounds} rounds, two answers in at most {longest:.3f} s, "
                  f"{grown / 2**20:.1f} MiB more, {now} threads", flush=True)
            self.assertEqual(now, threads)
            self.assertLess(grown, 200 << 20)
            self.assertLess(longest, 5.0)
            for connection in slow:
                connection.close()
            deadline = time.monotonic() + 60
            while server.open_files() > 100 and time.monotonic() < deadline:
                time.sleep(0.2)
            self.assertLess(server.open_files(), 100)
            stream.close()


if __name__ == "__main__":
    unittest.main()
