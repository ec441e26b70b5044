// Small batches, which wait for kernels and not for the bus: one kernel instead of the three that find
// distinct rows.
#include "gpu/batch_begin.cuh"
#include "gpu/integers.cuh"

namespace ngram_ple::gpu {
namespace {

constexpr int kThreads = 1024;

// By one block, which needs no other to know when all is written.
NGP_KERNEL(kThreads)
list_all_kernel(IntArray ids, int64_t num_ids, int64_t row_start, int64_t row_end, DistinctSpace space,
                Staging staging, const uint32_t* awake) {
  // asked for first: the answer is microseconds away
  const uint32_t workers = thread_index() == 0 && awake != nullptr ? load_shared_word(awake) : 1;
  uint32_t* const listed = reinterpret_cast<uint32_t*>(shared_memory());
  if (thread_index() == 0) *listed = 0;
  sync_block();
  for (int64_t first = 0; first < num_ids; first += kThreads) {
    const int64_t i = first + thread_index();
    const int64_t id = i < num_ids ? load_pending(ids, i).value() : -1;
    const bool owned = id >= row_start && id < row_end;
    const uint64_t owners = ballot(owned), before = (uint64_t{1} << lane_index()) - 1;
    uint32_t at = 0;
    if (lane_index() == 0) at = fetch_add(listed, count_ones(owners));
    at = shuffle(at, 0) + count_ones(owners & before);
    if (owned) {
      const uint32_t row = static_cast<uint32_t>(id - row_start);
      space.list[at] = row;
      staging.list[at] = row;
      space.place[at] = static_cast<uint32_t>(i);
    }
    if (i < num_ids) space.source[i] = owned ? static_cast<int32_t>(i) : -1;
  }
  fence_host();
  sync_block();
  if (thread_index() != 0) return;
  begin_batch(*space.state, *listed, workers);
  tell_workers(*space.state, staging.words, 0);
  count_batch(*space.state, num_ids);
}

}  // namespace

void list_all(const IntArray& ids, int64_t num_ids, int64_t row_start, int64_t row_end,
              const DistinctSpace& space, const Staging& staging, const uint32_t* awake, Stream stream) {
  launch("pinned_lookup", list_all_kernel, {1, kThreads, sizeof(uint32_t)}, stream, ids, num_ids, row_start,
         row_end, space, staging, awake);
}

}  // namespace ngram_ple::gpu
