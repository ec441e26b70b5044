// What the GPU benchmark needs around the kernels: the published model's shape on the device, fresh random
// tokens, timers, and the copy rate that floors are counted from.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "core/hash_plan.h"
#include "core/ngram_batch.h"
#include "core/splitmix64.h"
#include "core/table_view.h"

namespace ngram_ple::bench {

inline void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

template <class T>
T* device_array(size_t count) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, count * sizeof(T)));
  return static_cast<T*>(memory);
}

template <class T>
T* device_copy(const std::vector<T>& values) {
  T* memory = device_array<T>(values.size());
  check(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return memory;
}

// Word i becomes splitmix64(seed + i) % below (all 64 bits of it when below is 0).
static __global__ void fill_random(uint64_t* words, int64_t count, uint64_t seed, uint64_t below) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const uint64_t bits = splitmix64(seed + static_cast<uint64_t>(i));
    words[i] = below == 0 ? bits : bits % below;
  }
}

// Keeps the stream busy for a while, so that what follows is queued before it starts.
static __global__ void wait_cycles(int64_t cycles) {
  const int64_t start = clock64();
  while (clock64() - start < cycles) {
  }
}

inline constexpr int64_t kVocabulary = 248320, kEos = 248044;
inline constexpr int kHeads = 16, kHeadDim = 160;

// Input sets of T tokens: a decode batch (one token a request) up to 64 tokens, else chunks of 512.
class Inputs {
 public:
  Inputs(int64_t tokens, int sets) : tokens_(tokens), sets_(sets) {
    const HashPlan plan = make_hash_plan({3, 8, kVocabulary, 20'000'000, 128, 1234, 0});
    multipliers_ = device_copy(plan.multipliers);
    sizes_ = device_copy(plan.head_sizes);
    offsets_ = device_copy(plan.head_offsets);
    requests_ = tokens <= 64 ? tokens : (tokens + 511) / 512;
    std::vector<int32_t> starts;
    for (int64_t r = 0; r <= requests_; ++r) starts.push_back(static_cast<int32_t>(tokens * r / requests_));
    starts_ = device_copy(starts);
    per_set_ = tokens + 2 * requests_;
    words_ = device_array<uint64_t>(static_cast<size_t>(per_set_ * sets));
    refresh();
  }
  ~Inputs() {
    for (void* memory :
         {static_cast<void*>(multipliers_), static_cast<void*>(sizes_), static_cast<void*>(offsets_),
          static_cast<void*>(starts_), static_cast<void*>(words_)}) {
      cudaFree(memory);
    }
  }

  int sets() const { return sets_; }
  int64_t tokens() const { return tokens_; }

  // New random tokens and contexts in every set.
  void refresh(cudaStream_t stream = nullptr) {
    fill_random<<<512, 256, 0, stream>>>(words_, per_set_ * sets_, seed_, kVocabulary);
    seed_ = splitmix64(seed_);
  }

  NgramBatch operator[](int set) const {
    const uint64_t* words = words_ + per_set_ * (set % sets_);
    NgramBatch batch{};
    batch.input_ids = {words, true};
    batch.ngram_context = {words + tokens_, true};
    batch.query_start_loc = {starts_, false};
    batch.context_stride = 2;
    batch.num_tokens = tokens_;
    batch.num_requests = requests_;
    batch.eos_token_id = kEos;
    batch.ngram_size = 3;
    batch.heads_per_ngram = 8;
    batch.layer_multipliers = multipliers_;
    batch.ngram_heads_vocab_sizes = sizes_;
    batch.ngram_heads_offsets = offsets_;
    return batch;
  }

 private:
  int64_t tokens_, requests_ = 0, per_set_ = 0;
  int sets_;
  uint64_t seed_ = 1;
  int64_t *multipliers_ = nullptr, *sizes_ = nullptr, *offsets_ = nullptr;
  int32_t* starts_ = nullptr;
  uint64_t* words_ = nullptr;
};

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Timer {
 public:
  Timer() {
    check(cudaStreamCreate(&stream_));
    check(cudaEventCreate(&start_));
    check(cudaEventCreate(&stop_));
  }
  cudaStream_t stream() const { return stream_; }

  // µs between two events around `run`.
  double once(const std::function<void()>& run) {
    check(cudaEventRecord(start_, stream_));
    run();
    check(cudaEventRecord(stop_, stream_));
    check(cudaEventSynchronize(stop_));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start_, stop_));
    return milliseconds * 1e3;
  }

  // Median µs of a launch on its own, queued behind other work; the inputs are fresh for each.
  double launches(Inputs& inputs, int repeats, const std::function<void(int)>& launch) {
    for (int i = 0; i < 3; ++i) launch(i);
    std::vector<double> times;
    for (int i = 0; i < repeats; ++i) {
      inputs.refresh(stream_);
      wait_cycles<<<1, 1, 0, stream_>>>(60000);
      times.push_back(once([&] { launch(i); }));
    }
    return median(times);
  }

  // Median µs a launch in replays of a graph with one launch for each input set, fresh inputs for each
  // replay.
  double replays(Inputs& inputs, int repeats, const std::function<void(int)>& launch) {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < inputs.sets(); ++i) launch(i);
    check(cudaStreamEndCapture(stream_, &graph));
    check(cudaGraphInstantiate(&executable, graph, 0));
    std::vector<double> times;
    for (int i = 0; i < repeats + 2; ++i) {
      inputs.refresh(stream_);
      const double time = once([&] { check(cudaGraphLaunch(executable, stream_)); });
      if (i >= 2) times.push_back(time / inputs.sets());
    }
    check(cudaGraphExecDestroy(executable));
    check(cudaGraphDestroy(graph));
    return median(times);
  }

  // Bytes read and written per µs by the best of 10 copies of `bytes` from one half of `memory` to the other.
  double copy_rate(uint8_t* memory, size_t bytes) {
    double best = 1e30;
    for (int i = 0; i < 10; ++i) {
      best =
          std::min(best, once([&] {
                     check(cudaMemcpyAsync(memory + bytes, memory, bytes, cudaMemcpyDeviceToDevice, stream_));
                   }));
    }
    return 2.0 * static_cast<double>(bytes) / best;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t start_, stop_;
};

// A table of `rows` rows of one format inside `memory`, its scales in the slots.
inline TableView table_in(uint8_t* memory, const float* global_scale, Format format, int64_t rows) {
  TableView table{};
  table.format = make_row_format(format, kHeadDim);
  table.rows = memory;
  table.row_stride = table.format.slot_bytes;
  table.scales = table.format.scale_bytes > 0 ? memory + table.format.scale_offset : nullptr;
  table.scale_stride = table.row_stride;
  table.global_scale = table.format.has_global_scale ? global_scale : nullptr;
  table.row_end = rows;
  return table;
}

}  // namespace ngram_ple::bench
