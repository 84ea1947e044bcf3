// A block of one thread has nothing to reduce.

#pragma once

namespace cub {
struct Sum {};
struct Max {};
template <typename T, int THREADS>
struct BlockReduce {
  struct TempStorage {};
  explicit BlockReduce(TempStorage&) {}
  template <typename Op>
  T Reduce(T value, Op, int) const {
    return value;
  }
};
}  // namespace cub
