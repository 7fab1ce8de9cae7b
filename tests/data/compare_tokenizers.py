"""Compares lockstep's tokenizers with Hugging Face's `tokenizers`, id by id and string by string.

    compare_tokenizers.py TOOL [--strings N] [--seed S] [--only NAME] [TEXT_FILE ...]

TOOL is the data_tokenize_tool of the build. Small BPE, WordPiece and Unigram tokenizers of every supported make are trained on
the text files, saved, and read by both sides; the strings are real lines, handwritten traps, random Unicode, and every
assigned character. Exit code 1 and the first differences when anything differs.
"""

import argparse
import io
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

TRAPS = [
    "", " ", "  ", "\n", "\r\n", "\t", "\u0085", "\u00a0", "\u3000", "a", "a ", " a", "  a", "a  b", "a\n\nb", "a \n b",
    "\n\n\n", " \n \n x", "x\r\n\r\ny", "don't", "DON'T I'LL we'RE they'Ve 'S 's 't'd", "'ſ 'ſt x'ſ", "'\u212a", "l'l",
    "1234567890", "12 345 6789", "½⅓Ⅷ٣४", "a1b2", "...", "!?#", "--- ---\n--", "foo_bar", "e\u0301clair \u00e9", "İstanbul ISTANBUL ıI",
    "ΑΣ ΟΔΟΣ ς σ", "ẞß ﬁﬂ ﬆ", "日本語テキスト 中文字符", "한국어 \u1112\u1161\u11ab", "🙂👩‍👩‍👧‍👦🏳️‍🌈", "\u200d\u200b\ufeffx", "\x00\x01\x7f", "\ufffd",
    "<|endoftext|>", "a<|endoftext|>b", " <|endoftext|> ", "[MASK]", "a [MASK] b", "x[CLS][SEP]y", "<strip>", " a  <strip>  b",
    "word", "aword", "word_", " word ", "word.word", "KELVIN", "kelvin Kelvin KELVİN", "##ing", "[UNK]", "a\u0300\u0301\u0302b",
    "\U0001d400\U0001f1e6", "\u0e01\u0e33", "\u0915\u093f", "\u2028\u2029", "x" * 150, "ab" * 400, "\U0002f800", "Å Å Å",
]


def random_strings(rng, count, lines):
    """Random Unicode, with white space, quotes, digits and line breaks over-represented, and mangled real lines."""
    pools = [
        " ", "  ", "\n", "\r", "\t", "'", "’", "abcdefghij", "ABCDEST", "0123456789", ".,;:!?()[]{}<>|@#$%^&*-_=+~`\"\\/",
        "éàüñçåøß", "αβγδΣς", "абвгд", "日本語中文", "한국", "אבג", "ابت", "कखग", "ก", "🙂👍🏽", "\u0301\u0308\u0327", "½²Ⅷ٣",
        "\u00a0\u2003\u3000\u0085\u200b\u200d\ufeff\u00ad", "ſKİı",
    ]
    markers = ["<|endoftext|>", "[MASK]", "<strip>", "word", "kelvin", "'s", "'LL"]
    # Characters that both sides' tables know: assigned in the Unicode version of this Python.
    assigned = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)) not in ("Cn", "Co")]
    strings = []
    for _ in range(count):
        kind = rng.random()
        if kind < 0.5:
            text = "".join(rng.choice(rng.choice(pools)) for _ in range(rng.randrange(1, 40)))
        elif kind < 0.75:
            text = "".join(chr(rng.choice(assigned)) for _ in range(rng.randrange(1, 20)))
        else:
            text = rng.choice(lines)
        for _ in range(rng.randrange(0, 3)):
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice(markers + [rng.choice(rng.choice(pools))]) + text[at:]
        strings.append(text)
    return strings


def every_character():
    """Each assigned character between letters, so that a difference in classes or case changes the ids.

    Of the big scripts without case (ideographs, Hangul, Tangut, ...) every 40th: inside them all are alike."""
    def wanted(c):
        category = "Cs" if 0xD800 <= c < 0xE000 else unicodedata.category(chr(c))
        return category not in ("Cn", "Co", "Cs") and (category != "Lo" or c < 0x3400 or c % 40 == 0)

    return [f"a{chr(c)}b {chr(c)}{chr(c)}1" for c in range(0x110000) if wanted(c)]


def bpe(pre_tokenizer, normalizer=None, ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer, trainers.BpeTrainer(
        vocab_size=1200, special_tokens=["<|endoftext|>"], show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def sentence_piece(normalizer, pre_tokenizer):
    """BPE over characters with byte fallback; trained over words, so that no token has a space inside."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=1500, limit_alphabet=80, show_progress=False,
        special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)])
    return tokenizer, trainer, pre_tokenizer


def as_sentence_piece(tokenizer, pre_tokenizer):
    """The trained tokenizer as Llama 2's file has it: bytes are no added tokens, and the pre-tokenizer is another."""
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = [token for token in document["added_tokens"] if not token["content"].startswith("<0x")]
    document["pre_tokenizer"] = None if pre_tokenizer is None else json.loads(pre_tokenizer.__getstate__())
    return Tokenizer.from_str(json.dumps(document))


def word_piece(**options):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(**options)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer, trainers.WordPieceTrainer(
        vocab_size=1500, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False)


def field_of(message, number):
    """The bytes of a field of a protobuf message."""
    at = 0

    def varint():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        kind = key & 7
        if kind == 0:
            varint()
            continue
        size = {1: 8, 5: 4}.get(kind) or varint()
        if key >> 3 == number and kind == 2:
            return message[at:at + size]
        at += size
    raise KeyError(number)


def charsmap(rule):
    """The table of characters that SentencePiece itself compiles for a rule: nmt_nfkc (T5, XLM-R), nmt_nfkc_cf."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the quick brown fox jumps over the lazy dog"] * 20), model_writer=model, vocab_size=30,
        hard_vocab_limit=False, normalization_rule_name=rule, minloglevel=2)
    return normalizers.Precompiled(field_of(field_of(model.getvalue(), 3), 2))


def unigram(normalizer, pre_tokenizer, bytes_too=False):
    tokenizer = Tokenizer(models.Unigram())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Metaspace()
    if bytes_too:
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return tokenizer, trainers.UnigramTrainer(
        vocab_size=800, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False), bytes_too


def as_unigram(tokenizer, bytes_too):
    """With <0x00> to <0xFF> in the vocabulary, as Gemma's or Llama's converters write them; bytes are no added tokens."""
    document = json.loads(tokenizer.to_str())
    if bytes_too:
        document["model"]["vocab"] += [[f"<0x{byte:02X}>", -20.0 - byte / 256] for byte in range(256)]
        document["model"]["byte_fallback"] = True
    return Tokenizer.from_str(json.dumps(document))


def unigrams():
    spaces = normalizers.Replace(Regex(" {2,}"), " ")
    t5 = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    yield "unigram-t5", *unigram(charsmap("nmt_nfkc"), t5)
    yield "unigram-xlmr", *unigram(normalizers.Sequence([charsmap("nmt_nfkc"), spaces]), pre_tokenizers.Metaspace())
    albert = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD(), normalizers.StripAccents(),
              normalizers.Lowercase(), charsmap("nmt_nfkc_cf"), spaces]
    yield "unigram-albert", *unigram(normalizers.Sequence(albert), t5)
    stripped = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Strip(left=False, right=True), spaces])
    first = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    yield "unigram-bytes", *unigram(stripped, first, bytes_too=True)
    yield "unigram-plain", *unigram(None, pre_tokenizers.Metaspace(prepend_scheme="never"))
    yield "unigram-first", *unigram(None, pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="first")]))


def split(pattern):
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def makes():
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    yield "gpt2", *bpe(byte_level)
    yield "gpt2-prefix-space", *bpe(pre_tokenizers.ByteLevel(add_prefix_space=True))
    yield "gpt2-split", *bpe(split(GPT2))
    yield "llama3", *bpe(split(LLAMA3), ignore_merges=True)
    yield "qwen2-nfc", *bpe(split(QWEN2), normalizers.NFC())
    yield "bpe-nfkc-lower", *bpe(byte_level, normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]))
    yield "bpe-nfd", *bpe(byte_level, normalizers.NFD())
    llama2 = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    yield "llama2", *sentence_piece(llama2, None)
    for scheme in ("first", "always", "never"):
        yield f"metaspace-{scheme}", *sentence_piece(None, pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False))
    yield "metaspace-split", *sentence_piece(None, pre_tokenizers.Metaspace(prepend_scheme="always", split=True))
    yield "bert-uncased", *word_piece()
    yield "bert-cased", *word_piece(lowercase=False)
    yield "bert-accents", *word_piece(strip_accents=False)
    yield "bert-raw", *word_piece(clean_text=False, handle_chinese_chars=False)
    yield from unigrams()


def add_tokens(tokenizer):
    tokenizer.add_special_tokens([AddedToken("<strip>", lstrip=True, rstrip=True, special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("word", single_word=True), AddedToken("Kelvin", normalized=True)])


def run_tool(tool, tokenizer, lines, *options):
    done = subprocess.run([tool, str(tokenizer), *options], input="\n".join(lines) + "\n", capture_output=True, text=True,
                          encoding="utf-8", timeout=600, check=False)
    if done.returncode != 0:
        sys.exit(f"{tool} {tokenizer} failed with {done.returncode}: {done.stderr.strip()}")
    return done.stdout.split("\n")[:-1]


def compare(tool, name, path, reference, strings):
    """Returns the number of differences in ids and in decoded text."""
    expected = [e.ids for e in reference.encode_batch(strings, add_special_tokens=False)]
    ours = [[int(i) for i in line.split()] for line in run_tool(tool, path, [json.dumps(s) for s in strings])]
    bad = [(s, e, o) for s, e, o in zip(strings, expected, ours, strict=True) if e != o]
    for text, want, got in bad[:3]:
        print(f"{name}: encode({ascii(text)}): tokenizers {want}, lockstep {got}")
    decoded = reference.decode_batch(expected, skip_special_tokens=False)
    texts = [json.loads(line) for line in run_tool(tool, path, [" ".join(map(str, e)) for e in expected], "--decode")]
    bad_texts = [(e, d, t) for e, d, t in zip(expected, decoded, texts, strict=True) if d != t]
    for ids, want, got in bad_texts[:3]:
        print(f"{name}: decode({ids}): tokenizers {ascii(want)}, lockstep {ascii(got)}")
    print(f"{name}: {len(strings)} strings, {len(bad)} encoded and {len(bad_texts)} decoded differently")
    return len(bad) + len(bad_texts)


def save_legacy(tokenizer, folder, name):
    """The older files beside tokenizer.json: vocab.json + merges.txt or vocab.txt. None where they say less."""
    if name not in ("gpt2", "bert-uncased", "bert-cased"):
        return None
    folder.mkdir()
    tokenizer.model.save(str(folder))
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": name != "bert-cased"}))
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("texts", nargs="*", default=["/usr/share/common-licenses/GPL-3"])
    parser.add_argument("--strings", type=int, default=4000)
    parser.add_argument("--only", default="", help="kinds whose names begin so")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    lines = [line for file in options.texts for line in pathlib.Path(file).read_text(encoding="utf-8").split("\n")]
    corpus = lines + TRAPS * 20
    strings = TRAPS + random_strings(rng, options.strings, lines) + every_character() + ["\n".join(lines), "\n\n".join(lines)]
    # Past the size at which our side encodes in parts.
    long_text = ["\n".join(lines * (1 + (3 << 20) // sum(len(line) + 1 for line in lines)))]
    differences = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, tokenizer, trainer, *more in makes():
            if not name.startswith(options.only):
                continue
            tokenizer.train_from_iterator(corpus, trainer)
            if more:
                tokenizer = (as_unigram if name.startswith("unigram") else as_sentence_piece)(tokenizer, *more)
            legacy = save_legacy(tokenizer, pathlib.Path(folder) / name, name)
            if legacy is not None:
                differences += compare(options.tool, name + " (older files)", legacy, tokenizer, TRAPS + lines)
            plain = pathlib.Path(folder) / f"{name}-plain.json"
            tokenizer.save(str(plain))
            differences += compare(options.tool, name + " (long text)", plain, tokenizer, long_text)
            add_tokens(tokenizer)
            path = pathlib.Path(folder) / f"{name}.json"
            tokenizer.save(str(path))
            differences += compare(options.tool, name, path, tokenizer, strings)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
