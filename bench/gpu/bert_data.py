"""Writes a labelled set of made-up sentences and the vocabulary that turns every word of them into one token, so that BERT
trains on sequences of a known number of real tokens without any download.

usage: bert_data.py FOLDER [--sentences 2048] [--words 400]
FOLDER gets vocab.txt (30522 entries, BERT's special ones first) and train.tsv (label<TAB>sentence). The label says whether the
sentence's first word comes from the first half of the vocabulary.
"""
import argparse
import pathlib
import random

VOCAB = 30522


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--sentences", type=int, default=2048)
    parser.add_argument("--words", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    a.folder.mkdir(parents=True, exist_ok=True)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [f"w{i}" for i in range(VOCAB - len(special))]
    (a.folder / "vocab.txt").write_text("\n".join(special + words) + "\n")
    draw = random.Random(a.seed)
    with open(a.folder / "train.tsv", "w") as out:
        for _ in range(a.sentences):
            places = [draw.randrange(len(words)) for _ in range(a.words)]
            out.write(f"{int(places[0] < len(words) // 2)}\t{' '.join(words[p] for p in places)}\n")


if __name__ == "__main__":
    main()
