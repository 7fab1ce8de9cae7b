"""DeepSeek-MoE (Dai et al. 2024) on transformers' Llama, written out: transformers has no class for it.

Attention, norms and rotary positions are LlamaForCausalLM's. From layer `first_k_dense_replace` on the MLP is a sum over
the experts that the softmax of the router likes best, by their probabilities, and over shared experts.
"""

import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaMLP


class DeepseekConfig(transformers.LlamaConfig):
    model_type = "deepseek"
    n_routed_experts: int = 4
    num_experts_per_tok: int = 2
    n_shared_experts: int | None = None
    moe_intermediate_size: int = 16
    first_k_dense_replace: int = 0
    norm_topk_prob: bool = False
    routed_scaling_factor: float = 1.0
    scoring_func: str = "softmax"
    aux_loss_alpha: float = 0.001
    seq_aux: bool = True
    moe_layer_freq: int = 1


def mlp_of(config, width):
    narrow = transformers.LlamaConfig(hidden_size=config.hidden_size, intermediate_size=width,
                                      num_attention_heads=config.num_attention_heads)
    return LlamaMLP(narrow)


class DeepseekMoe(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.gate = torch.nn.Linear(config.hidden_size, config.n_routed_experts, bias=False)
        self.experts = torch.nn.ModuleList(
            mlp_of(config, config.moe_intermediate_size) for _ in range(config.n_routed_experts))
        if config.n_shared_experts:
            self.shared_experts = mlp_of(config, config.n_shared_experts * config.moe_intermediate_size)

    def forward(self, x):
        tokens = x.reshape(-1, x.shape[-1])
        weights, chosen = self.gate(tokens).softmax(-1).topk(self.config.num_experts_per_tok, dim=-1)
        if self.config.norm_topk_prob:
            weights = weights / weights.sum(-1, keepdim=True)
        weights = weights * self.config.routed_scaling_factor
        y = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            share = (weights * (chosen == number)).sum(-1, keepdim=True)
            y = y + share * expert(tokens)
        if self.config.n_shared_experts:
            y = y + self.shared_experts(tokens)
        return y.view(x.shape)


class DeepseekForCausalLM(transformers.LlamaForCausalLM):
    config_class = DeepseekConfig
    config: DeepseekConfig

    def __init__(self, config):
        super().__init__(config)
        for layer in self.model.layers[config.first_k_dense_replace:]:
            layer.mlp = DeepseekMoe(config)
        self.post_init()


# load_exported.py takes classes from there.
transformers.DeepseekForCausalLM = DeepseekForCausalLM
transformers.AutoConfig.register("deepseek", DeepseekConfig)
