#include "gpu/dispatch.cuh"
#include "gpu/listed_ids.cuh"

namespace ngram_ple::gpu {

void lookup(const IntArray& ids, int64_t num_ids, const TableView& table, OutType out_type, uint8_t* out,
            Stream stream, int sms) {
  gather("lookup", ListedIds{ids}, num_ids, table, out_type, out, stream, sms);
}

}  // namespace ngram_ple::gpu
