// From tensors to the kernels' plain structs, every requirement checked on the way. An error names the
// argument, what it must be and what came.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/ngram_batch.h"
#include "core/table_view.h"

namespace ngram_ple::bindings {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

// Fails with the parts as text unless the condition holds. A macro, so that no text is made before it is
// needed.
#define NGP_CHECK(condition, ...)                               \
  do {                                                          \
    if (!(condition)) ::ngram_ple::bindings::fail(__VA_ARGS__); \
  } while (false)

const char* dtype_name(ScalarType type);
std::string device_text(const Tensor& tensor);
std::string shape_text(const std::vector<int64_t>& shape);

// Such as "int32 [4, 2] on cuda:0".
std::string describe(const Tensor& tensor);

// The dispatcher lets None through for a Tensor.
void check_defined(const char* op, const char* name, const Tensor& tensor);

// `tensor` must be on the device of `anchor`.
void check_same_device(const char* op, const char* name, const Tensor& tensor, const char* anchor_name,
                       const Tensor& anchor);

void check_contiguous(const char* op, const char* name, const Tensor& tensor);

// A contiguous int32 or int64 tensor.
IntArray int_array(const char* op, const char* name, const Tensor& tensor);

// The arguments that ngram_ids and embed share.
NgramBatch ngram_batch(const char* op, const Tensor& input_ids, const Tensor& query_start_loc,
                       const Tensor& ngram_context, const Tensor& layer_multipliers,
                       const Tensor& ngram_heads_vocab_sizes, const Tensor& ngram_heads_offsets,
                       int64_t eos_token_id, int64_t heads_per_ngram);

struct TableArguments {
  const Tensor& weight;
  const OptionalTensor& scale;
  const OptionalTensor& global_scale;
  const std::string& format;
  int64_t head_dim;
  int64_t row_start = 0;
  int64_t row_end = -1;
};

// The arguments that lookup, embed and decode share. `rows_name` is what the op calls `weight`.
TableView table_view(const char* op, const char* rows_name, const TableArguments& table,
                     const char* anchor_name, const Tensor& anchor);

OutType out_type(const char* op, const std::string& out_dtype);
ScalarType scalar_type_of(OutType out);

// `out` must be contiguous, of this type and shape, on the device of `anchor`.
void check_out(const char* op, const Tensor& out, ScalarType type, const std::vector<int64_t>& shape,
               const char* anchor_name, const Tensor& anchor);

struct NamedTensor {
  const char* name;
  const Tensor& tensor;
};

// `out` must share no memory with what the kernel reads.
void check_apart(const char* op, const Tensor& out, std::initializer_list<NamedTensor> inputs);
void check_apart(const char* op, const Tensor& out, const TableArguments& table, const char* rows_name);

// A new tensor on the device of `like`; says what could not be allocated when that fails.
Tensor allocate(const char* op, const Tensor& like, const std::vector<int64_t>& shape, ScalarType type);

std::vector<int64_t> shape_of(const Tensor& tensor);

// Elements of a result row.
inline int64_t out_row_elements(const TableView& table, OutType out) {
  return table.out_row_bytes(out) / out_element_bytes(out);
}

}  // namespace ngram_ple::bindings
