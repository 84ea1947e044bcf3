// As much of PyTorch's tensor as the launchers of the kernels ask for, over memory of the caller.
//
// With it a kernel's source compiles against no version of PyTorch in particular: of PyTorch's
// headers only the 16-bit types are used, which hold nothing but themselves.

#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Half.h>
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>

struct TensorArg {  // benchmarks/gpu/native.py fills these in
  void* data;
  int64_t dtype, dim, sizes[4], strides[4];
};

namespace torch {

enum ScalarType { Float = 0, Half = 1, BFloat16 = 2, Long = 3, Int, Float8_e4m3fn, Float8_e4m3fnuz };

class Tensor {
 public:
  explicit Tensor(const TensorArg& arg) : arg_(arg) {}
  int64_t dim() const { return arg_.dim; }
  int64_t size(int64_t i) const { return arg_.sizes[i < 0 ? i + arg_.dim : i]; }
  int64_t stride(int64_t i) const { return arg_.strides[i < 0 ? i + arg_.dim : i]; }
  int64_t numel() const {
    return std::accumulate(arg_.sizes, arg_.sizes + arg_.dim, int64_t{1}, std::multiplies<>());
  }
  int64_t element_size() const { return arg_.dtype == Float ? 4 : 2; }
  ScalarType scalar_type() const { return static_cast<ScalarType>(arg_.dtype); }
  bool is_cuda() const { return true; }
  int get_device_index() const { return 0; }
  bool is_contiguous() const {
    int64_t expected = 1;
    for (int64_t i = arg_.dim - 1; i >= 0; expected *= arg_.sizes[i--])
      if (arg_.strides[i] != expected) return false;
    return true;
  }
  Tensor contiguous() const {
    if (!is_contiguous()) throw std::runtime_error("pass contiguous tensors");
    return *this;
  }
  Tensor to(ScalarType dtype) const {
    if (dtype != scalar_type()) throw std::runtime_error("pass tensors of the dtype asked for");
    return *this;
  }
  void* data_ptr() const { return arg_.data; }
  template <typename T>
  T* data_ptr() const {
    return static_cast<T*>(arg_.data);
  }
  template <typename T>
  T* mutable_data_ptr() const {
    return static_cast<T*>(arg_.data);
  }
  template <typename T>
  const T* const_data_ptr() const {
    return static_cast<const T*>(arg_.data);
  }

 private:
  TensorArg arg_;
};

constexpr ScalarType kFloat = Float, kFloat32 = Float;

namespace headeronly {
using ScalarType = torch::ScalarType;
using BFloat16 = c10::BFloat16;
using Half = c10::Half;
}  // namespace headeronly

namespace stable {
using Tensor = torch::Tensor;
inline Tensor contiguous(const Tensor& tensor) { return tensor.contiguous(); }
inline Tensor to(const Tensor& tensor, ScalarType dtype) { return tensor.to(dtype); }
namespace accelerator {
struct DeviceGuard {
  explicit DeviceGuard(int) {}
};
}  // namespace accelerator
}  // namespace stable

inline int device_of(const Tensor&) { return 0; }

}  // namespace torch

struct DeviceProperties {
  int major;
};
// Blackwell's wider loads are not asked for: the arithmetic is the same.
inline DeviceProperties* get_device_prop() {
  static DeviceProperties properties{9};
  return &properties;
}

namespace at {
using ScalarType = torch::ScalarType;
namespace cuda {
struct OptionalCUDAGuard {
  explicit OptionalCUDAGuard(int) {}
};
inline cudaStream_t getCurrentCUDAStream() { return nullptr; }
inline DeviceProperties* getCurrentDeviceProperties() { return get_device_prop(); }
}  // namespace cuda
inline int64_t elementSize(ScalarType type) { return type == torch::Float ? 4 : 2; }
}  // namespace at

using torch::device_of;

inline cudaStream_t get_current_cuda_stream(int = 0) { return nullptr; }

#define TORCH_CHECK(condition, ...) \
  if (!(condition)) throw std::runtime_error(#condition)
#define STD_TORCH_CHECK TORCH_CHECK
