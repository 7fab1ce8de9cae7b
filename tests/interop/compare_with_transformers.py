"""GPT-2, Llama and BERT of Hugging Face transformers against ours: same weights, same batches.

usage: compare_with_transformers.py PROBE
"""

import sys

import torch
from comparison import BOUNDS, DTYPES, LLAMA_BOUNDS, Report, reference, run_probe
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

STEPS = 20
VOCAB = 211
CLASSES = 3
PADDING = 0  # BERT's


def gpt2(**changes):
    options = dict(vocab_size=VOCAB, n_positions=160, n_embd=128, n_layer=4, n_head=4, initializer_range=0.05)
    options.update(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, **changes)
    return GPT2LMHeadModel(GPT2Config(**options))


def llama(**changes):
    options = dict(vocab_size=VOCAB, hidden_size=128, intermediate_size=344, num_hidden_layers=4, num_attention_heads=8)
    options.update(num_key_value_heads=8, max_position_embeddings=256, initializer_range=0.05, rms_norm_eps=1e-5)
    options.update(bos_token_id=0, eos_token_id=0)
    options.update(changes)
    return LlamaForCausalLM(LlamaConfig(**options))


def bert(kind, **changes):
    options = dict(vocab_size=VOCAB, hidden_size=128, intermediate_size=200, num_hidden_layers=3, num_attention_heads=4)
    options.update(max_position_embeddings=96, initializer_range=0.05, pad_token_id=PADDING, num_labels=CLASSES)
    options.update(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **changes)
    return kind(BertConfig(**options))


def masked_bert(**changes):
    return bert(BertForMaskedLM, **changes)


def classifying_bert(**changes):
    return bert(BertForSequenceClassification, **changes)


LLAMA3_ROPE = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=64)

CASES = {
    "gpt2 seq 7": (gpt2, {}, 7),
    "gpt2 seq 64": (gpt2, {}, 64),
    "gpt2 seq 130": (gpt2, {}, 130),
    "gpt2 inner 200": (gpt2, {"n_inner": 200}, 33),
    "llama seq 65": (llama, {}, 65),
    "llama grouped queries seq 130": (llama, {"num_key_value_heads": 2}, 130),
    "llama one key head, tied seq 7": (llama, {"num_key_value_heads": 1, "tie_word_embeddings": True}, 7),
    "llama head_dim 24 seq 40": (llama, {"head_dim": 24, "num_key_value_heads": 4}, 40),
    "llama rope_scaling llama3 seq 100": (llama, {"num_key_value_heads": 4, "rope_parameters": LLAMA3_ROPE}, 100),
    "bert masked seq 70": (masked_bert, {}, 70),
    "bert masked, gelu_new seq 9": (masked_bert, {"hidden_act": "gelu_new"}, 9),
    "bert classifier seq 33": (classifying_bert, {}, 33),
}


def sentences(seq):
    """Tokens with padding behind some of them."""
    tokens = torch.randint(1, VOCAB, (STEPS, 4, seq))
    for row, length in enumerate((seq, seq // 2, seq - 1, seq // 3)):
        tokens[:, row, length:] = PADDING
    return tokens


def batches(make, seq):
    if make is masked_bert:
        tokens = sentences(seq)
        chosen = (torch.rand(tokens.shape) < 0.3) & (tokens != PADDING)
        chosen[:, :, 0] = True
        return torch.where(chosen, 3, tokens), torch.where(chosen, tokens, -100)
    if make is classifying_bert:
        return sentences(seq), torch.randint(CLASSES, (STEPS, 4))
    tokens = torch.randint(VOCAB, (STEPS, 2, seq + 1))
    inputs, targets = tokens[:, :, :-1].clone(), tokens[:, :, 1:].clone()
    targets[:, 1, : seq // 3] = -100  # as in instruction data
    return inputs, targets


def logits_of(model, tokens):
    if model.config.model_type == "bert":
        return model(input_ids=tokens, attention_mask=(tokens != PADDING).long()).logits
    return model(input_ids=tokens, use_cache=False).logits


def main():
    report = Report()
    for case, (make, changes, seq) in CASES.items():
        for precision, dtype in DTYPES.items():
            torch.manual_seed(seq)
            torch.set_default_dtype(dtype)
            model = make(**changes)
            # Norm weights and biases away from 1 and 0, so that a missing one shows.
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.dim() == 1:
                        parameter.add_(0.1 * torch.randn_like(parameter))

            model.config.architectures = [type(model).__name__]  # as in a saved folder

            def write_config(folder, config=model.config):
                config.to_json_file(folder / "config.json", use_diff=False)
                return "config.json"

            inputs, targets = batches(make, seq)
            # A tied head is one tensor under two names; files carry it once.
            state = dict(model.named_parameters())
            padding = PADDING if make in (masked_bert, classifying_bert) else -1
            ours = run_probe(sys.argv[1], precision, write_config, state, inputs, targets, padding)
            theirs = reference(model, logits_of, inputs, targets)
            theirs = {name: value for name, value in theirs.items() if not name.startswith("state.")}
            report.compare(case, precision, ours, theirs, LLAMA_BOUNDS if make is llama else BOUNDS)
    report.finish()


if __name__ == "__main__":
    main()
