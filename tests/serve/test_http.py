"""`lockstep serve` as browsers and programs use it."""
import contextlib
import gzip
import json
import os
import pathlib
import socket
import stat
import subprocess
import tempfile
import unittest

import served
from served import HOSTILE, LOCKSTEP, Run, Server, Stream


class WithServer(unittest.TestCase):
    flags: tuple = ()

    def setUp(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.home = pathlib.Path(folder) / "home"
        self.home.mkdir()
        self.prepare()
        self.server = self.enterContext(Server(self.home, *self.flags))

    def prepare(self):
        self.run = Run(self.home, "20261118-010101-aaaaaa-one", HOSTILE)
        self.run.steps(200)


class Api(WithServer):
    def test_lists_runs_and_tells_one(self):
        runs = self.server.json("/api/v1/runs")["runs"]
        self.assertEqual([run["id"] for run in runs], [self.run.id])
        self.assertEqual(runs[0]["name"], HOSTILE)
        self.assertEqual(runs[0]["status"], "running")
        self.assertEqual(runs[0]["steps"], 200)
        whole = self.server.json(f"/api/v1/runs/{self.run.id}")
        self.assertIn("loss", whole["metrics"])
        self.assertEqual(whole["ranks"], [0, 1])
        curve = self.server.json(f"/api/v1/runs/{self.run.id}/series?metric=loss&points=20")
        self.assertEqual(len(curve["steps"]), 20)
        self.assertEqual(len(self.server.json(f"/api/v1/runs/{self.run.id}/heatmap")["values"]), 2)

    def test_keeps_connections_and_answers_in_order(self):
        with contextlib.closing(self.server.connect()) as connection:
            for points in (5, 7, 9):
                connection.request("GET", f"/api/v1/runs/{self.run.id}/series?points={points}")
                self.assertEqual(len(json.loads(connection.getresponse().read())["steps"]), points)
        with socket.create_connection(("127.0.0.1", self.server.port), 60) as pipe:  # two requests at once
            pipe.sendall(b"GET /api/v1/studies HTTP/1.1\r\nHost: localhost\r\n\r\n"
                         b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            text = b"".join(iter(lambda: pipe.recv(65536), b""))
        self.assertLess(text.index(b"200 OK"), text.index(b"404 Not Found"))

    def test_packs_large_answers_and_does_not_repeat_them(self):
        path = f"/api/v1/runs/{self.run.id}/series"
        status, headers, plain = self.server.ask(path)
        self.assertEqual((status, headers.get("Content-Encoding")), (200, None))
        status, headers, packed = self.server.ask(path, headers={"Accept-Encoding": "gzip"})
        if headers["Content-Encoding"] == "gzip":
            self.assertEqual(gzip.decompress(packed), plain)
            self.assertLess(len(packed), len(plain) / 2)
        status, _, body = self.server.ask(path, headers={"Accept-Encoding": "gzip", "If-None-Match": headers["ETag"]})
        self.assertEqual((status, body), (304, b""))

    def test_head_is_get_without_a_body(self):
        for path in ("/", "/api/v1/runs", f"/api/v1/runs/{self.run.id}/stream"):
            status, headers, body = self.server.ask(path, "HEAD")
            self.assertEqual((status, body), (200, b""), path)
        self.assertEqual(self.server.ask("/", "HEAD")[1]["Content-Length"], str(len(self.server.ask("/")[2])))

    def test_a_page_is_there_and_safe(self):
        status, headers, body = self.server.ask("/")
        self.assertEqual(status, 200)
        self.assertIn(b"Lockstep", body)
        policy = headers["Content-Security-Policy"]
        self.assertNotIn("unsafe", policy)
        self.assertIn("frame-ancestors 'none'", policy)
        self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
        self.assertEqual(headers["Referrer-Policy"], "no-referrer")
        self.assertIsNone(headers["Access-Control-Allow-Origin"])

    def test_tags(self):
        path = f"/api/v1/runs/{self.run.id}/tags"
        tags = {"tags": ["baseline", "<img src=x onerror=alert(1)>"]}
        status, _, body = self.server.ask(path, "POST", {"Content-Type": "application/json"}, json.dumps(tags))
        self.assertEqual((status, json.loads(body)["tags"]), (200, sorted(tags["tags"])))
        self.assertEqual(self.server.json("/api/v1/runs?tag=baseline")["runs"][0]["tags"], sorted(tags["tags"]))
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):  # what a form of another site can send
            self.assertEqual(self.server.ask(path, "POST", {"Content-Type": kind}, json.dumps(tags))[0], 400)

    def test_hostile_names_come_back_as_data(self):
        status, headers, body = self.server.ask("/api/v1/runs")
        self.assertEqual(headers["Content-Type"], "application/json")
        self.assertEqual(json.loads(body)["runs"][0]["name"], HOSTILE)
        self.assertNotIn(b"\x1b", body)


class Streams(WithServer):
    def test_ticks_events_and_the_end_arrive(self):
        stream = Stream(self.server, f"/api/v1/runs/{self.run.id}/stream")
        self.assertEqual(stream.response.headers["Content-Type"], "text/event-stream")
        _, place, tick = stream.next("tick")
        self.assertEqual(tick["step"], 200)
        self.run.step(201, loss=0.5)
        _, _, tick = stream.next("tick")
        self.assertEqual((tick["step"], tick["values"]["loss"]), (201, 0.5))
        self.run.event("spike", HOSTILE, "warning")
        self.assertEqual(stream.next("event")[2]["message"], HOSTILE)
        self.run.end("failed")
        _, place, end = stream.next("end")
        self.assertEqual(end["status"], "failed")
        back = Stream(self.server, f"/api/v1/runs/{self.run.id}/stream", {"Last-Event-ID": place})
        self.assertEqual(back.next()[0], "end")  # neither the tick nor the event again
        for one in (stream, back):
            one.close()

    def test_the_list_of_runs(self):
        stream = Stream(self.server, "/api/v1/stream")
        self.server.json("/api/v1/runs")
        other = Run(self.home, "20261118-020202-bbbbbb-two")
        changed = []
        while other.id not in changed:
            changed += stream.next("runs")[2]["changed"]
        stream.close()

    def test_a_run_that_is_not_there_has_no_stream(self):
        self.assertEqual(self.server.ask("/api/v1/runs/nothing/stream")[0], 404)

    def test_viewers_that_leave_cost_nothing(self):
        self.server.json("/api/v1/runs")
        before = self.server.open_files()
        for _ in range(50):
            stream = Stream(self.server, f"/api/v1/runs/{self.run.id}/stream")
            stream.next("tick")
            stream.close()
        for _ in range(600):
            if self.server.open_files() <= before + 2:
                break
            served.time.sleep(0.1)
        self.assertLessEqual(self.server.open_files(), before + 2)


class WithToken(WithServer):
    def prepare(self):
        super().prepare()
        self.file = self.home.parent / "token"
        self.flags = ("--token-file", str(self.file))

    def test_everybody_shows_it(self):
        token = self.file.read_text().strip()
        self.assertEqual(stat.S_IMODE(self.file.stat().st_mode), 0o600)
        self.assertEqual(len(token), 64)
        for path in ("/", "/api/v1/runs", "/metrics", f"/api/v1/runs/{self.run.id}/stream"):
            self.assertEqual(self.server.ask(path)[0], 401, path)
            self.assertEqual(self.server.ask(path, headers={"Authorization": "Bearer " + "0" * 64})[0], 401, path)
        self.assertEqual(self.server.ask("/api/v1/runs", headers={"Authorization": f"Bearer {token}"})[0], 200)
        status, headers, _ = self.server.ask("/login", "POST", body=f"token={token}")
        self.assertEqual((status, headers["Location"]), (303, "/"))
        cookie = headers["Set-Cookie"].partition(";")[0]
        self.assertEqual(self.server.ask("/", headers={"Cookie": cookie})[0], 200)
        self.assertIsNone(self.server.ask("/login?token=wrong")[1]["Set-Cookie"])
        arguments = pathlib.Path(f"/proc/{self.server.process.pid}/cmdline").read_text()
        self.assertNotIn(token, arguments)
        self.assertNotIn(token, json.dumps(self.server.ready))
        self.assertNotIn(token, self.server.error_text())


class BeyondLoopback(unittest.TestCase):
    def setUp(self):
        self.home = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "home"

    def refused(self, *flags):
        done = subprocess.run([LOCKSTEP, "serve", "--port", "0", *flags], env={**os.environ, "LOCKSTEP_HOME": str(self.home)},
                              capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 2, done.stderr)
        return done.stderr

    def test_needs_encryption(self):
        self.assertIn("--tls-cert", self.refused("--host", "0.0.0.0"))
        self.assertIn("--token-file", self.refused("--behind-proxy"))
        self.assertIn("--tls-key", self.refused("--tls-cert", "x"))
        self.assertIn("no address", self.refused("--host", "no.such.host.invalid", "--behind-proxy"))

    def test_has_a_token_of_its_own_behind_a_proxy(self):
        with Server(self.home, "--host", "0.0.0.0", "--behind-proxy") as server:
            token_file = pathlib.Path(server.ready["token_file"])
            self.assertEqual(token_file, self.home / "serve-token")
            self.assertEqual(stat.S_IMODE(token_file.stat().st_mode), 0o600)
            self.assertEqual(server.ask("/api/v1/runs")[0], 401)

    def test_a_token_that_others_can_read_is_refused(self):
        file = self.home.parent / "token"
        file.write_text("0123456789abcdef\n")
        file.chmod(0o644)
        done = subprocess.run([LOCKSTEP, "serve", "--port", "0", "--token-file", file], capture_output=True, text=True,
                              env={**os.environ, "LOCKSTEP_HOME": str(self.home)}, timeout=120)
        self.assertEqual(done.returncode, 4)
        self.assertIn("chmod 600", done.stderr)


class Tls(unittest.TestCase):
    def test_speaks_it_and_nothing_older(self):
        import ssl
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        certificate, key = folder / "cert.pem", folder / "key.pem"
        made = subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                               "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate], capture_output=True)
        if made.returncode != 0:
            self.skipTest("openssl(1) is not there")
        (folder / "home").mkdir()
        run = Run(folder / "home", "20261118-010101-aaaaaa-one")
        run.steps(5)
        with Server(folder / "home", "--tls-cert", certificate, "--tls-key", key) as server:
            self.assertTrue(server.ready["url"].startswith("https://"))
            context = ssl.create_default_context(cafile=certificate)
            import http.client
            with contextlib.closing(http.client.HTTPSConnection("localhost", server.port, context=context, timeout=60)) as secure:
                secure.request("GET", "/api/v1/runs")
                self.assertEqual(secure.getresponse().read()[:1], b"{")
                secure.request("GET", f"/api/v1/runs/{run.id}/stream")
                self.assertIn(b"retry", secure.getresponse().readline())
            with socket.create_connection(("127.0.0.1", server.port), 60) as plain:  # not TLS: closed, and others are served
                plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                plain.recv(100)
            with contextlib.closing(http.client.HTTPSConnection("localhost", server.port, context=context, timeout=60)) as secure:
                secure.request("GET", "/")
                self.assertEqual(secure.getresponse().status, 200)


class Ending(unittest.TestCase):
    def test_with_streams_open(self):
        home = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        run = Run(home, "20261118-010101-aaaaaa-one")
        run.steps(5)
        with Server(home) as server:
            streams = [Stream(server, f"/api/v1/runs/{run.id}/stream") for _ in range(5)]
        for stream in streams:
            stream.close()

    def test_a_port_that_is_taken_is_said(self):
        home = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        with Server(home) as server:
            done = subprocess.run([LOCKSTEP, "serve", "--port", str(server.port)], capture_output=True, text=True,
                                  env={**os.environ, "LOCKSTEP_HOME": str(home)}, timeout=120)
            self.assertEqual(done.returncode, 4)
            self.assertIn("--port", done.stderr)


if __name__ == "__main__":
    unittest.main()
