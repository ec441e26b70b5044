#include <mutex>

#include "gpu/faults.h"
#include "gpu/host_runtime.h"

namespace ngram_ple::gpu {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kMostBlocks = 1024;

enum FaultCode : int32_t { kNone, kStart, kOrder, kEnd, kNoRequest, kId };

// What one kernel found; of several faults any one stays. `code` is written last and read first.
struct Fault {
  int64_t index, value, bound;
  int32_t code;
};

NGP_DEVICE void report(Fault* fault, FaultCode code, int64_t index, int64_t value, int64_t bound) {
  fault->index = index;
  fault->value = value;
  fault->bound = bound;
  fault->code = code;
}

NGP_KERNEL(kThreads) check_batch_kernel(NgramBatch batch, Fault* fault) {
  const IntArray& bounds = batch.query_start_loc;
  const int64_t last = batch.num_requests, stride = int64_t{grid_blocks()} * block_threads();
  for (int64_t r = int64_t{block_index()} * block_threads() + thread_index(); r <= last; r += stride) {
    const int64_t bound = bounds[r];
    if (r == 0 && bound != 0) report(fault, kStart, 0, bound, 0);
    if (r > 0 && bounds[r - 1] > bound) report(fault, kOrder, r, bound, bounds[r - 1]);
    if (r == last && bound > batch.num_tokens) report(fault, kEnd, r, bound, batch.num_tokens);
    if (last == 0 && batch.num_tokens > 0) report(fault, kNoRequest, 0, batch.num_tokens, 0);
  }
}

NGP_KERNEL(kThreads) check_ids_kernel(IntArray ids, int64_t num_ids, int64_t end, Fault* fault) {
  const int64_t stride = int64_t{grid_blocks()} * block_threads();
  for (int64_t i = int64_t{block_index()} * block_threads() + thread_index(); i < num_ids; i += stride) {
    const int64_t id = ids[i];
    if (id < -1 || id >= end) report(fault, kId, i, id, end);
  }
}

std::string text_of(const Fault& fault) {
  const auto number = [](int64_t value) { return std::to_string(value); };
  switch (fault.code) {
    case kStart:
      return "query_start_loc must start at 0, got " + number(fault.value);
    case kOrder:
      return "query_start_loc must not decrease, got " + number(fault.bound) + " then " +
             number(fault.value) + " at index " + number(fault.index);
    case kEnd:
      return "query_start_loc must end within input_ids [" + number(fault.bound) + "], got " +
             number(fault.value);
    case kNoRequest:
      return "query_start_loc names no request for " + number(fault.value) + " tokens";
    default:
      return "ids must be -1 or within 0.." + number(fault.bound - 1) + ", got " + number(fault.value) +
             " at index " + number(fault.index);
  }
}

// One word for the process: checking is for finding faults, not for speed.
class FaultWord {
 public:
  template <class Launch>
  void check(const char* op, Stream stream, const Launch& launch_check) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (word_ == nullptr) word_ = new_pinned<Fault>();
    raise(op, " (found after an earlier call, in a replayed graph perhaps)");
    launch_check(word_);
    if (is_capturing(stream)) return;
    synchronize(stream);
    raise(op, "");
  }

 private:
  void raise(const char* op, const char* when) {
    const volatile Fault* seen = word_;
    if (seen->code == kNone) return;
    const Fault fault = *word_;
    *word_ = Fault{};
    throw std::runtime_error(std::string(op) + ": " + text_of(fault) + when);
  }

  std::mutex mutex_;
  Fault* word_ = nullptr;
};

FaultWord& fault_word() {
  static FaultWord* const word = new FaultWord();  // outlives every thread that may still check
  return *word;
}

int64_t blocks_for(int64_t items) {
  const int64_t blocks = (items + kThreads - 1) / kThreads;
  return blocks < kMostBlocks ? blocks : kMostBlocks;
}

}  // namespace

void check_batch(const char* op, const NgramBatch& batch, Stream stream) {
  fault_word().check(op, stream, [&](Fault* fault) {
    launch(op, check_batch_kernel, {blocks_for(batch.num_requests + 1), kThreads}, stream, batch, fault);
  });
}

void check_ids(const char* op, const IntArray& ids, int64_t num_ids, const TableView& table, bool whole,
               Stream stream) {
  const int64_t end = whole ? table.row_end : INT64_MAX;
  fault_word().check(op, stream, [&](Fault* fault) {
    launch(op, check_ids_kernel, {blocks_for(num_ids), kThreads}, stream, ids, num_ids, end, fault);
  });
}

}  // namespace ngram_ple::gpu
