// lookup_peers and embed_peers: lookup and embed over a table that lies in equal blocks, one a rank, each
// read where it is.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

#include "bindings/arguments.h"
#include "bindings/device.h"
#include "bindings/register.h"
#include "cpu/lookup.h"
#ifdef NGRAM_PLE_GPU
#include "gpu/faults.h"
#include "gpu/launch.h"
#endif

namespace ngram_ple::bindings {
namespace {

// The arguments that both share.
struct PeersArguments {
  const Tensor& block;
  const Tensor& block_addresses;
  const OptionalTensor& global_scale;
  const std::string& format;
  const std::string& out_dtype;
  int64_t head_dim;
  int64_t num_rows;
};

// A table that lies in blocks, and what its rows become.
struct Peers {
  TableView table;
  TableBlocks blocks;
  OutType out_type;

  Peers(const char* op, const PeersArguments& in, const char* anchor_name, const Tensor& anchor)
      : table(table_view(op, "block", {in.block, std::nullopt, in.global_scale, in.format, in.head_dim},
                         anchor_name, anchor)),
        out_type(bindings::out_type(op, in.out_dtype)) {
    const Tensor& addresses = in.block_addresses;
    check_defined(op, "block_addresses", addresses);
    check_same_device(op, "block_addresses", addresses, anchor_name, anchor);
    check_contiguous(op, "block_addresses", addresses);
    NGP_CHECK(addresses.scalar_type() == ScalarType::Long && addresses.dim() == 1 && addresses.numel() > 0,
              op, ": block_addresses must be int64 [blocks], got ", describe(addresses));
    const int64_t rows = table.row_end, count = addresses.numel();
    NGP_CHECK(rows > 0, op, ": block must hold a row, got ", describe(in.block));
    NGP_CHECK(in.num_rows >= 0 && (in.num_rows - 1) / rows < count, op,
              ": num_rows must be within 0 and the rows of ", count, " blocks of ", rows, ", got ",
              in.num_rows);
    blocks = {static_cast<const uint8_t* const*>(addresses.data_ptr()),
              make_fast_div(static_cast<uint64_t>(rows))};
    table.row_end = in.num_rows;
  }
};

Tensor lookup_peers(Tensor ids_tensor, Tensor block, Tensor block_addresses, OptionalTensor global_scale,
                    std::string format, std::string out_dtype, int64_t head_dim, int64_t num_rows) {
  constexpr const char* kOp = "lookup_peers";
  const IntArray ids = int_array(kOp, "ids", ids_tensor);
  const Peers peers(kOp, {block, block_addresses, global_scale, format, out_dtype, head_dim, num_rows}, "ids",
                    ids_tensor);
  std::vector<int64_t> shape = shape_of(ids_tensor);
  shape.push_back(out_row_elements(peers.table, peers.out_type));
  Tensor result = allocate(kOp, ids_tensor, shape, scalar_type_of(peers.out_type));
  uint8_t* out = static_cast<uint8_t*>(result.data_ptr());
  const int64_t count = ids_tensor.numel();
  if (count == 0) return result;
  if (ids_tensor.is_cpu()) {
    const int64_t row_bytes = peers.table.out_row_bytes(peers.out_type);
    parallel_over(count, 1, [&](int64_t begin, int64_t end) {
      cpu::lookup(ids, peers.table, peers.out_type, begin, end, out + begin * row_bytes, &peers.blocks);
    });
    return result;
  }
#ifdef NGRAM_PLE_GPU
  const torch::stable::accelerator::DeviceGuard guard(ids_tensor.get_device_index());
  const gpu::Stream stream = current_stream(ids_tensor);
  if (values_are_checked()) gpu::check_ids(kOp, ids, count, peers.table, true, stream);
  gpu::lookup_peers(ids, count, peers.table, peers.blocks, peers.out_type, out, stream);
#endif
  return result;
}

Tensor embed_peers(Tensor input_ids, Tensor query_start_loc, Tensor ngram_context, Tensor layer_multipliers,
                   Tensor ngram_heads_vocab_sizes, Tensor ngram_heads_offsets, int64_t eos_token_id,
                   int64_t heads_per_ngram, Tensor block, Tensor block_addresses, OptionalTensor global_scale,
                   std::string format, std::string out_dtype, int64_t head_dim, int64_t num_rows) {
  constexpr const char* kOp = "embed_peers";
  const NgramBatch batch =
      ngram_batch(kOp, input_ids, query_start_loc, ngram_context, layer_multipliers, ngram_heads_vocab_sizes,
                  ngram_heads_offsets, eos_token_id, heads_per_ngram);
  const Peers peers(kOp, {block, block_addresses, global_scale, format, out_dtype, head_dim, num_rows},
                    "input_ids", input_ids);
  const int64_t heads = batch.num_heads();
  Tensor result =
      allocate(kOp, input_ids, {batch.num_tokens, heads * out_row_elements(peers.table, peers.out_type)},
               scalar_type_of(peers.out_type));
  uint8_t* out = static_cast<uint8_t*>(result.data_ptr());
  if (batch.num_tokens == 0) return result;
  if (input_ids.is_cpu()) {
    const cpu::Hasher hasher(batch);
    const int64_t token_bytes = heads * peers.table.out_row_bytes(peers.out_type);
    parallel_over(batch.num_tokens, heads, [&](int64_t begin, int64_t end) {
      cpu::embed(hasher, peers.table, peers.out_type, begin, end, out + begin * token_bytes, &peers.blocks);
    });
    return result;
  }
#ifdef NGRAM_PLE_GPU
  const torch::stable::accelerator::DeviceGuard guard(input_ids.get_device_index());
  const gpu::Stream stream = current_stream(input_ids);
  if (values_are_checked()) gpu::check_batch(kOp, batch, stream);
  gpu::embed_peers(batch, peers.table, peers.blocks, peers.out_type, out, stream);
#endif
  return result;
}

}  // namespace

NGP_REGISTER("lookup_peers", lookup_peers)
NGP_REGISTER("embed_peers", embed_peers)

}  // namespace ngram_ple::bindings
