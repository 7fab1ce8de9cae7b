"""What strangers may send to `lockstep serve`: nothing leaks, nothing stops."""
import json
import pathlib
import random
import socket
import tempfile
import unittest

from served import Run, Server

SECRET = "canary-9c1f-of-a-file-outside"
SEED = 20261118
VALID = [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
         b"GET /api/v1/runs?limit=5&q=x HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept-Encoding: gzip\r\n\r\n",
         b"GET /api/v1/runs/20261118-010101-aaaaaa-one/series?metric=loss&points=5 HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
         b"POST /api/v1/runs/20261118-010101-aaaaaa-one/tags HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
         b"Content-Length: 14\r\n\r\n{\"tags\":[\"a\"]}",
         b"POST /login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"]
WORDS = [b"\r\n", b"\r\n\r\n", b"\x00", b"%", b"%2e%2e/", b"../", b"Content-Length: 99999999999999999999\r\n",
         b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n", b"Host: evil\r\n", b"\xff\xfe", b"A" * 5000, b":", b" ",
         b"HTTP/9.9", b"ffffffffffffffff\r\n", b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\n", b"Range: bytes=0-1\r\n"]


def mutated(random_source: random.Random) -> bytes:
    if random_source.random() < 0.15:
        return random_source.randbytes(random_source.randrange(1, 400))
    data = bytearray(random_source.choice(VALID))
    for _ in range(random_source.randrange(1, 8)):
        place = random_source.randrange(len(data) + 1)
        match random_source.randrange(4):
            case 0:
                data[place:place] = random_source.choice(WORDS)
            case 1:
                del data[place:place + random_source.randrange(1, 20)]
            case 2 if place < len(data):
                data[place] = random_source.randrange(256)
            case _:
                data[place:place] = data[: random_source.randrange(len(data) + 1)]
    return bytes(data)


def exchange(port: int, data: bytes, wait: float = 0.2) -> bytes:
    """What comes back, up to `wait` seconds of silence."""
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        answer = b""
        try:
            connection.sendall(data)
            connection.settimeout(wait)
            while part := connection.recv(65536):
                answer += part
        except OSError:
            pass
        return answer


class Hostile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        root = pathlib.Path(cls.folder.name)
        (root / "secret.txt").write_text(SECRET)
        home = root / "home"
        (home / "runs").mkdir(parents=True)
        (home / "secret.txt").write_text(SECRET)
        (home / "runs" / "secret.txt").write_text(SECRET)
        cls.run_ = Run(home, "20261118-010101-aaaaaa-one")
        cls.run_.steps(50)
        (cls.run_.folder / "secret.txt").write_text(SECRET)
        cls.server = Server(home)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()
        cls.folder.cleanup()

    def alive(self):
        self.assertEqual(self.server.ask("/api/v1/runs")[0], 200)

    def test_no_path_leads_outside(self):
        for path in ("/../secret.txt", "/..%2fsecret.txt", "/%2e%2e/secret.txt", "/assets/../../secret.txt", "//secret.txt",
                     "/api/v1/runs/../../secret.txt", "/api/v1/runs/..%2f..%2fsecret.txt", "/api/v1/runs/%2e%2e/secret.txt",
                     "/api/v1/runs/secret.txt", "/secret.txt", "/runs/secret.txt", "/runs.db", "/token", "/serve-token",
                     "/api/v1/runs/20261118-010101-aaaaaa-one%2fsecret.txt", "/api/v1/runs/20261118-010101-aaaaaa-one/secret.txt",
                     "/..\\secret.txt", "/%5c..%5csecret.txt", "/%00", "/etc/passwd", "/%c0%ae%c0%ae/secret.txt",
                     "/api/v1/studies/..%2fsecret", "http://localhost/secret.txt", "/proc/self/environ"):
            answer = exchange(self.server.port, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode(), 60)
            self.assertIn(answer[:12], (b"HTTP/1.1 400", b"HTTP/1.1 404"), path)
            self.assertNotIn(SECRET.encode(), answer)
            self.assertNotIn(b"root:", answer)

    def test_other_sites_learn_nothing(self):
        for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Host": "evil.example"},
                        {"Host": f"evil.example:{self.server.port}"}, {"Sec-Fetch-Site": "cross-site"},
                        {"Origin": "http://localhost:1"}, {"Host": "localhost", "Origin": "http://localhost.evil.example"}):
            for method in ("GET", "POST", "OPTIONS", "HEAD"):
                status, answered, body = self.server.ask("/api/v1/runs", method, headers)
                self.assertIn(status, (403, 421), (headers, method))
                self.assertIsNone(answered["Access-Control-Allow-Origin"])
                self.assertNotIn(b"aaaaaa", body)

    def test_two_hosts_or_none_are_refused(self):
        for host in (b"", b"Host: localhost\r\nHost: evil.example\r\n", b"Host: localhost evil\r\n"):
            answer = exchange(self.server.port, b"GET /api/v1/runs HTTP/1.1\r\n" + host + b"Connection: close\r\n\r\n", 60)
            self.assertTrue(answer.startswith(b"HTTP/1.1 400"), answer[:100])

    def test_too_much_is_refused(self):
        huge = b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: " + b"a" * 20000 + b"\r\n\r\n"
        self.assertTrue(exchange(self.server.port, huge, 60).startswith(b"HTTP/1.1 431"))
        body = b"POST /api/v1/runs/x/tags HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
        self.assertTrue(exchange(self.server.port, body + b"x" * 70000, 60).startswith(b"HTTP/1.1 413"))
        many = b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"A%d: b\r\n" % i for i in range(5000)) + b"\r\n"
        self.assertTrue(exchange(self.server.port, many, 60).startswith(b"HTTP/1.1 431"))
        long = b"GET /" + b"a" * 10000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
        self.assertTrue(exchange(self.server.port, long, 60).startswith(b"HTTP/1.1 400"))
        deep = b"[" * 30000
        answer = exchange(self.server.port, b"POST /api/v1/runs/20261118-010101-aaaaaa-one/tags HTTP/1.1\r\nHost: localhost\r\n"
                          b"Content-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(deep) + deep, 60)
        self.assertTrue(answer.startswith(b"HTTP/1.1 400"), answer[:200])
        self.alive()

    def test_fuzzed_requests_stop_nothing(self):
        source = random.Random(SEED)
        before = self.server.open_files()
        resident = self.server.resident_bytes()
        for number in range(1500):
            data = mutated(source)
            answer = exchange(self.server.port, data, 0.005)
            self.assertTrue(not answer or answer.startswith(b"HTTP/1."), (number, data, answer[:100]))
            self.assertNotIn(b" 500 ", answer.split(b"\r\n")[0], (number, data))
            self.assertNotIn(SECRET.encode(), answer)
            self.assertIsNone(self.server.process.poll(), (number, data))
        self.alive()
        self.assertLess(self.server.resident_bytes(), resident + (64 << 20))
        self.assertLess(self.server.open_files(), before + 200)  # what was cut off is closed after some seconds

    def test_questions_out_of_bounds_are_answered(self):
        for query in ("points=0", "points=1e9", "from=-5", "to=99999999999999999999", "rank=-1", "rank=99999999999", "metric=" + "x" * 3000,
                      "points=NaN", "from=5&to=1", "metric=%00", "metric=' OR 1=1 --", "metric=%25s%25n"):
            status, _, body = self.server.ask(f"/api/v1/runs/{self.run_.id}/series?{query.replace(' ', '%20')}")
            self.assertIn(status, (200, 400), query)
            json.loads(body)
        self.alive()


if __name__ == "__main__":
    unittest.main()
