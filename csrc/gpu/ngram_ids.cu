#include "gpu/hash.cuh"

namespace ngram_ple::gpu {
namespace {

constexpr int kThreads = 128;

// Two at a time where there are two: `to` is aligned to them then.
template <int kHeads>
NGP_DEVICE void store_ids(const int64_t (&ids)[kHeads], int64_t* to) {
  auto* bytes = reinterpret_cast<uint8_t*>(to);
  const auto word = [&](int i, int half) {
    return static_cast<uint32_t>(static_cast<uint64_t>(ids[i]) >> (32 * half));
  };
  if constexpr (kHeads == 1) {
    store_once(bytes, Bytes8{{word(0, 0), word(0, 1)}});
  } else {
#pragma unroll
    for (int i = 0; i < kHeads; i += 2) {
      store_once(bytes + 8 * i, Bytes16{{word(i, 0), word(i, 1), word(i + 1, 0), word(i + 1, 1)}});
    }
  }
}

// kHeads consecutive heads of one order a lane: they share the walk over the token's predecessors.
template <int kHeads>
NGP_KERNEL(kThreads)
ngram_ids_kernel(HashedIds ids, int64_t num_lanes, int64_t* out) {
  await_predecessors();
  const uint32_t lane = lane_index();
  for (int64_t first = wave_index() * wave_size(); first < num_lanes;
       first = next_item(first, num_waves() * wave_size(), num_lanes)) {
    const int64_t mine = first + lane;
    const HashedIds::Place place = ids.place_of((mine < num_lanes ? mine : num_lanes - 1) * kHeads);
    int64_t sizes[kHeads], offsets[kHeads];
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      sizes[i] = ids.size(place.head + i);
      offsets[i] = ids.offset(place.head + i);
    }
    int64_t rows[kHeads];
    floor_mods(ids.mixed(place), sizes, rows);
#pragma unroll
    for (int i = 0; i < kHeads; ++i) rows[i] += offsets[i];
    if (mine < num_lanes) store_ids(rows, out + mine * kHeads);
  }
}

template <int kHeads>
void launch_ids(const HashedIds& ids, int64_t num_rows, int64_t* out, Stream stream) {
  const int64_t lanes = num_rows / kHeads, wave = device_wave_size(), waves = (lanes + wave - 1) / wave;
  const Grid grid{blocks_for_waves(waves, kThreads), kThreads, 0, true};
  launch("ngram_ids", ngram_ids_kernel<kHeads>, grid, stream, ids, lanes, out);
}

}  // namespace

void ngram_ids(const NgramBatch& batch, int64_t* out, Stream stream) {
  constexpr int64_t kManyRows = 16384;
  for_each_piece("ngram_ids", batch, [&](const HashedIds& ids, int64_t first_row, int64_t num_rows) {
    const bool aligned = reinterpret_cast<uintptr_t>(out + first_row) % 16 == 0;
    if (num_rows >= kManyRows && batch.heads_per_ngram % 4 == 0 && aligned) {
      launch_ids<4>(ids, num_rows, out + first_row, stream);
    } else {
      launch_ids<1>(ids, num_rows, out + first_row, stream);
    }
  });
}

}  // namespace ngram_ple::gpu
