// flashinfer's single_prefill_with_kv_cache and single_decode_with_kv_cache, its backend "fa2",
// for heads of 128 in float16 and bfloat16.

#include "tensor.h"

#include <flashinfer/attention/decode.cuh>
#include <flashinfer/attention/default_decode_params.cuh>
#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/variants.cuh>

using namespace flashinfer;

struct Call {
  torch::Tensor out, q, k, v;
  bool causal;
  int window_left;
  float softcap, scale;
};

template <typename T, MaskMode MASK, bool WINDOW, bool SOFTCAP>
cudaError_t prefill(const Call& c) {
  using Params = SinglePrefillParams<T, T, T>;
  using Variant = DefaultAttention<false, WINDOW, SOFTCAP, false>;
  Params params;
  params.q = c.q.data_ptr<T>();
  params.k = c.k.data_ptr<T>();
  params.v = c.v.data_ptr<T>();
  params.o = c.out.data_ptr<T>();
  params.lse = nullptr;
  params.maybe_custom_mask = nullptr;
  params.maybe_alibi_slopes = nullptr;
  params.num_qo_heads = c.q.size(1);
  params.num_kv_heads = c.k.size(1);
  params.group_size = uint_fastdiv(c.q.size(1) / c.k.size(1));
  params.qo_len = c.q.size(0);
  params.kv_len = c.k.size(0);
  params.q_stride_n = c.q.stride(0);
  params.q_stride_h = c.q.stride(1);
  params.k_stride_n = c.k.stride(0);
  params.k_stride_h = c.k.stride(1);
  params.v_stride_n = c.v.stride(0);
  params.v_stride_h = c.v.stride(1);
  params.head_dim = 128;
  params.window_left = c.window_left;
  params.logits_soft_cap = c.softcap;
  params.sm_scale = c.scale;
  params.rope_rcp_scale = params.rope_rcp_theta = 1.0f;
  params.partition_kv = 0;
  return SinglePrefillWithKVCacheDispatched<128, 128, PosEncodingMode::kNone, false, MASK, Variant>(
      params, nullptr, nullptr);
}

template <typename T, bool WINDOW, bool SOFTCAP>
cudaError_t decode(const Call& c) {
  SingleDecodeParams<T, T, T> params(c.q.data_ptr<T>(), c.k.data_ptr<T>(), c.v.data_ptr<T>(),
                                     c.out.data_ptr<T>(), nullptr, c.k.size(0), c.q.size(0),
                                     c.k.size(1), QKVLayout::kNHD, 128, c.window_left, c.softcap,
                                     c.scale, 1.0f, 1e4f);
  using Variant = DefaultAttention<false, WINDOW, SOFTCAP, false>;
  return SingleDecodeWithKVCacheDispatched<128, PosEncodingMode::kNone, Variant>(params, nullptr,
                                                                                 nullptr);
}

template <typename T>
cudaError_t call(const std::string& op, const Call& c) {
  const bool window = c.window_left >= 0, softcap = c.softcap > 0;
  if (op == "single_decode") {
    if (softcap) return decode<T, false, true>(c);
    return window ? decode<T, true, false>(c) : decode<T, false, false>(c);
  }
  if (!c.causal) return prefill<T, MaskMode::kNone, false, false>(c);
  if (softcap) return prefill<T, MaskMode::kCausal, false, true>(c);
  return window ? prefill<T, MaskMode::kCausal, true, false>(c)
                : prefill<T, MaskMode::kCausal, false, false>(c);
}

// As in vllm.cu.  Takes (out, q, k, v) and (causal, window_left, softcap, scale).
extern "C" int call_kernel(const char* op, const TensorArg* args, const double* numbers) {
  try {
    const auto tensor = [&](int i) { return torch::Tensor(args[i]); };
    const Call c{tensor(0), tensor(1), tensor(2), tensor(3), numbers[0] != 0.0,
                 static_cast<int>(numbers[1]), static_cast<float>(numbers[2]),
                 static_cast<float>(numbers[3])};
    cudaError_t error = args[0].dtype == torch::Half ? call<__half>(op, c)
                                                     : call<__nv_bfloat16>(op, c);
    if (error == cudaSuccess) error = cudaDeviceSynchronize();
    if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", op, error.what());
    return 2;
  }
}
