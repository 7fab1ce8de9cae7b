"""The driver of a run on Ray: one actor per node in a placement group, each with a `lockstep launch` agent below it.

It gets its orders in LOCKSTEP_RAY_START (ray.cpp), needs nothing but ray, and ends with the exit code of the run. An actor
that is lost is restarted by Ray, where its machine is gone on another one; its agent then joins the run again under the
same number. The secret that agents share is made here: it never leaves the cluster.
"""
import base64
import ctypes
import json
import os
import random
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

RETRY, INTERRUPTED, ENVIRONMENT = 75, 130, 4  # exit codes of lockstep
FIRST_PORT, LAST_PORT = 20000, 29999  # below those that kernels hand out
POLL_SECONDS = 1.0
REVIVE_SECONDS = 1.0  # between two looks at an actor that is being restarted
ALONE_SECONDS = 20.0  # an agent that ended badly is started again when the others go on for so long
END_SECONDS = 120.0  # for the others, after the run has ended
SHORT_ROUND_SECONDS = 60.0
MOST_SHORT_ROUNDS = 3
OWN_VARIABLES = ("LOCKSTEP_RAY_DRIVER", "LOCKSTEP_RAY_START", "LOCKSTEP_RAY_PROGRAM")
MOST_BAD_ENDS = 3  # of one agent, without the others ending too


def note(text):
    print("lockstep: note: " + text, file=sys.stderr, flush=True)


class Node:
    """An actor: one agent at a time, on the machine that Ray chose."""

    def __init__(self):
        self.held = None
        self.agent = None
        self.streams = {}
        threading.Thread(target=self.end_with_parent, args=(os.getppid(),), daemon=True).start()

    @staticmethod
    def end_with_parent(parent):
        """Ray gives the place to another actor when it loses this machine's raylet: this one must not go on."""
        while os.getppid() == parent:
            time.sleep(POLL_SECONDS)
        os._exit(1)

    def address(self, wanted):
        """Where the agent will be found, (address, port). The port is held until the agent starts."""
        here = ray.util.get_node_ip_address()
        if wanted and wanted[0] == here:
            return here, wanted[1]
        while self.held is None:
            probe = socket.socket()
            try:
                probe.bind(("", random.randint(FIRST_PORT, LAST_PORT)))
                self.held = probe
            except OSError:
                probe.close()
        return here, self.held.getsockname()[1]

    def start(self, executable, submission, directory):
        """Returns the pid of the agent, or a sentence that says why there is none."""
        if self.agent is not None:  # Ray lost sight of this actor for a moment
            return self.agent.pid
        if directory and os.path.isdir(directory):
            submission["directory"] = directory
        variables = {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}
        variables["LOCKSTEP_SUBMISSION"] = json.dumps(submission)
        library = ctypes.CDLL(None)

        def before():  # the agent dies with this process, and hears signals that Ray's own processes block
            library.prctl(1, signal.SIGKILL)
            signal.pthread_sigmask(signal.SIG_SETMASK, set())

        if self.held is not None:
            self.held.close()
            self.held = None
        try:
            self.agent = subprocess.Popen([executable, "launch", "--submission", "env"], env=variables,
                                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                          preexec_fn=before)
        except OSError as error:
            return "%s cannot be started on %s: %s" % (executable, socket.gethostname(), error.strerror)
        self.streams = {self.agent.stdout.fileno(): 0, self.agent.stderr.fileno(): 1}
        return self.agent.pid

    def poll(self, seconds):
        """(standard output, standard error, exit code or None) since the last call. None: no agent was started."""
        if self.agent is None:
            return None
        said = [b"", b""]
        for stream in select.select(list(self.streams), [], [], seconds)[0] if self.streams else ():
            text = os.read(stream, 1 << 20)
            said[self.streams[stream]] += text
            if not text:
                del self.streams[stream]
        code = None
        if not self.streams:
            code = self.agent.wait()
            self.agent.stdout.close()
            self.agent.stderr.close()
            self.agent = None
        return said[0], said[1], code

    def signal(self, number):
        if self.agent is not None:
            self.agent.send_signal(number)


class Lines:
    """Whole lines of one agent; those of its standard error say which node they are from."""

    def __init__(self, node):
        self.prefixes = (b"", b"[node %d] " % node if node else b"")
        self.partial = [b"", b""]

    def show(self, texts, last=False):
        for i, text in enumerate(texts):
            *whole, self.partial[i] = (self.partial[i] + text).split(b"\n")
            if last and self.partial[i]:
                whole.append(self.partial[i])
                self.partial[i] = b""
            target = (sys.stdout, sys.stderr)[i].buffer
            for line in whole:
                target.write(self.prefixes[i] + line + b"\n")
            target.flush()


def code_of_run(codes):
    """An agent that did all its work speaks for the run, one that was cut off does not."""
    if 0 in codes:
        return 0
    for code in codes:
        if code > 0 and code != RETRY:
            return code
    return RETRY if codes[0] == RETRY else 1


class Driver:
    def __init__(self, start):
        self.start = start
        self.count = start["nodes"]
        self.stops = 0
        self.told = 0
        self.actors = []
        self.group = None
        self.addresses = [None] * self.count
        start["submission"]["environment"]["LOCKSTEP_TOKEN"] = secrets.token_hex(32)

    def stop(self, *_):
        self.stops += 1

    # --- places --------------------------------------------------------------------------------------------------------
    def place(self):
        bundle = self.start["bundle"]
        fit = sum(1 for node in ray.nodes() if node["Alive"] and
                  all(node["Resources"].get(name, 0) >= amount for name, amount in bundle.items()))
        strategy = self.start["placement"]
        if not strategy:
            strategy = "STRICT_SPREAD" if fit >= self.count else "SPREAD"
            if fit < self.count:
                note("%d machines of this cluster can hold a node and the run has %d: some may share a machine "
                     "(launch.ray.placement: strict_spread waits for more)" % (fit, self.count))
        self.group = placement_group([dict(bundle) for _ in range(self.count)], strategy=strategy)
        waited = 0
        while not self.group.wait(timeout_seconds=1):
            if self.stops:
                sys.exit(INTERRUPTED)
            if waited % 60 == 5:
                note("waiting for %d x %s (%s); free now: %s" % (self.count, bundle, strategy, ray.available_resources()))
            waited += 1
        self.actors = [self.make_actor(node) for node in range(self.count)]

    def make_actor(self, node):
        bundle = dict(self.start["bundle"])
        options = {"num_cpus": bundle.pop("CPU", 0), "num_gpus": bundle.pop("GPU", 0), "memory": bundle.pop("memory", None)}
        where = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=node)
        return ray.remote(Node).options(resources=bundle, max_restarts=-1, scheduling_strategy=where, **options).remote()

    # --- one round: from the start of all agents to the end of all ---------------------------------------------------------
    def ask(self, node, what, *arguments):
        self.waiting[getattr(self.actors[node], what).remote(*arguments)] = (node, what)

    def find(self, node):
        self.later.pop(node, None)
        self.ask(node, "address", self.addresses[node])

    def launch(self, node):
        submission = json.loads(json.dumps(self.start["submission"]))
        if self.count > 1:
            submission["environment"]["LOCKSTEP_NODES"] = ",".join("%s:%d" % tuple(one) for one in self.addresses)
            submission["environment"]["LOCKSTEP_NODE"] = str(node)
        if self.start["directory_asked"]:
            submission["directory"] = self.start["directory"]
        self.lines[node] = Lines(node)
        self.ask(node, "start", self.start["executable"], submission, self.start["directory"])

    def found(self, node, address):
        before, self.addresses[node] = self.addresses[node], list(address)
        if before and before[0] != address[0]:
            note("node %d is now on %s" % (node, address[0]))
        if self.all_begun:
            self.again.add(node)
            self.launch(node)
        elif all(self.addresses) and not any(what == "address" for _, what in self.waiting.values()):
            self.all_begun = True
            for one in range(self.count):
                self.launch(one)

    def over(self):
        return any(code in (0, INTERRUPTED) for code in self.codes.values())

    def give_up(self, node):
        """It comes too late: an agent that was started now would begin the run anew."""
        self.later.pop(node, None)
        self.codes[node], self.ended[node] = RETRY, time.monotonic()

    def handle(self, node, what, answer):
        if self.over() and (what == "address" or (what == "poll" and answer is None)):
            self.give_up(node)
        elif what == "address":
            self.found(node, answer)
        elif what == "start":
            if isinstance(answer, str):
                print("lockstep: %s; set launch.lockstep to where it is on the machines of the cluster" % answer,
                      file=sys.stderr, flush=True)
                sys.exit(ENVIRONMENT)
            self.ask(node, "poll", POLL_SECONDS)
        elif what == "poll" and answer is None:  # a new actor in the place of a lost one
            self.find(node)
        elif what == "poll":
            hidden = self.over() and node in self.again  # it did not see the end, and says so
            self.lines[node].show((b"" if hidden else answer[0], answer[1]), last=answer[2] is not None)
            if answer[2] is None:
                self.ask(node, "poll", POLL_SECONDS)
            else:
                self.codes[node] = answer[2]
                self.ended[node] = time.monotonic()

    def lost(self, node, what, error):
        if node in self.later or what == "signal":
            return
        if self.stops or self.over():
            self.give_up(node)
            return
        self.later[node] = time.monotonic() + REVIVE_SECONDS
        if self.all_begun and what == "poll":
            note("node %d: its actor was lost (%s); Ray restarts it" % (node, type(error).__name__))
            self.lines[node].show((b"", b""), last=True)

    def tell(self):
        """Agents that run are told as often as this process was."""
        while self.told < self.stops:
            self.told += 1
            for node in range(self.count):
                if node not in self.codes:
                    self.ask(node, "signal", int(signal.SIGTERM))

    def start_again(self, now):
        if self.over():
            looked_for = [reference for reference, (_, what) in self.waiting.items() if what == "address"]
            for node in [*self.later, *(self.waiting.pop(reference)[0] for reference in looked_for)]:
                self.give_up(node)
            return
        for node in [one for one, at in self.later.items() if now >= at]:
            self.find(node)
        if self.stops:
            return
        for node, code in list(self.codes.items()):
            if now - self.ended[node] > ALONE_SECONDS and self.bad_ends.get(node, 0) < MOST_BAD_ENDS:
                self.bad_ends[node] = self.bad_ends.get(node, 0) + 1
                note("node %d: its agent ended with %d while others go on; it is started again" % (node, code))
                del self.codes[node], self.ended[node]
                self.find(node)

    def late(self, now):
        """Agents that are left long after the run has ended."""
        over = [self.ended[node] for node, code in self.codes.items() if code in (0, INTERRUPTED)]
        return bool(over) and now - min(over) > END_SECONDS

    def round(self):
        self.waiting, self.later, self.codes, self.ended, self.lines, self.bad_ends = {}, {}, {}, {}, {}, {}
        self.again = set()  # nodes whose agents were started once more
        self.all_begun = False
        for node in range(self.count):
            self.find(node)
        while len(self.codes) < self.count:
            ready = ray.wait(list(self.waiting), num_returns=1, timeout=POLL_SECONDS)[0] if self.waiting else ()
            for reference in ready:
                node, what = self.waiting.pop(reference)
                try:
                    self.handle(node, what, ray.get(reference))
                except ray.exceptions.RayActorError as error:
                    self.lost(node, what, error)
            if not ready and not self.waiting:
                time.sleep(REVIVE_SECONDS / 4)
            if self.stops and not self.all_begun:
                sys.exit(INTERRUPTED)
            now = time.monotonic()
            self.start_again(now)
            self.tell()
            if self.late(now):
                note("nodes that are left after the end of the run are given up")
                break
        return code_of_run([self.codes[node] for node in sorted(self.codes)])

    def run(self):
        self.place()
        short = 0
        while True:
            began = time.monotonic()
            code = self.round()
            if code != RETRY or self.stops or not self.start["requeue"]:
                return code
            short = short + 1 if time.monotonic() - began < SHORT_ROUND_SECONDS else 0
            if short == MOST_SHORT_ROUNDS:
                return code
            note("the run asked to be started again")


def main():
    start = json.loads(base64.b64decode(os.environ.pop("LOCKSTEP_RAY_START")))
    driver = Driver(start)
    ray.init(log_to_driver=False, logging_level="warning")
    signal.signal(signal.SIGTERM, driver.stop)  # after ray.init, which has its own
    sys.exit(driver.run())


if __name__ == "__main__":
    main()
