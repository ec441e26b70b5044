#include "gpu/dispatch.cuh"
#include "gpu/integers.cuh"

namespace ngram_ple::gpu {
namespace {

struct ListedIds {
  IntArray ids;
  NGP_DEVICE int64_t operator()(int64_t row) const { return load_pending(ids, row).value(); }
};

}  // namespace

void lookup(const IntArray& ids, int64_t num_ids, const TableView& table, OutType out_type, uint8_t* out,
            Stream stream) {
  gather("lookup", ListedIds{ids}, num_ids, table, out_type, out, stream);
}

}  // namespace ngram_ple::gpu
