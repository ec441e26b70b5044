// embed: hashing, lookup and decoding in one pass, [T, H * head_dim].
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

// The checked arguments of one call.
struct Embed {
  NgramBatch batch;
  TableView table;
  OutType out_type;
  std::vector<int64_t> shape;

  Embed(const Tensor& input_ids, const NgramBatch& batch_in, const TableArguments& arguments,
        const std::string& out_dtype)
      : batch(batch_in),
        table(table_view("embed", "weight", arguments, "input_ids", input_ids)),
        out_type(bindings::out_type("embed", out_dtype)),
        shape{batch.num_tokens, batch.num_heads() * out_row_elements(table, out_type)} {}

  void run(const Tensor& input_ids, const Tensor& out_tensor) const {
    if (batch.num_tokens == 0) return;
    uint8_t* out = static_cast<uint8_t*>(out_tensor.data_ptr());
    if (input_ids.is_cpu()) {
      const cpu::Hasher hasher(batch);
      const int64_t token_bytes = batch.num_heads() * table.out_row_bytes(out_type);
      parallel_over(batch.num_tokens, batch.num_heads(), [&](int64_t begin, int64_t end) {
        cpu::embed(hasher, table, out_type, begin, end, out + begin * token_bytes);
      });
      return;
    }
#ifdef NGRAM_PLE_GPU
    const torch::stable::accelerator::DeviceGuard guard(input_ids.get_device_index());
    const gpu::Stream stream = current_stream(input_ids);
    if (values_are_checked()) gpu::check_batch("embed", batch, stream);
    gpu::embed(batch, table, out_type, out, stream);
#endif
  }
};

Tensor embed(Tensor input_ids, Tensor query_start_loc, Tensor ngram_context, Tensor layer_multipliers,
             Tensor ngram_heads_vocab_sizes, Tensor ngram_heads_offsets, int64_t eos_token_id,
             int64_t heads_per_ngram, Tensor weight, OptionalTensor scale, OptionalTensor global_scale,
             std::string format, std::string out_dtype, int64_t head_dim, int64_t row_start,
             int64_t row_end) {
  const Embed call(input_ids,
                   ngram_batch("embed", input_ids, query_start_loc, ngram_context, layer_multipliers,
                               ngram_heads_vocab_sizes, ngram_heads_offsets, eos_token_id, heads_per_ngram),
                   {weight, scale, global_scale, format, head_dim, row_start, row_end}, out_dtype);
  Tensor out = allocate("embed", input_ids, call.shape, scalar_type_of(call.out_type));
  call.run(input_ids, out);
  return out;
}

void embed_out(Tensor input_ids, Tensor query_start_loc, Tensor ngram_context, Tensor layer_multipliers,
               Tensor ngram_heads_vocab_sizes, Tensor ngram_heads_offsets, int64_t eos_token_id,
               int64_t heads_per_ngram, Tensor weight, OptionalTensor scale, OptionalTensor global_scale,
               std::string format, std::string out_dtype, int64_t head_dim, int64_t row_start,
               int64_t row_end, Tensor out) {
  const TableArguments table{weight, scale, global_scale, format, head_dim, row_start, row_end};
  const Embed call(input_ids,
                   ngram_batch("embed", input_ids, query_start_loc, ngram_context, layer_multipliers,
                               ngram_heads_vocab_sizes, ngram_heads_offsets, eos_token_id, heads_per_ngram),
                   table, out_dtype);
  check_out("embed", out, scalar_type_of(call.out_type), call.shape, "input_ids", input_ids);
  check_apart("embed", out,
              {{"input_ids", input_ids},
               {"query_start_loc", query_start_loc},
               {"ngram_context", ngram_context},
               {"layer_multipliers", layer_multipliers},
               {"ngram_heads_vocab_sizes", ngram_heads_vocab_sizes},
               {"ngram_heads_offsets", ngram_heads_offsets}});
  check_apart("embed", out, table, "weight");
  call.run(input_ids, out);
}

}  // namespace

NGP_REGISTER("embed", embed)
NGP_REGISTER("embed.out", embed_out)

}  // namespace ngram_ple::bindings
