#!/usr/bin/env python3
"""Writes a generated image data set as NumPy arrays, for jobs with `data: {kind: images}`.

    make_image_arrays.py FOLDER [--train 2048] [--test 0] [--size 224] [--classes 1000] [--noise 30] [--seed 1]

Every class has its own colours and its own waves across the image; every image shifts them at random and adds noise. The same
seed gives the same bytes. train-images.npy: uint8 [n, size, size, 3]; train-labels.npy: int64 [n]; test-*.npy alike. Needs
NumPy.
"""

import argparse
import pathlib

import numpy as np


def write_pair(folder, stem, count, options, rng, waves):
    labels = rng.integers(0, options.classes, count)
    images = np.lib.format.open_memmap(folder / f"{stem}-images.npy", mode="w+", dtype=np.uint8,
                                       shape=(count, options.size, options.size, 3))
    # Drawn once and read from random places: Gaussian noise is slow to draw.
    pool = (rng.standard_normal(1 << 22) * options.noise).astype(np.float32)
    place = np.arange(options.size, dtype=np.float32) / options.size
    pixels = options.size * options.size * 3
    for i, label in enumerate(labels):
        mean, amplitude, fx, fy = waves[label]
        phase_x, phase_y = rng.random(2)
        x = np.sin(2 * np.pi * (place[:, None] + phase_x) * fx)  # [size, 3]
        y = np.cos(2 * np.pi * (place[:, None] + phase_y) * fy)
        start = rng.integers(0, len(pool) - pixels)
        image = mean + amplitude * (y[:, None, :] + x[None, :, :]) + pool[start:start + pixels].reshape(options.size, -1, 3)
        images[i] = np.clip(image, 0, 255)
    images.flush()
    np.save(folder / f"{stem}-labels.npy", labels.astype(np.int64))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--train", type=int, default=2048)
    parser.add_argument("--test", type=int, default=0)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--noise", type=float, default=30.0, help="standard deviation in grey levels")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.train < 1 or options.test < 0 or not 1 <= options.size <= 1024 or options.classes < 1:
        parser.error("--train and --classes must be at least 1, --test at least 0, --size 1 to 1024")
    options.folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(options.seed)
    waves = [(rng.uniform(96, 160, 3).astype(np.float32), rng.uniform(15, 40, 3).astype(np.float32),
              rng.integers(1, 9, 3), rng.integers(1, 9, 3)) for _ in range(options.classes)]
    write_pair(options.folder, "train", options.train, options, rng, waves)
    if options.test:
        write_pair(options.folder, "test", options.test, options, rng, waves)
    print(f"{options.folder}: {options.train} training and {options.test} test images of {options.size}x{options.size}")


if __name__ == "__main__":
    main()
