// The arguments that ngram_ids and embed share.
#include "bindings/arguments.h"
#include "core/hash_plan.h"

namespace ngram_ple::bindings {
namespace {

const int64_t* int64_vector(const char* op, const char* name, const Tensor& tensor, int64_t length) {
  NGP_CHECK(tensor.scalar_type() == ScalarType::Long && tensor.dim() == 1 &&
                (length < 0 || tensor.size(0) == length),
            op, ": ", name, " must be int64 [", length < 0 ? "N" : std::to_string(length), "], got ",
            describe(tensor));
  check_contiguous(op, name, tensor);
  return static_cast<const int64_t*>(tensor.data_ptr());
}

// What only a look at the values tells: done where looking costs no synchronisation.
void check_values_on_cpu(const char* op, const NgramBatch& batch) {
  const IntArray& bounds = batch.query_start_loc;
  NGP_CHECK(bounds[0] == 0, op, ": query_start_loc must start at 0, got ", bounds[0]);
  for (int64_t r = 0; r < batch.num_requests; ++r) {
    NGP_CHECK(bounds[r] <= bounds[r + 1], op, ": query_start_loc must not decrease, got ", bounds[r],
              " then ", bounds[r + 1], " at index ", r + 1);
  }
  NGP_CHECK(bounds[batch.num_requests] <= batch.num_tokens, op,
            ": query_start_loc must end within input_ids [", batch.num_tokens, "], got ",
            bounds[batch.num_requests]);
  NGP_CHECK(batch.num_requests > 0 || batch.num_tokens == 0, op, ": query_start_loc names no request for ",
            batch.num_tokens, " tokens");
  for (int32_t h = 0; h < batch.num_heads(); ++h) {
    const int64_t size = batch.ngram_heads_vocab_sizes[h], offset = batch.ngram_heads_offsets[h];
    NGP_CHECK(size >= 1 && size <= kMaxHeadSize, op, ": ngram_heads_vocab_sizes must be within 1..2^62, got ",
              size, " for head ", h);
    NGP_CHECK(offset >= 0 && offset <= kMaxHeadSize, op, ": ngram_heads_offsets must be within 0..2^62, got ",
              offset, " for head ", h);
  }
}

}  // namespace

NgramBatch ngram_batch(const char* op, const Tensor& input_ids, const Tensor& query_start_loc,
                       const Tensor& ngram_context, const Tensor& layer_multipliers,
                       const Tensor& ngram_heads_vocab_sizes, const Tensor& ngram_heads_offsets,
                       int64_t eos_token_id, int64_t heads_per_ngram) {
  const auto same_device_as_tokens = [&](const char* name, const Tensor& tensor) {
    check_same_device(op, name, tensor, "input_ids", input_ids);
  };
  same_device_as_tokens("query_start_loc", query_start_loc);
  same_device_as_tokens("ngram_context", ngram_context);
  same_device_as_tokens("layer_multipliers", layer_multipliers);
  same_device_as_tokens("ngram_heads_vocab_sizes", ngram_heads_vocab_sizes);
  same_device_as_tokens("ngram_heads_offsets", ngram_heads_offsets);

  NGP_CHECK(input_ids.dim() == 1, op, ": input_ids must be [T], got ", describe(input_ids));
  NGP_CHECK(query_start_loc.dim() == 1 && query_start_loc.size(0) >= 1, op,
            ": query_start_loc must be [R + 1] with R >= 0, got ", describe(query_start_loc));
  NgramBatch batch{};
  batch.input_ids = int_array(op, "input_ids", input_ids);
  batch.query_start_loc = int_array(op, "query_start_loc", query_start_loc);
  batch.num_tokens = input_ids.size(0);
  batch.num_requests = query_start_loc.size(0) - 1;
  batch.eos_token_id = eos_token_id;

  batch.layer_multipliers = int64_vector(op, "layer_multipliers", layer_multipliers, -1);
  const int64_t ngram_size = layer_multipliers.size(0);
  NGP_CHECK(ngram_size >= 2 && ngram_size <= 1024, op,
            ": layer_multipliers must have N within 2..1024 elements, got ", describe(layer_multipliers));
  NGP_CHECK(heads_per_ngram >= 1 && heads_per_ngram <= 65536, op,
            ": heads_per_ngram must be within 1..65536, got ", heads_per_ngram);
  const int64_t num_heads = (ngram_size - 1) * heads_per_ngram;
  batch.ngram_size = static_cast<int32_t>(ngram_size);
  batch.heads_per_ngram = static_cast<int32_t>(heads_per_ngram);
  batch.ngram_heads_vocab_sizes =
      int64_vector(op, "ngram_heads_vocab_sizes", ngram_heads_vocab_sizes, num_heads);
  batch.ngram_heads_offsets = int64_vector(op, "ngram_heads_offsets", ngram_heads_offsets, num_heads);

  const ScalarType context_type = ngram_context.scalar_type();
  NGP_CHECK(context_type == ScalarType::Int || context_type == ScalarType::Long, op,
            ": ngram_context must be int32 or int64, got ", describe(ngram_context));
  NGP_CHECK(ngram_context.dim() == 2 && ngram_context.size(0) >= batch.num_requests &&
                ngram_context.size(1) == ngram_size - 1,
            op, ": ngram_context must be [>= ", batch.num_requests, ", ", ngram_size - 1, "], got ",
            describe(ngram_context));
  NGP_CHECK(ngram_context.size(1) == 1 || ngram_context.stride(1) == 1, op,
            ": ngram_context must have adjacent columns (any row stride), got a column stride of ",
            ngram_context.stride(1));
  batch.ngram_context = {ngram_context.data_ptr(), context_type == ScalarType::Long};
  batch.context_stride = ngram_context.stride(0);
  if (input_ids.is_cpu()) check_values_on_cpu(op, batch);
  return batch;
}

}  // namespace ngram_ple::bindings
