#include "gpu/dispatch.cuh"
#include "gpu/hash.cuh"

namespace ngram_ple::gpu {

void embed(const NgramBatch& batch, const TableView& table, OutType out_type, uint8_t* out, Stream stream) {
  gather("embed", make_hashed_ids(batch), batch.num_tokens * batch.num_heads(), table, out_type, out, stream);
}

}  // namespace ngram_ple::gpu
