#include "gpu/gather.cuh"
#include "gpu/hash.cuh"

namespace ngram_ple::gpu {
namespace {

constexpr int kThreads = 128;

NGP_KERNEL(kThreads) ngram_ids_kernel(HashedIds ids, int64_t num_rows, int64_t* out) {
  const uint32_t lane = lane_index();
  for (int64_t first = wave_index() * wave_size(); first < num_rows; first += num_waves() * wave_size()) {
    const int64_t row = first + lane;
    const int64_t id = ids(row < num_rows ? row : num_rows - 1);
    if (row < num_rows) out[row] = id;
  }
}

}  // namespace

void ngram_ids(const NgramBatch& batch, int64_t* out, Stream stream) {
  for_each_piece("ngram_ids", batch, [&](const HashedIds& ids, int64_t first_row, int64_t num_rows) {
    const int64_t waves = (num_rows + kSmallestWave - 1) / kSmallestWave;
    launch("ngram_ids", ngram_ids_kernel, blocks_for_waves(waves, kThreads), kThreads, stream, ids, num_rows,
           out + first_row);
  });
}

}  // namespace ngram_ple::gpu
