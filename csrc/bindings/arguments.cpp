#include "bindings/arguments.h"

#include <vector>

#include "core/hash_plan.h"

namespace ngram_ple::bindings {
namespace {

const char* dtype_name(ScalarType type) {
  switch (type) {
    case ScalarType::Byte:
      return "uint8";
    case ScalarType::Char:
      return "int8";
    case ScalarType::Short:
      return "int16";
    case ScalarType::Int:
      return "int32";
    case ScalarType::Long:
      return "int64";
    case ScalarType::Half:
      return "float16";
    case ScalarType::Float:
      return "float32";
    case ScalarType::Double:
      return "float64";
    case ScalarType::Bool:
      return "bool";
    case ScalarType::BFloat16:
      return "bfloat16";
    default:
      return torch::headeronly::toString(type);
  }
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::ostringstream text;
  text << "[";
  for (size_t i = 0; i < shape.size(); ++i) text << (i == 0 ? "" : ", ") << shape[i];
  text << "]";
  return text.str();
}

std::string device_text(const Tensor& tensor) {
  if (tensor.is_cpu()) return "cpu";
  std::ostringstream text;
  text << (tensor.is_cuda() ? "cuda" : "device") << ":" << tensor.get_device_index();
  return text.str();
}

bool same_device(const Tensor& a, const Tensor& b) {
  return a.is_cpu() == b.is_cpu() && a.get_device_index() == b.get_device_index();
}

void check_contiguous(const char* op, const char* name, const Tensor& tensor) {
  NGP_CHECK(tensor.is_contiguous(), op, ": ", name,
            " must be contiguous, got strides of a view: ", describe(tensor));
}

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

// Bytes of one row of `weight`, whose dtype must be uint8 or the format's own.
int64_t stored_row_bytes(const char* op, const char* name, const Tensor& weight, const RowFormat& format) {
  static constexpr ScalarType kNative[] = {ScalarType::BFloat16,      ScalarType::Half,
                                           ScalarType::Float,         ScalarType::Float8_e4m3fn,
                                           ScalarType::Float8_e4m3fn, ScalarType::Byte};
  static constexpr int64_t kElementBytes[] = {2, 2, 4, 1, 1, 1};
  const int which = static_cast<int>(format.format);
  const ScalarType type = weight.scalar_type();
  NGP_CHECK(type == ScalarType::Byte || type == kNative[which], op, ": ", name, " must be uint8 or ",
            dtype_name(kNative[which]), " for format ", kFormatNames[which], ", got ", describe(weight));
  NGP_CHECK(weight.dim() >= 1, op, ": ", name, " must have a row dimension, got ", describe(weight));
  check_contiguous(op, name, weight);
  return weight.size(weight.dim() - 1) * (type == ScalarType::Byte ? 1 : kElementBytes[which]);
}

// Scales stored apart: fp8-rowwise fp32 or bf16 [rows] or [rows, 1], nvfp4 uint8 or E4M3 [rows, head_dim /
// 16].
void attach_scales(const char* op, const Tensor& scale, int64_t rows, TableView& view) {
  const bool rowwise = view.format.format == Format::fp8_rowwise;
  const ScalarType type = scale.scalar_type();
  const bool type_fits = rowwise ? type == ScalarType::Float || type == ScalarType::BFloat16
                                 : type == ScalarType::Byte || type == ScalarType::Float8_e4m3fn;
  const int64_t scales_a_row = rowwise ? 1 : view.format.scale_bytes;
  NGP_CHECK(type_fits && scale.numel() == rows * scales_a_row, op, ": scale must be ",
            rowwise ? "float32 or bfloat16 [" : "uint8 or float8_e4m3fn [", rows, ", ", scales_a_row,
            "] for format ", kFormatNames[static_cast<int>(view.format.format)], ", got ", describe(scale));
  check_contiguous(op, "scale", scale);
  view.scale_is_bf16 = rowwise && type == ScalarType::BFloat16;
  view.scales = static_cast<const uint8_t*>(scale.data_ptr());
  view.scale_stride = rowwise ? (view.scale_is_bf16 ? 2 : 4) : scales_a_row;
}

const float* global_scale_pointer(const char* op, const TableArguments& table, const RowFormat& format,
                                  const char* anchor_name, const Tensor& anchor) {
  if (!format.has_global_scale) {
    NGP_CHECK(!table.global_scale.has_value(), op, ": format ", table.format, " has no global_scale, got ",
              describe(*table.global_scale));
    return nullptr;
  }
  NGP_CHECK(table.global_scale.has_value(), op, ": format ", table.format,
            " needs global_scale, a float32 tensor of one "
            "element, got None");
  const Tensor& scale = *table.global_scale;
  NGP_CHECK(scale.scalar_type() == ScalarType::Float && scale.numel() == 1, op,
            ": global_scale must be a float32 tensor of one element, got ", describe(scale));
  check_same_device(op, "global_scale", scale, anchor_name, anchor);
  return static_cast<const float*>(scale.data_ptr());
}

}  // namespace

std::vector<int64_t> shape_of(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  return {sizes.begin(), sizes.end()};
}

std::string describe(const Tensor& tensor) {
  return std::string(dtype_name(tensor.scalar_type())) + " " + shape_text(shape_of(tensor)) + " on " +
         device_text(tensor);
}

void check_same_device(const char* op, const char* name, const Tensor& tensor, const char* anchor_name,
                       const Tensor& anchor) {
  NGP_CHECK(same_device(tensor, anchor), op, ": ", name, " must be on the device of ", anchor_name, " (",
            device_text(anchor), "), got ", describe(tensor));
}

IntArray int_array(const char* op, const char* name, const Tensor& tensor) {
  const ScalarType type = tensor.scalar_type();
  NGP_CHECK(type == ScalarType::Int || type == ScalarType::Long, op, ": ", name,
            " must be int32 or int64, got ", describe(tensor));
  check_contiguous(op, name, tensor);
  return {tensor.data_ptr(), type == ScalarType::Long};
}

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

TableView table_view(const char* op, const char* rows_name, const TableArguments& table,
                     const char* anchor_name, const Tensor& anchor) {
  const std::optional<Format> parsed = parse_format(table.format);
  NGP_CHECK(parsed.has_value(), op, ": format must be one of bf16, fp16, fp32, fp8, fp8-rowwise, nvfp4, got ",
            table.format);
  TableView view{};
  try {
    view.format = make_row_format(*parsed, table.head_dim);
  } catch (const std::invalid_argument& error) {
    fail(op, ": ", error.what());
  }
  const RowFormat& format = view.format;
  check_same_device(op, rows_name, table.weight, anchor_name, anchor);
  view.row_stride = stored_row_bytes(op, rows_name, table.weight, format);
  const bool scales_inline = format.scale_bytes != 0 && !table.scale.has_value();
  const int64_t expected = scales_inline ? format.slot_bytes : format.row_bytes;
  NGP_CHECK(view.row_stride == expected, op, ": ", rows_name, " must have ", expected, " bytes a row (",
            kFormatNames[static_cast<int>(format.format)], ", head_dim ", format.head_dim,
            scales_inline ? ", scales inside the row: scale is None" : "", "), got ", view.row_stride, ": ",
            describe(table.weight));
  int64_t rows = 1;
  for (int64_t i = 0; i + 1 < table.weight.dim(); ++i) rows *= table.weight.size(i);
  view.rows = static_cast<const uint8_t*>(table.weight.data_ptr());
  if (scales_inline) {
    view.scales = view.rows + format.scale_offset;
    view.scale_stride = view.row_stride;
  } else if (format.scale_bytes != 0) {
    check_same_device(op, "scale", *table.scale, anchor_name, anchor);
    attach_scales(op, *table.scale, rows, view);
  } else {
    NGP_CHECK(!table.scale.has_value(), op, ": format ", table.format, " has no scale, got ",
              describe(*table.scale));
  }
  view.global_scale = global_scale_pointer(op, table, format, anchor_name, anchor);
  view.row_start = table.row_start;
  view.row_end = table.row_end == -1 ? table.row_start + rows : table.row_end;
  NGP_CHECK(view.row_start >= 0 && view.row_end >= view.row_start && view.row_end - view.row_start <= rows,
            op, ": row_start and row_end must satisfy 0 <= row_start <= row_end <= row_start + ", rows,
            ", got ", view.row_start, " and ", view.row_end);
  return view;
}

OutType out_type(const char* op, const std::string& out_dtype) {
  const std::optional<OutType> parsed = parse_out_type(out_dtype);
  NGP_CHECK(parsed.has_value(), op, ": out_dtype must be one of bf16, fp16, fp32, bytes, got ", out_dtype);
  return *parsed;
}

ScalarType scalar_type_of(OutType out) {
  static constexpr ScalarType kTypes[] = {ScalarType::BFloat16, ScalarType::Half, ScalarType::Float,
                                          ScalarType::Byte};
  return kTypes[static_cast<int>(out)];
}

void check_out(const char* op, const Tensor& out, ScalarType type, const std::vector<int64_t>& shape,
               const char* anchor_name, const Tensor& anchor) {
  NGP_CHECK(out.scalar_type() == type && shape_of(out) == shape, op, ": out must be ", dtype_name(type), " ",
            shape_text(shape), ", got ", describe(out));
  check_same_device(op, "out", out, anchor_name, anchor);
  check_contiguous(op, "out", out);
}

}  // namespace ngram_ple::bindings
