#include "gpu/dispatch.cuh"
#include "gpu/listed_ids.cuh"

namespace ngram_ple::gpu {

void lookup_peers(const IntArray& ids, int64_t num_ids, const TableView& table, const TableBlocks& blocks,
                  OutType out_type, uint8_t* out, Stream stream) {
  gather("lookup_peers", InBlocks<ListedIds>{{ids}, blocks}, num_ids, table, out_type, out, stream);
}

}  // namespace ngram_ple::gpu
