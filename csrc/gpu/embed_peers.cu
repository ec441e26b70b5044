#include "gpu/dispatch.cuh"
#include "gpu/hash.cuh"

namespace ngram_ple::gpu {

void embed_peers(const NgramBatch& batch, const TableView& table, const TableBlocks& blocks, OutType out_type,
                 uint8_t* out, Stream stream) {
  for_each_piece("embed_peers", batch, [&](const HashedIds& ids, int64_t first_row, int64_t num_rows) {
    gather("embed_peers", InBlocks<HashedIds>{ids, blocks}, num_rows, table, out_type,
           out + first_row * table.out_row_bytes(out_type), stream);
  });
}

}  // namespace ngram_ple::gpu
