"""Ops that bring their own backward: known, and never reported.

One owner a line and what it defines; deeper lines continue the one above.
"""

from __future__ import annotations

_TABLE = """\
aiter: flash_attn_func flash_attn_varlen_func
aiter.ops.rope: RoPE RoPE2D RoPECached RoPETHD
apex.contrib.layer_norm.layer_norm: FastLayerNormFN
apex.contrib.xentropy.softmax_xentropy: SoftmaxCrossEntropyLoss
apex.fused_dense.fused_dense: FusedDenseFunc
apex.mlp.mlp: MlpFunction
apex.normalization: FusedLayerNorm FusedRMSNorm
apex.normalization.fused_layer_norm: fused_layer_norm fused_layer_norm_affine fused_rms_norm
    fused_rms_norm_affine mixed_dtype_fused_layer_norm_affine mixed_dtype_fused_rms_norm_affine
awq.modules.fused.attn: RoPE
awq.modules.linear.gemm: WQLinearMMFunction WQLinear_GEMM
bitsandbytes: matmul matmul_4bit
causal_conv1d: causal_conv1d_fn
fla.modules.activations: swiglu_linear
fla.modules.conv.causal_conv1d: causal_conv1d
fla.modules.fused_cross_entropy: cross_entropy_loss
fla.modules.fused_linear_cross_entropy: fused_linear_cross_entropy_loss
fla.modules.layernorm: layer_norm rms_norm rms_norm_linear
fla.modules.rotary: rotary_embedding
fla.ops: chunk_abc chunk_comba chunk_delta_rule chunk_dplr_delta_rule chunk_gated_delta_rule
    chunk_gla chunk_gsa chunk_kda chunk_lightning_attn chunk_linear_attn chunk_log_linear_attn
    chunk_mesa_net chunk_precond_gated_delta_rule chunk_precond_kda chunk_retention chunk_rwkv6
    chunk_rwkv7 chunk_simple_gla fused_attnres fused_chunk_based fused_chunk_delta_rule
    fused_chunk_gla fused_chunk_linear_attn fused_chunk_retention fused_chunk_simple_gla
    fused_recurrent_delta_rule fused_recurrent_gla fused_recurrent_gsa fused_recurrent_hgrn
    fused_recurrent_iplr_delta_rule fused_recurrent_kda fused_recurrent_lightning_attn
    fused_recurrent_linear_attn fused_recurrent_precond_kda fused_recurrent_retention
    fused_recurrent_rwkv6 fused_recurrent_rwkv7 fused_recurrent_simple_gla parallel_attn
    parallel_based parallel_forgetting_attn parallel_nsa parallel_parallax parallel_path_attn
    parallel_retention parallel_simple_gla parallel_wall_attn parallel_wall_attn_decode
flash_attn: flash_attn_func flash_attn_kvpacked_func flash_attn_qkvpacked_func
    flash_attn_varlen_func flash_attn_varlen_kvpacked_func flash_attn_varlen_qkvpacked_func
flash_attn.cute: flash_attn_func flash_attn_varlen_func
flash_attn.flash_attn_interface: flash_attn_func flash_attn_kvpacked_func
    flash_attn_qkvpacked_func flash_attn_varlen_func flash_attn_varlen_kvpacked_func
    flash_attn_varlen_qkvpacked_func
flash_attn.layers.rotary: apply_rotary_emb apply_rotary_emb_kv_ apply_rotary_emb_qkv_
flash_attn.ops.activations: FastGeLUFunction GeLUFunction SwiGLUFunction
flash_attn.ops.fused_dense: fused_dense_func fused_mlp_func
flash_attn.ops.layer_norm: dropout_add_layer_norm layer_norm
flash_attn.ops.rms_norm: dropout_add_rms_norm rms_norm
flash_attn.ops.triton.cross_entropy: cross_entropy_loss
flash_attn.ops.triton.layer_norm: layer_norm_fn layer_norm_linear_fn rms_norm_fn
flash_attn_interface: flash_attn_func flash_attn_varlen_func
gptqmodel.nn_modules.qlinear.torch: TorchLinear
liger_kernel.transformers.functional: liger_cross_entropy liger_dyt liger_fused_add_rms_norm
    liger_fused_linear_cross_entropy liger_fused_linear_jsd liger_fused_neighborhood_attention
    liger_geglu liger_group_norm liger_jsd liger_kl_div liger_layer_norm liger_modulated_rms_norm
    liger_multi_token_attention liger_poly_norm liger_qwen2vl_mrope liger_relu_squared
    liger_rms_norm liger_rope liger_softmax liger_sparsemax liger_swiglu liger_tvd
llama.model: RMSNorm apply_rotary_emb
mamba_ssm.ops.selective_scan_interface: mamba_inner_fn selective_scan_fn
mamba_ssm.ops.triton.layer_norm: layer_norm_fn rms_norm_fn
mamba_ssm.ops.triton.layernorm_gated: layernorm_fn rmsnorm_fn
mamba_ssm.ops.triton.ssd_combined: mamba_chunk_scan_combined mamba_split_conv1d_scan_combined
model: RMSNorm apply_rotary_emb
model.KVCache: update
mslk.attention.fmha: memory_efficient_attention
nanovllm.layers.activation: SiluAndMul
nanovllm.layers.attention: Attention
nanovllm.layers.layernorm.RMSNorm: add_rms_forward rms_forward
nanovllm.layers.rotary_embedding: apply_rotary_emb
quantize: WeightOnlyInt8Linear
torch: rms_norm
torch.nn: RMSNorm
torch.nn.attention.flex_attention: flex_attention
torch.nn.attention.varlen: varlen_attn
torch.nn.functional: rms_norm scaled_dot_product_attention
torch.ops.aten: _grouped_mm _thnn_fused_lstm_cell
torch.ops.npu: fast_gelu npu_add_layer_norm npu_cross_entropy_loss npu_deep_norm npu_fast_gelu
    npu_fusion_attention npu_fusion_attention_v2 npu_fusion_attention_v3 npu_geglu npu_gelu
    npu_linear npu_moe_gating_top_k npu_moe_token_permute npu_moe_token_unpermute npu_rms_norm
    npu_rotary_mul npu_scaled_masked_softmax npu_silu npu_swiglu
torch_npu: fast_gelu npu_add_layer_norm npu_block_sparse_attention npu_bmmV2
    npu_cross_entropy_loss npu_deep_norm npu_dropout_with_add_softmax npu_fast_gelu
    npu_fused_attention_score_fwd npu_fused_floyd_attention npu_fusion_attention
    npu_fusion_attention_v2 npu_fusion_attention_v3 npu_geglu npu_gelu npu_lightning_indexer
    npu_linear npu_masked_causal_conv1d npu_moe_gating_top_k npu_moe_token_permute
    npu_moe_token_permute_with_routing_map npu_moe_token_unpermute
    npu_moe_token_unpermute_with_routing_map npu_multi_head_attention npu_nsa_compress_attention
    npu_nsa_select_attention npu_ps_roi_pooling npu_rms_norm npu_rotary_mul
    npu_scaled_masked_softmax npu_silu npu_softmax_cross_entropy_with_logits
    npu_sparse_flash_attention npu_swiglu npu_swiglu_group_quant
xformers.ops: index_select_cat memory_efficient_attention scaled_index_add swiglu swiglu_packed
    tiled_matmul
xformers.ops.fmha: memory_efficient_attention
"""


def _names() -> frozenset[str]:
    names: set[str] = set()
    owner = ""
    for line in _TABLE.splitlines():
        if not line.startswith(" "):
            owner, _, line = line.partition(":")
        names.update(f"{owner}.{name}" for name in line.split())
    return frozenset(names)


NAMES = _names()
