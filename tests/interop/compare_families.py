"""Llama's relatives, imported from the safetensors that transformers writes, under layouts: what compare_layouts.py judges,
with tighter bounds and over twenty steps of AdamW.

usage: compare_families.py LAYOUT_PROBE [CASE...]

Logits to 1e-5, gradients to 1e-4, every loss of the twenty steps to 1e-4, and the weights after them.
"""

import sys
import tempfile
from pathlib import Path

import compare_layouts
import deepseek_reference
import torch
import transformers
from make_models import BATCH, HEADS, HIDDEN, INNER, LAYERS, VOCAB, causal, llama_options

STEPS = 20
LAYOUTS = [("dp=1", 1), ("tp=2", 1), ("pp=2", 2), ("shard=2,zero=3", 1)]
WHOLE_BATCHES = [(layout, 1) for layout, _ in LAYOUTS]  # the loss that balances experts is of a micro-batch
EPSILON, ROPE = 1e-3, {"rope_type": "default", "rope_theta": 300.0}
WINDOW = 5  # of sixteen tokens


def family(name, **changes):
    """The causal model of a family; sizes as Llama's in make_models.py."""
    config = getattr(transformers, name.replace("ForCausalLM", "Config"))
    usual = dict(pad_token_id=0) | ({} if name.startswith("OlmoFor") else dict(rms_norm_eps=EPSILON))
    return getattr(transformers, name)(config(**llama_options(**usual | changes)))


def gemma3(**changes):
    config = transformers.Gemma3TextConfig(**llama_options(**changes))
    return transformers.Gemma3ForCausalLM(config)


def neox(**changes):
    sizes = dict(vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS)
    sizes |= dict(num_attention_heads=HEADS, max_position_embeddings=40, initializer_range=0.1, layer_norm_eps=EPSILON)
    return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**sizes | changes))


def falcon(**changes):
    sizes = dict(vocab_size=VOCAB, hidden_size=HIDDEN, ffn_hidden_size=INNER, num_hidden_layers=LAYERS, alibi=False)
    sizes |= dict(num_attention_heads=HEADS, max_position_embeddings=40, initializer_range=0.1, bos_token_id=0)
    sizes |= dict(layer_norm_epsilon=EPSILON, eos_token_id=0)
    return transformers.FalconForCausalLM(transformers.FalconConfig(**sizes | changes))


def deepseek(**changes):
    sizes = dict(n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=2, moe_intermediate_size=24)
    sizes |= dict(first_k_dense_replace=1, aux_loss_alpha=0.0, seq_aux=False, num_key_value_heads=2)
    config = deepseek_reference.DeepseekConfig(**llama_options(**sizes | changes))
    return deepseek_reference.DeepseekForCausalLM(config)


def qwen3_moe(**changes):
    sizes = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, head_dim=12, decoder_sparse_step=1)
    return family("Qwen3MoeForCausalLM", **sizes | changes)


def deepseek_block_difference():
    """The experts of deepseek_reference.py beside the block of transformers' DeepSeek V2 with the same weights: output
    and gradient of the input. V2's attention is another; its experts are DeepSeek-MoE's."""
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe

    sizes = dict(hidden_size=HIDDEN, n_shared_experts=2, num_experts_per_tok=2, moe_intermediate_size=24)
    shared = dict(n_routed_experts=4, routed_scaling_factor=1.5)
    torch.manual_seed(3)
    ours = deepseek_reference.DeepseekMoe(deepseek_reference.DeepseekConfig(**sizes | shared))
    config = transformers.DeepseekV2Config(**sizes | shared, topk_method="greedy", n_group=1, topk_group=1)
    config._experts_implementation = "eager"
    theirs = DeepseekV2Moe(config)
    with torch.no_grad():
        theirs.gate.weight.copy_(ours.gate.weight)
        for number, expert in enumerate(ours.experts):
            rows = torch.cat([expert.gate_proj.weight, expert.up_proj.weight])
            theirs.experts.gate_up_proj[number].copy_(rows)
            theirs.experts.down_proj[number].copy_(expert.down_proj.weight)
        theirs.shared_experts.load_state_dict(ours.shared_experts.state_dict())
    x = torch.randn(BATCH, 8, HIDDEN)
    results = []
    for block in (ours, theirs):
        given = x.clone().requires_grad_(True)
        y = block(given)
        y.square().sum().backward()
        results.append((y.detach(), given.grad))
    return max(compare_layouts.error(a, b) for a, b in zip(*results, strict=True))


YARN = {"rope_type": "yarn", "rope_theta": 300.0, "factor": 4.0, "original_max_position_embeddings": 8}
LONG = {"rope_type": "longrope", "rope_theta": 300.0, "partial_rotary_factor": 0.5, "short_factor": [1.0, 1.5],
        "long_factor": [1.25, 3.0], "original_max_position_embeddings": 8}
LOCAL = {"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 300.0},
         "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}

MODELS = {
    "qwen2": lambda: family("Qwen2ForCausalLM", rope_parameters=ROPE, tie_word_embeddings=True),
    "qwen2-window-yarn": lambda: family("Qwen2ForCausalLM", rope_parameters=YARN, use_sliding_window=True,
                                        sliding_window=WINDOW, max_window_layers=1),
    "qwen3": lambda: family("Qwen3ForCausalLM", head_dim=12, rope_parameters=ROPE),
    "qwen3-bias": lambda: family("Qwen3ForCausalLM", head_dim=8, attention_bias=True),
    "mistral": lambda: family("MistralForCausalLM", sliding_window=WINDOW, rope_parameters=ROPE),
    "mistral-full": lambda: family("MistralForCausalLM", sliding_window=None, head_dim=12),
    "gemma2": lambda: family("Gemma2ForCausalLM", head_dim=12, sliding_window=WINDOW, query_pre_attn_scalar=10,
                             attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
    "gemma3": lambda: gemma3(head_dim=12, sliding_window=WINDOW, query_pre_attn_scalar=16, rope_parameters=LOCAL,
                             layer_types=["sliding_attention", "full_attention"], rms_norm_eps=EPSILON),
    "phi3": lambda: family("Phi3ForCausalLM", rope_parameters=ROPE | {"partial_rotary_factor": 1.0}),
    "phi3-longrope": lambda: family("Phi3ForCausalLM", rope_parameters=LONG, original_max_position_embeddings=8,
                                    sliding_window=WINDOW, bos_token_id=0, eos_token_id=0),
    # The gradient of a clip jumps at its bound: with 0.3 an element comes within half a unit in the last place of it, and
    # no two programs agree on its side. With 0.33 the nearest of all twenty steps is 6e-6 away.
    "olmo": lambda: family("OlmoForCausalLM", clip_qkv=0.33, attention_bias=True),
    "olmo2": lambda: family("Olmo2ForCausalLM", rope_parameters=ROPE),
    "neox": lambda: neox(rope_parameters=ROPE | {"partial_rotary_factor": 0.5}),
    "neox-sequential": lambda: neox(use_parallel_residual=False, hidden_act="gelu_new"),
    "falcon": lambda: falcon(rope_parameters=ROPE),
    "falcon-new": lambda: falcon(new_decoder_architecture=True, num_kv_heads=2, bias=True),
    "falcon-sequential": lambda: falcon(parallel_attn=False, multi_query=False, tie_word_embeddings=False),
    # Without dense layers nobody reads intermediate_size, and it does not come back: here it is the experts' width.
    "qwen3-moe": lambda: qwen3_moe(rope_parameters=ROPE, norm_topk_prob=True, intermediate_size=24),
    "qwen3-moe-dense": lambda: qwen3_moe(mlp_only_layers=[0], router_aux_loss_coef=0.5, output_router_logits=True),
    "deepseek": deepseek,
    "deepseek-normalized": lambda: deepseek(norm_topk_prob=True, routed_scaling_factor=1.5, first_k_dense_replace=0,
                                            intermediate_size=24),
}


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    assert BATCH == 4  # pp=2 cuts it into two micro-steps
    compare_layouts.CASES = {name: (make, causal, None) for name, make in MODELS.items()}
    compare_layouts.LAYOUTS = dict.fromkeys(MODELS, LAYOUTS) | {"qwen3-moe-dense": WHOLE_BATCHES}
    compare_layouts.BOUNDS |= {"logits": 1e-5}
    compare_layouts.STEPS = STEPS
    with tempfile.TemporaryDirectory(prefix="lockstep-interop-") as root:
        failures = compare_layouts.compare(sys.argv[1], sys.argv[2:] or MODELS, Path(root))
    block = deepseek_block_difference()
    print(f"experts of deepseek_reference.py beside transformers' DeepseekV2Moe: {block:.1e}")
    if not block <= 1e-6:
        failures.append(f"deepseek_reference.py is not DeepSeek V2's block of experts: {block:.1e}")
    print(*(f"FAIL {failure}" for failure in failures), sep="\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
