// ngram_ids: int64 [T, H] row numbers of each token's n-grams.
#include "cpu/ngram_ids.h"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

#include "bindings/arguments.h"
#include "bindings/device.h"
#include "bindings/register.h"
#ifdef NGRAM_PLE_GPU
#include "gpu/faults.h"
#include "gpu/launch.h"
#endif

namespace ngram_ple::bindings {
namespace {

void run(const Tensor& input_ids, const NgramBatch& batch, const Tensor& out) {
  if (batch.num_tokens == 0) return;
  int64_t* ids = static_cast<int64_t*>(out.data_ptr());
  if (input_ids.is_cpu()) {
    const cpu::Hasher hasher(batch);
    const int64_t heads = batch.num_heads();
    parallel_over(batch.num_tokens, heads,
                  [&](int64_t begin, int64_t end) { hasher.ids(begin, end, ids + begin * heads); });
    return;
  }
#ifdef NGRAM_PLE_GPU
  const torch::stable::accelerator::DeviceGuard guard(input_ids.get_device_index());
  const gpu::Stream stream = current_stream(input_ids);
  if (values_are_checked()) gpu::check_batch("ngram_ids", batch, stream);
  gpu::ngram_ids(batch, ids, stream);
#endif
}

void ngram_ids_out(Tensor input_ids, Tensor query_start_loc, Tensor ngram_context, Tensor layer_multipliers,
                   Tensor ngram_heads_vocab_sizes, Tensor ngram_heads_offsets, int64_t eos_token_id,
                   int64_t heads_per_ngram, Tensor out) {
  const NgramBatch batch =
      ngram_batch("ngram_ids", input_ids, query_start_loc, ngram_context, layer_multipliers,
                  ngram_heads_vocab_sizes, ngram_heads_offsets, eos_token_id, heads_per_ngram);
  check_out("ngram_ids", out, ScalarType::Long, {batch.num_tokens, batch.num_heads()}, "input_ids",
            input_ids);
  check_apart("ngram_ids", out,
              {{"input_ids", input_ids},
               {"query_start_loc", query_start_loc},
               {"ngram_context", ngram_context},
               {"layer_multipliers", layer_multipliers},
               {"ngram_heads_vocab_sizes", ngram_heads_vocab_sizes},
               {"ngram_heads_offsets", ngram_heads_offsets}});
  run(input_ids, batch, out);
}

Tensor ngram_ids(Tensor input_ids, Tensor query_start_loc, Tensor ngram_context, Tensor layer_multipliers,
                 Tensor ngram_heads_vocab_sizes, Tensor ngram_heads_offsets, int64_t eos_token_id,
                 int64_t heads_per_ngram) {
  const NgramBatch batch =
      ngram_batch("ngram_ids", input_ids, query_start_loc, ngram_context, layer_multipliers,
                  ngram_heads_vocab_sizes, ngram_heads_offsets, eos_token_id, heads_per_ngram);
  const std::vector<int64_t> shape{batch.num_tokens, batch.num_heads()};
  Tensor out = allocate("ngram_ids", input_ids, shape, ScalarType::Long);
  run(input_ids, batch, out);
  return out;
}

}  // namespace

NGP_REGISTER("ngram_ids", ngram_ids)
NGP_REGISTER("ngram_ids.out", ngram_ids_out)

}  // namespace ngram_ple::bindings
