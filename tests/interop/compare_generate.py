"""`lockstep generate` against transformers' own: the greedy continuation of random models is the same, token by token.

usage: compare_generate.py LOCKSTEP

Models are small and drawn wide, so that the likeliest token is clear; prompts are bytes, ids below 256.
"""
import json
import subprocess
import sys
import tempfile

import torch
import transformers

TOKENS = 16
PROMPTS = ("The quick", "a", "lamb and wolf")
SIZES = {"vocab_size": 300, "initializer_range": 0.4, "bos_token_id": None, "eos_token_id": None}


def models():
    yield "gpt2", transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=2, n_embd=32, n_head=4, n_positions=64, **SIZES))
    yield "llama", transformers.LlamaForCausalLM(transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
        max_position_embeddings=64, **SIZES))


def ours(lockstep, folder, prompt):
    done = subprocess.run([lockstep, "generate", folder, "--prompt", prompt, "--tokens", str(TOKENS), "--tokenizer", "bytes",
                           "--threads", "1", "--json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["tokens"]


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    wrong = []
    for name, model in models():
        torch.manual_seed(5)
        model.apply(model._init_weights)
        model.eval()
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            for prompt in PROMPTS:
                ids = torch.tensor([list(prompt.encode())])
                theirs = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False,
                                        pad_token_id=0)[0, ids.shape[1]:].tolist()
                found = ours(sys.argv[1], folder, prompt)
                print(f"{name} {prompt!r}: {found}")
                if found != theirs:
                    wrong.append(f"{name} {prompt!r}: transformers says {theirs}")
    print("\n".join(wrong) or "generate: the same as transformers")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
