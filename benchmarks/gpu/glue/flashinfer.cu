// flashinfer's norms, activations and rotary embeddings, called by name, in float16 and bfloat16.
//
// The header files' own launchers; only the activations' is written out, as flashinfer's just-in-
// time compiler writes it.

#include "tensor.h"

#include <flashinfer/activation.cuh>
#include <flashinfer/norm.cuh>
#include <flashinfer/pos_enc.cuh>

// flashinfer/jit/activation.py has these as text.
__device__ __forceinline__ float silu(const float& val) { return val / (1.0f + __expf(-val)); }

__device__ __forceinline__ float gelu(const float& val) {
  constexpr float kAlpha = M_SQRT1_2;
  return val * 0.5f * (1.0f + ::erf(val * kAlpha));
}

__device__ __forceinline__ float gelu_tanh(const float& val) {
  const float cdf =
      0.5f * (1.0f + flashinfer::math::tanh(
                         (0.7978845608028654f * (val + 0.044715f * val * val * val))));
  return val * cdf;
}

template <typename T, float (*ACTIVATION)(const float&)>
void gated(torch::Tensor& out, const torch::Tensor& input) {
  const int d = input.size(-1) / 2;
  constexpr uint32_t wide = 16 / sizeof(T);
  const auto launch = [&](auto vec_size) {
    constexpr uint32_t vec = decltype(vec_size)::value;
    flashinfer::activation::act_and_mul_kernel<T, ACTIVATION, vec>
        <<<input.size(0), std::min(d / vec, 256U)>>>(out.data_ptr<T>(), input.data_ptr<T>(), d);
  };
  if (d % wide == 0) {
    launch(std::integral_constant<uint32_t, wide>{});
  } else {
    launch(std::integral_constant<uint32_t, 1>{});
  }
}

static void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

template <typename T>
bool call(const std::string& op, const TensorArg* args, const double* numbers) {
  using namespace flashinfer;
  const auto tensor = [&](int i) { return torch::Tensor(args[i]); };
  torch::Tensor a = tensor(0), b = tensor(1);
  const float x = numbers[0];
  if (op == "silu_and_mul") return gated<T, silu>(a, b), true;
  if (op == "gelu_and_mul") return gated<T, gelu>(a, b), true;
  if (op == "gelu_tanh_and_mul") return gated<T, gelu_tanh>(a, b), true;
  torch::Tensor c = tensor(2);
  const uint32_t rows = a.size(0), d = a.size(1);
  T *pa = a.data_ptr<T>(), *pb = b.data_ptr<T>(), *pc = c.data_ptr<T>();
  // The norms take (input, weight, output) or (input, residual, weight).
  if (op == "rmsnorm") return check(norm::RMSNorm<T>(pb, pc, pa, rows, d, d, d, x)), true;
  if (op == "gemma_rmsnorm") return check(norm::GemmaRMSNorm<T>(pb, pc, pa, rows, d, d, d, x)), true;
  if (op == "fused_add_rmsnorm")
    return check(norm::FusedAddRMSNorm<T>(pa, pb, pc, rows, d, d, d, x)), true;
  if (op == "gemma_fused_add_rmsnorm")
    return check(norm::GemmaFusedAddRMSNorm<T>(pa, pb, pc, rows, d, d, d, x)), true;
  // Rotations in place: positions, q [T, heads, D], k, and the table, if any.
  T *q = pb, *k = pc;
  int64_t* positions = a.data_ptr<int64_t>();
  const uint32_t tokens = b.size(0), heads = b.size(1), kv_heads = c.size(1), size = b.size(2);
  const uint32_t rotated = numbers[0];
  const bool interleave = numbers[1] != 0.0;
  const size_t qn = b.stride(0), qh = b.stride(1), kn = c.stride(0), kh = c.stride(1);
  if (op == "apply_rope_with_cos_sin_cache") {
    torch::Tensor table = tensor(3);
    check(BatchQKApplyRotaryPosIdsCosSinCache(q, k, q, k, table.data_ptr<float>(), positions,
                                              tokens, heads, kv_heads, rotated, size, qn, qh, kn,
                                              kh, qn, qh, kn, kh, interleave));
    return true;
  }
  if (op == "apply_rope_pos_ids") {
    check(BatchQKApplyRotaryPosIds(q, k, q, k, positions, tokens, heads, kv_heads, rotated, size,
                                   qn, qh, kn, kh, qn, qh, kn, kh, interleave,
                                   static_cast<float>(numbers[2]),
                                   static_cast<float>(numbers[3])));
    return true;
  }
  return false;
}

// As in vllm.cu.
extern "C" int call_kernel(const char* op, const TensorArg* args, const double* numbers) {
  try {
    const bool half = args[0].dtype == torch::Half || args[1].dtype == torch::Half;
    if (!(half ? call<__half>(op, args, numbers) : call<__nv_bfloat16>(op, args, numbers))) return 1;
    check(cudaGetLastError());
    check(cudaDeviceSynchronize());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", op, error.what());
    return 2;
  }
}
