// Rows of a table, side by side in the output: the kernel of few rows, and of rows that cannot be staged
// (staged_gather.cuh).
#pragma once

#include "gpu/codecs.cuh"
#include "gpu/scalar_codec.cuh"

namespace ngram_ple::gpu {

inline constexpr int kGatherThreads = 128;

// One row a wave: the shortest way from ids to output. Few rows are a matter of latency, and no lane does
// more than it must.
template <class Ids, class Codec>
NGP_KERNEL(kGatherThreads)
gather_row_kernel(uint8_t* out, int64_t num_rows, uint32_t chunks, Ids ids, TableView table) {
  await_predecessors();
  const Codec codec(table);
  for (int64_t row = wave_index(); row < num_rows; row = next_item(row, num_waves(), num_rows)) {
    const int64_t id = ids(row);
    const bool owned = table.owns(id);
    const RowAddress at = owned ? address_of(ids, table, id) : RowAddress{};
    constexpr int64_t kBytes = sizeof(typename Codec::Word);
    uint8_t* to = out + row * chunks * kBytes;
    for (uint32_t chunk = lane_index(); chunk < chunks; chunk += wave_size()) {
      typename Codec::Raw raw{};
      if (owned) raw = codec.template load<InGlobal>(at, chunk);
      store_once(to + chunk * kBytes, decode_or_zero(codec, owned, raw));
    }
  }
}

}  // namespace ngram_ple::gpu
