"""The model of failures.cpp in SimPy: nodes that fail and are repaired. Prints one JSON object.

Usage: nodes.py [--nodes N] [--days D] [--work DAYS] [--repair DAYS]
"""
import argparse
import importlib.metadata
import json
import random
import time

import simpy


def node(environment, state, work, repair):
    while True:
        yield environment.timeout(random.expovariate(1 / work))
        state.change(environment.now, 1)
        yield environment.timeout(random.expovariate(1 / repair))
        state.change(environment.now, -1)


class State:
    def __init__(self):
        self.events, self.down, self.down_days, self.now = 0, 0, 0.0, 0.0

    def change(self, now, by):
        self.events += 1
        self.down_days += self.down * (now - self.now)
        self.now = now
        self.down += by


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=12500)
    parser.add_argument("--days", type=float, default=30)
    parser.add_argument("--work", type=float, default=1.0)
    parser.add_argument("--repair", type=float, default=1 / 12)
    given = parser.parse_args()
    random.seed(1)
    before = time.process_time()
    environment, state = simpy.Environment(), State()
    for _ in range(given.nodes):
        environment.process(node(environment, state, given.work, given.repair))
    environment.run(until=given.days)
    seconds = time.process_time() - before
    print(json.dumps({"nodes": given.nodes, "days": given.days, "events": state.events, "core_seconds": seconds,
                      "events_per_second": state.events / seconds, "mean_down": state.down_days / state.now,
                      "expected_down": given.nodes * given.repair / (given.work + given.repair),
                      "version": importlib.metadata.version("simpy")}))


if __name__ == "__main__":
    main()
