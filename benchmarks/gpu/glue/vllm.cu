// vLLM's kernels and their launchers as they are, called by name.  VLLM is 85 for 0.8.5, 191, 200...

#include "tensor.h"

#if defined(__CUDACC__)
#include <cub/cub.cuh>
#if CUB_VERSION >= 200800 && VLLM < 100
#include <cuda/std/functional>
namespace cub {
using Sum = ::cuda::std::plus<>;  // its name until CUDA 13
}
#endif
#endif

#include "layernorm_kernels.cu"
#include "pos_encoding_kernels.cu"
#include "activation_kernels.cu"

#if VLLM >= 200
#define ROTARY_REST , 0, false
#else
#define ROTARY_REST
#endif

static bool call(const std::string& op, const TensorArg* args, const double* numbers) {
  const auto tensor = [&](int i) { return torch::Tensor(args[i]); };
  torch::Tensor a = tensor(0), b = tensor(1);
  const double x = numbers[0], y = numbers[1];
#define UNARY(name) \
  if (op == #name) return name(a, b), true;
  UNARY(silu_and_mul)
  UNARY(mul_and_silu)
  UNARY(gelu_and_mul)
  UNARY(gelu_tanh_and_mul)
  UNARY(gelu_new)
  UNARY(gelu_fast)
  UNARY(gelu_quick)
  if (op == "fatrelu_and_mul") return fatrelu_and_mul(a, b, x), true;
#if VLLM >= 160
  if (op == "swigluoai_and_mul") return swigluoai_and_mul(a, b, x, y), true;
#endif
#if VLLM >= 330
  UNARY(relu_squared)
  if (op == "situ_and_mul") return situ_and_mul(a, b, x, y), true;
  if (op == "silu_and_mul_with_clamp") return silu_and_mul_clamp(a, b, x, y, numbers[2]), true;
#endif
  torch::Tensor c = tensor(2);
  if (op == "rms_norm") return rms_norm(a, b, c, x), true;
  if (op == "fused_add_rms_norm") return fused_add_rms_norm(a, b, c, x), true;
  if (op == "rotary_embedding") {
    torch::Tensor cache = tensor(3);
    rotary_embedding(a, b, c, static_cast<int64_t>(x), cache, y != 0.0 ROTARY_REST);
    return true;
  }
  return false;
}

// 0: done, 1: no such op, 2: it threw or the GPU reported an error, which stderr has.
extern "C" int call_kernel(const char* op, const TensorArg* args, const double* numbers) {
  try {
    if (!call(op, args, numbers)) return 1;
#if defined(__CUDACC__)
    if (cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess)
      throw std::runtime_error(cudaGetErrorString(error));
#endif
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", op, error.what());
    return 2;
  }
}
