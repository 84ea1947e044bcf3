// The dispatch macros of the kernels' launchers, under their old names and their new ones.

#pragma once

#include "tensor.h"

#define DISPATCH_CASE(label, name, type, ...) \
  case label: {                               \
    using name = type;                        \
    __VA_ARGS__();                            \
    break;                                    \
  }

#define DISPATCH_OTHER \
  default:             \
    throw std::runtime_error("no kernel for this dtype or size")

#define VLLM_DISPATCH_FLOATING_TYPES(TYPE, NAME, ...)                         \
  switch (TYPE) {                                                             \
    DISPATCH_CASE(torch::Float, scalar_t, float, __VA_ARGS__)                 \
    DISPATCH_CASE(torch::Half, scalar_t, c10::Half, __VA_ARGS__)              \
    DISPATCH_CASE(torch::BFloat16, scalar_t, c10::BFloat16, __VA_ARGS__)      \
    DISPATCH_OTHER;                                                           \
  }

#define VLLM_DISPATCH_FP8_TYPES(TYPE, NAME, ...)                              \
  switch (TYPE) {                                                             \
    DISPATCH_CASE(torch::Float8_e4m3fn, fp8_t, c10::Float8_e4m3fn, __VA_ARGS__) \
    DISPATCH_OTHER;                                                           \
  }

#define DISPATCH_NUMBER(label, name, ...) \
  case label: {                           \
    constexpr int name = label;           \
    __VA_ARGS__();                        \
    break;                                \
  }

#define VLLM_DISPATCH_VEC_SIZE(VEC_SIZE, ...)   \
  switch (VEC_SIZE) {                           \
    DISPATCH_NUMBER(8, vec_size, __VA_ARGS__)   \
    DISPATCH_NUMBER(4, vec_size, __VA_ARGS__)   \
    DISPATCH_NUMBER(2, vec_size, __VA_ARGS__)   \
    DISPATCH_NUMBER(1, vec_size, __VA_ARGS__)   \
    DISPATCH_OTHER;                             \
  }

#define VLLM_DISPATCH_RANK234(NUM_DIMS, ...)     \
  switch (NUM_DIMS) {                            \
    DISPATCH_NUMBER(2, tensor_rank, __VA_ARGS__) \
    DISPATCH_NUMBER(3, tensor_rank, __VA_ARGS__) \
    DISPATCH_NUMBER(4, tensor_rank, __VA_ARGS__) \
    DISPATCH_OTHER;                              \
  }

#define VLLM_STABLE_DISPATCH_FLOATING_TYPES VLLM_DISPATCH_FLOATING_TYPES
#define VLLM_STABLE_DISPATCH_FP8_TYPES VLLM_DISPATCH_FP8_TYPES
#define VLLM_STABLE_DISPATCH_VEC_SIZE VLLM_DISPATCH_VEC_SIZE
#define VLLM_STABLE_DISPATCH_RANK234 VLLM_DISPATCH_RANK234
