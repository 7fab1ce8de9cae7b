"""A worker for studies of the tuner: a surface with a memory cliff and noise keyed by trial and seed.

  --seed N            of the noise
  --seconds S         virtual seconds of a trial (default 40; failures take a quarter)
  --honest            trials take what they are given: budget_seconds, at most --seconds
  --sleep S           real seconds of a trial
  --log FILE          appends the number of every trial that was asked for
  --report            says every sample when it has it, and ends where it is told to
  --memory            answers with memory_bytes, too
  --misbehave N:HOW   trial N: die, exit, hang, garbage, silence, broken, nan, empty, negative, typo, word, twice, noise
"""
import argparse
import json
import math
import os
import random
import sys
import time


def throughput(config):
    """Higher is better; None where it runs out of memory."""
    micro, workers = config["micro_batch"], config["num_workers"]
    if micro * (2 if config["recompute"] == "none" else 1) > 16:
        return None
    speed = 1000 * micro / (micro + 2.0)
    speed *= 0.8 if config["recompute"] == "full" else 1.0
    speed *= 1 - 0.3 * math.exp(-workers)
    speed *= 1 + 0.02 * math.log2(config.get("prefetch_factor", 1))
    speed *= {"Ring": 1.0, "Tree": 1.12}[config["NCCL_ALGO"]]
    return speed * (1 - 0.02 * abs(math.log2(config["bucket_mib"] / 16)))


def answer(request, options):
    noise = random.Random(f"{options.seed}/{request['trial']}")
    launch = math.exp(noise.gauss(0, 0.015))
    speed = throughput(request["config"])
    seconds = min(options.seconds, request["budget_seconds"]) if options.honest else options.seconds
    if speed is None:
        return {"failed": "oom", "seconds": seconds / 4}
    count = max(1, int(10 * seconds / options.seconds)) if options.seconds > 0 else 10
    samples = [speed * launch * math.exp(noise.gauss(0, 0.02)) for _ in range(count)]
    if options.report:
        samples = report(samples, request, options)
        seconds *= len(samples) / count
    reply = {"samples": samples, "seconds": seconds}
    if options.memory:
        reply["values"] = {"memory_bytes": memory(request["config"])}
    return reply


def memory(config):
    return 1e9 * (4 + config["micro_batch"] * (2 if config["recompute"] == "none" else 1))


def report(samples, request, options):
    """Those that were measured before somebody said that the trial is hopeless."""
    for made, sample in enumerate(samples, 1):
        time.sleep(options.sleep)
        print(json.dumps({"trial": request["trial"], "sample": sample}), flush=True)
        time.sleep(0.05)
        if "stop_file" in request and os.path.exists(request["stop_file"]):
            return samples[:made]
    return samples


def misbehave(how):
    """What is printed instead of the answer; some ways do not return."""
    if how == "die":
        print("torch.cuda.OutOfMemoryError: CUDA out of memory", file=sys.stderr, flush=True)
        os.kill(os.getpid(), 11)
    if how == "exit":
        print("ValueError: something else", file=sys.stderr, flush=True)
        sys.exit(1)
    if how == "hang":
        time.sleep(1000)
    return {"garbage": "this is no answer", "silence": "", "broken": '{"samples": [1, 2', "nan": '{"samples": [NaN]}',
            "empty": '{"samples": []}', "negative": '{"samples": [-5]}', "typo": '{"sample": [5]}',
            "word": '{"failed": "gremlins", "seconds": 1}'}[how]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--honest", action="store_true")
    parser.add_argument("--sleep", type=float, default=0)
    parser.add_argument("--log")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--misbehave", action="append", default=[])
    options = parser.parse_args()
    ways = dict(entry.split(":") for entry in options.misbehave)
    for line in sys.stdin:
        request = json.loads(line)
        number = request["trial"]
        if options.log:
            with open(options.log, "a") as log:
                log.write(f"{number}\n")
        if not options.report:
            time.sleep(options.sleep)
        how = ways.get(str(number), ways.get("all"))
        if how in ("noise", "twice"):
            print("NCCL version 2.30.7+cuda13.0", flush=True)
            reply = json.dumps(answer(request, options))
            print(reply if how == "noise" else f"{reply}\n{reply}", flush=True)
        elif how:
            print(misbehave(how), flush=True)
        else:
            print(json.dumps(answer(request, options)), flush=True)


if __name__ == "__main__":
    main()
