"""Compares lockstep's instruction examples with transformers' apply_chat_template, token by token.

    compare_chat_templates.py TOOL

TOOL is the data_tokenize_tool of the build. For each template a small tokenizer of the kind that goes with it is trained
and saved with a Jinja program; random conversations are then tokenised by both sides. The program marks the assistant's
words and the end of its turn with {% generation %}, so that which tokens the loss counts is compared too.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from compare_tokenizers import LLAMA3, as_sentence_piece, sentence_piece

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ m['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
)
LLAMA3_CHAT = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] | trim + '<|eot_id|>' }}{% endgeneration %}"
    "{% else %}{{ m['content'] | trim + '<|eot_id|>' }}{% endif %}{% endfor %}"
)
LLAMA2_CHAT = (
    "{% set ns = namespace(system='') %}{% for m in messages %}"
    "{% if m['role'] == 'system' %}{% set ns.system = '<<SYS>>\n' + m['content'] + '\n<</SYS>>\n\n' %}"
    "{% elif m['role'] == 'user' %}{{ bos_token + '[INST] ' + (ns.system + m['content']).strip() + ' [/INST]' }}"
    "{% set ns.system = '' %}"
    "{% else %}{% generation %}{{ ' ' + m['content'].strip() + ' ' + eos_token }}{% endgeneration %}{% endif %}{% endfor %}"
)


def byte_level(tokens, corpus):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=1200, special_tokens=tokens, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def llama2(corpus):
    normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer, trainer, pre_tokenizer = sentence_piece(normalizer, None)
    tokenizer.train_from_iterator(corpus, trainer)
    return as_sentence_piece(tokenizer, pre_tokenizer)


def makes(corpus):
    yield "chatml", byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"], corpus), CHATML, None, "<|im_end|>"
    markers = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    yield "llama3", byte_level(markers, corpus), LLAMA3_CHAT, "<|begin_of_text|>", "<|eot_id|>"
    yield "llama2", llama2(corpus), LLAMA2_CHAT, "<s>", "</s>"
    sentence = llama2(corpus)
    sentence.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<|im_start|>", "<|im_end|>")])
    yield "chatml over characters", sentence, CHATML, "<s>", "<|im_end|>"


def text(rng, lines):
    """Words and lines; never white space first: at inference the prompt is tokenised without the answer."""
    words = " ".join(rng.choice(lines) for _ in range(rng.randrange(1, 4))).strip() or "x"
    return words + rng.choice(["", "", ".", "\n- one\n- two", " é日🙂", "  "])


def conversations(rng, lines, count):
    for _ in range(count):
        messages = [{"role": "system", "content": text(rng, lines)}] if rng.random() < 0.4 else []
        for _ in range(rng.randrange(1, 4)):
            messages += [{"role": role, "content": text(rng, lines)} for role in ("user", "assistant")]
        yield messages


def main():
    tool = sys.argv[1]
    rng = random.Random(2)
    lines = [line.strip() for line in pathlib.Path("/usr/share/common-licenses/GPL-3").read_text(encoding="utf-8").split("\n")]
    lines = [line for line in lines if line]
    differences = 0
    for name, tokenizer, program, begin, end in makes(lines):
        with tempfile.TemporaryDirectory() as folder:
            reference = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=begin, eos_token=end)
            reference.chat_template = program
            reference.save_pretrained(folder)
            chats = list(conversations(rng, lines, 400))
            stdin = "".join(json.dumps({"messages": chat}) + "\n" for chat in chats)
            done = subprocess.run([tool, folder, "--chat"], input=stdin, capture_output=True, text=True, timeout=300, check=True)
            wrong = 0
            for chat, line in zip(chats, done.stdout.splitlines(), strict=True):
                expected = reference.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
                wanted = [list(pair) for pair in zip(expected["input_ids"], expected["assistant_masks"], strict=True)]
                if json.loads(line) != wanted:
                    wrong += 1
                    if wrong == 1:
                        print(f"{name}: {ascii(chat)}\n  transformers {wanted}\n  lockstep {line}")
            print(f"{name}: {len(chats)} conversations, {wrong} differ")
            differences += wrong
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
