// Where an op runs: on torch's CPU pool, or on the tensor's GPU and that GPU's current stream.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>

namespace ngram_ple::bindings {

// Calls run(begin, end) on torch's own threads. `unit_rows` is what one item costs, in rows: a thread gets no
// less than is worth waking it for.
template <class Run>
void parallel_over(int64_t items, int64_t unit_rows, const Run& run) {
  constexpr int64_t kRowsWorthAThread = 128;
  if (items == 0) return;
  const int64_t grain = std::max<int64_t>(1, kRowsWorthAThread / std::max<int64_t>(1, unit_rows));
  torch::stable::parallel_for(0, items, grain, run);
}

// Whether the environment has NGRAM_PLE_CHECK=1 (read once): then what only the GPU can see is looked at
// before use.
bool values_are_checked();

// torch's current stream on the GPU of `tensor`, as a raw handle. Throws where torch has no GPU support.
void* current_stream(const torch::stable::Tensor& tensor);

}  // namespace ngram_ple::bindings
