#!/usr/bin/env python3
"""Writes a generated data set in the exact binary format of CIFAR-10.

    make_cifar_like.py FOLDER [--train 10000] [--test 2000] [--noise 40] [--seed 1]

Ten classes, each with its own colours and its own waves across the image; every record shifts them at random and adds
noise, so a convolutional network can learn the classes and a linear model only partly. The same seed gives the same
bytes. Records of 3073 bytes: label, then 32 x 32 red, green and blue bytes. Needs only Python's standard library.
"""

import argparse
import math
import operator
import pathlib
import random

CLASSES = 10
SIDE = 32


def class_waves(rng):
    """Per class and channel: mean brightness, amplitude, and the wave vector of its pattern."""
    return [
        [(rng.uniform(96, 160), rng.uniform(35, 60), rng.randint(1, 4), rng.randint(-4, 4)) for _ in range(3)]
        for _ in range(CLASSES)
    ]


def class_image(waves):
    """Per channel the 32 rows, each twice over: the waves are periodic, so a shifted image is made of slices of them."""
    return [
        [bytes(int(mean + amplitude * math.sin(2 * math.pi * (fx * x + fy * y) / SIDE)) for x in range(SIDE)) * 2
         for y in range(SIDE)]
        for mean, amplitude, fx, fy in waves
    ]


def write_file(path, count, images, noise, rng):
    # Gaussian noise is slow to draw: a pool of it is read from random places.
    limit = int(6 * noise) + 1
    pool = [max(-limit, min(limit, round(rng.gauss(0.0, noise)))) for _ in range(1 << 17)]
    clamp = {value: max(0, min(255, value)) for value in range(-limit, 256 + limit)}
    labels = [i % CLASSES for i in range(count)]
    rng.shuffle(labels)
    size = 3 * SIDE * SIDE
    partial = path.with_name("." + path.name + ".partial")
    with partial.open("wb") as out:
        for label in labels:
            dx, dy, start = rng.randrange(SIDE), rng.randrange(SIDE), rng.randrange(len(pool) - size)
            pixels = b"".join(channel[(y + dy) % SIDE][dx : dx + SIDE] for channel in images[label] for y in range(SIDE))
            noisy = map(clamp.__getitem__, map(operator.add, pixels, pool[start : start + size]))
            out.write(bytes([label]) + bytes(noisy))
    partial.rename(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--train", type=int, default=10000, help="training records (default 10000)")
    parser.add_argument("--test", type=int, default=2000, help="test records (default 2000; 0: none)")
    parser.add_argument("--noise", type=float, default=40.0, help="standard deviation of the noise in grey levels (default 40)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.train < 1 or options.test < 0:
        parser.error("--train must be at least 1 and --test at least 0")
    if not 0 <= options.noise <= 255:
        parser.error("--noise must be between 0 and 255")
    options.folder.mkdir(parents=True, exist_ok=True)
    images = [class_image(waves) for waves in class_waves(random.Random(options.seed))]
    write_file(options.folder / "train.bin", options.train, images, options.noise, random.Random(f"{options.seed} train"))
    if options.test:
        write_file(options.folder / "test_batch.bin", options.test, images, options.noise, random.Random(f"{options.seed} test"))
    print(f"{options.folder}: {options.train} training and {options.test} test records in CIFAR-10's binary format")


if __name__ == "__main__":
    main()
