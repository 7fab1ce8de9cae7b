"""Builds tiny random models with transformers and writes down what it computes with them.

usage: make_models.py FOLDER [CASE...]      without cases: all; --list prints them

For every case FOLDER/CASE holds
  model/                 save_pretrained: config.json and safetensors (in shards for some)
  expected.safetensors   input_ids [batch, seq]; attention_mask and token_type_ids where the case has them; labels as
                         transformers takes them; targets, the same shifted to the place that predicts them (-100: no
                         loss); logits of the model as saved; loss before every step
  gradients/             the gradient of the first loss, as a folder of weights: names and layouts of files, not of memory
  updated/               the weights after the steps of AdamW, all on the same batch
  settings.json          what those steps were, and padding_id: what fills up short samples (-1: there are none)
Encoders without a head have no labels, loss, gradients and step; their logits are the last hidden states.
"""

import copy
import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

VOCAB, HIDDEN, INNER, LAYERS, HEADS, SEQ, BATCH, CLASSES = 128, 32, 48, 2, 4, 16, 4, 3
# epsilon is large on purpose: some gradients (of a key's bias) are zero but for round-off, and the usual 1e-8 would
# turn that round-off into full steps which no two programs agree on.
STEP = {"optimizer": "adamw", "learning_rate": 1e-3, "betas": [0.9, 0.999], "epsilon": 1e-4, "weight_decay": 0.01}
LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 8}


def gpt2(**changes):
    config = dict(vocab_size=VOCAB, n_positions=40, n_embd=HIDDEN, n_layer=LAYERS, n_head=HEADS, bos_token_id=None)
    config |= dict(eos_token_id=None, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.1)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**config | changes))


def llama_options(**changes):
    config = dict(vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS)
    config |= dict(num_attention_heads=HEADS, num_key_value_heads=2, max_position_embeddings=40, initializer_range=0.1)
    return config | changes


def llama(**changes):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**llama_options(**changes)))


def mixtral(**changes):
    experts = dict(num_local_experts=4, num_experts_per_tok=2)
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**llama_options(**experts | changes)))


def bert(name, **changes):
    config = dict(vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS)
    config |= dict(num_attention_heads=HEADS, max_position_embeddings=40, initializer_range=0.1)
    config |= dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return getattr(transformers, name)(transformers.BertConfig(**config | changes))


def mamba(**changes):
    config = dict(vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=LAYERS, state_size=6, initializer_range=0.1)
    return transformers.MambaForCausalLM(transformers.MambaConfig(**config | changes))


def causal(generator):
    ids = torch.randint(1, VOCAB, (BATCH, SEQ), generator=generator)
    labels = ids.clone()
    labels[1, : SEQ // 3] = -100  # as in instruction data
    targets = torch.cat([labels[:, 1:], torch.full((BATCH, 1), -100)], dim=1)
    return {"input_ids": ids, "labels": labels, "targets": targets}


def masked(generator):
    ids = torch.randint(1, VOCAB, (BATCH, SEQ), generator=generator)
    chosen = torch.rand(BATCH, SEQ, generator=generator) < 0.3
    chosen[:, 0] = True
    labels = torch.where(chosen, ids, -100)
    return {"input_ids": torch.where(chosen, 3, ids), "labels": labels, "targets": labels.clone()}


def classified(generator):
    ids = torch.randint(1, VOCAB, (BATCH, SEQ), generator=generator)
    for row, length in enumerate((SEQ, 5, 9, 12)):
        ids[row, length:] = 0  # padding
    kinds = torch.arange(SEQ).ge(4).long().expand(BATCH, SEQ).contiguous()
    labels = torch.randint(CLASSES, (BATCH,), generator=generator)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "token_type_ids": kinds, "labels": labels,
            "targets": labels.clone()}


def encoded(generator):
    return {key: value for key, value in classified(generator).items() if key not in ("labels", "targets")}


# make, batch, max_shard_size
CASES = {
    "gpt2": (gpt2, causal, None),
    "gpt2-untied": (lambda: gpt2(tie_word_embeddings=False, n_inner=56), causal, None),
    "llama": (llama, causal, None),
    "llama-shards": (lambda: llama(rope_parameters=LLAMA3_ROPE, head_dim=12), causal, "20KB"),
    "llama-tied-bias": (
        lambda: llama(tie_word_embeddings=True, attention_bias=True, mlp_bias=True), causal, None),
    "mixtral": (lambda: mixtral(output_router_logits=True, router_aux_loss_coef=0.02), causal, None),
    "mixtral-shards": (mixtral, causal, "20KB"),
    "bert-mlm": (lambda: bert("BertForMaskedLM"), masked, None),
    "bert-classifier": (lambda: bert("BertForSequenceClassification", num_labels=CLASSES), classified, None),
    "bert-encoder": (lambda: bert("BertModel"), encoded, None),
    "mamba": (mamba, causal, None),
    "mamba-untied-bias": (lambda: mamba(tie_word_embeddings=False, use_bias=True), causal, None),
}


def away_from_defaults(model):
    """Norm weights, biases, ... of 1 and 0 would hide a tensor that is not read."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))


def model_inputs(batch):
    return {key: value for key, value in batch.items() if key in ("input_ids", "attention_mask", "token_type_ids")}


def logits_of(model, batch):
    model.eval()
    with torch.no_grad():
        out = model(**model_inputs(batch), **({} if model.config.model_type == "bert" else {"use_cache": False}))
    return out.logits if "logits" in out else out.last_hidden_state


def save(model, folder, shard_size=None):
    model.save_pretrained(folder, **({"max_shard_size": shard_size} if shard_size else {}))


def save_gradients(model, folder):
    holder = copy.deepcopy(model)
    gradients = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in holder.named_parameters():
            gradient = gradients[name].grad
            parameter.copy_(torch.zeros_like(parameter) if gradient is None else gradient)
    save(holder, folder)


def train(model, batch, folder, steps):
    """Steps of AdamW on the loss that transformers computes, which it returns; every parameter is decayed."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=STEP["learning_rate"], betas=STEP["betas"],
                                  eps=STEP["epsilon"], weight_decay=STEP["weight_decay"])
    losses = []
    for number in range(steps):
        optimizer.zero_grad()
        loss = model(**model_inputs(batch), labels=batch["labels"]).loss
        loss.backward()
        if number == 0:
            save_gradients(model, folder / "gradients")
        optimizer.step()
        losses.append(loss.detach())
    save(model, folder / "updated")
    return torch.stack(losses)


def make(case, folder, cases=CASES, steps=1):
    """`cases`: others of the same kind, made the same way."""
    build, make_batch, shard_size = cases[case]
    seed = sorted(cases).index(case)
    torch.manual_seed(seed)
    model = build()
    away_from_defaults(model)
    batch = make_batch(torch.Generator().manual_seed(seed))
    save(model, folder / "model", shard_size)
    expected = dict(batch, logits=logits_of(model, batch))
    if "labels" in batch:
        expected["loss"] = train(model, batch, folder, steps)
    save_file({key: value.contiguous() for key, value in expected.items()}, folder / "expected.safetensors")
    padding_id = model.config.pad_token_id if "attention_mask" in batch else -1
    settings = STEP | {"padding_id": padding_id, "steps": steps}
    (folder / "settings.json").write_text(json.dumps(settings, indent=2) + "\n")


def main():
    if sys.argv[1:] == ["--list"]:
        print("\n".join(CASES))
        return
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for case in sys.argv[2:] or CASES:
        make(case, Path(sys.argv[1]) / case)


if __name__ == "__main__":
    main()
