// The arguments that lookup, embed and decode share.
#include "bindings/arguments.h"
#include "core/hash_plan.h"
#ifdef NGRAM_PLE_GPU
#include <torch/csrc/stable/accelerator.h>

#include "gpu/pinned_memory.h"
#endif

namespace ngram_ple::bindings {
namespace {

// Where the device of `anchor` reads `tensor`: on that device, or for a GPU in pinned host memory too.
const uint8_t* readable_bytes(const char* op, const char* name, const Tensor& tensor, const char* anchor_name,
                              const Tensor& anchor) {
  check_defined(op, name, tensor);
  check_defined(op, anchor_name, anchor);
#ifdef NGRAM_PLE_GPU
  if (tensor.is_cpu() && !anchor.is_cpu()) {
    if (tensor.numel() == 0) return nullptr;
    const torch::stable::accelerator::DeviceGuard guard(anchor.get_device_index());
    const void* address =
        gpu::device_address(tensor.data_ptr(), tensor.numel() * static_cast<int64_t>(tensor.element_size()));
    NGP_CHECK(address != nullptr, op, ": ", name, " must be on the device of ", anchor_name, " (",
              device_text(anchor), ") or in pinned host memory, got pageable ", describe(tensor));
    return static_cast<const uint8_t*>(address);
  }
#endif
  check_same_device(op, name, tensor, anchor_name, anchor);
  return static_cast<const uint8_t*>(tensor.data_ptr());
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

// Scales stored apart, of rows [*, row]: fp8-rowwise fp32 or bf16 [*] or [*, 1], nvfp4 uint8 or E4M3
// [*, head_dim / 16].
void attach_scales(const char* op, const Tensor& scale, const std::vector<int64_t>& rows_shape,
                   const char* anchor_name, const Tensor& anchor, TableView& view) {
  const uint8_t* const begin = readable_bytes(op, "scale", scale, anchor_name, anchor);
  const bool rowwise = view.format.format == Format::fp8_rowwise;
  const ScalarType type = scale.scalar_type();
  const bool type_fits = rowwise ? type == ScalarType::Float || type == ScalarType::BFloat16
                                 : type == ScalarType::Byte || type == ScalarType::Float8_e4m3fn;
  const int64_t scales_a_row = rowwise ? 1 : view.format.scale_bytes;
  std::vector<int64_t> shape = rows_shape;
  shape.back() = scales_a_row;
  const std::vector<int64_t> without_column(rows_shape.begin(), rows_shape.end() - 1);
  const bool shape_fits = shape_of(scale) == shape || (rowwise && shape_of(scale) == without_column);
  NGP_CHECK(type_fits && shape_fits, op, ": scale must be ",
            rowwise ? "float32 or bfloat16 " : "uint8 or float8_e4m3fn ", shape_text(shape), " for format ",
            kFormatNames[static_cast<int>(view.format.format)], ", got ", describe(scale));
  check_contiguous(op, "scale", scale);
  view.scale_is_bf16 = rowwise && type == ScalarType::BFloat16;
  view.scales = begin;
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
  view.rows = readable_bytes(op, rows_name, table.weight, anchor_name, anchor);
  view.row_stride = stored_row_bytes(op, rows_name, table.weight, format);
  const bool scales_inline = format.scale_bytes != 0 && !table.scale.has_value();
  const int64_t expected = scales_inline ? format.slot_bytes : format.row_bytes;
  NGP_CHECK(view.row_stride == expected, op, ": ", rows_name, " must have ", expected, " bytes a row (",
            kFormatNames[static_cast<int>(format.format)], ", head_dim ", format.head_dim,
            scales_inline ? ", scales inside the row: scale is None" : "", "), got ", view.row_stride, ": ",
            describe(table.weight));
  int64_t rows = 1;
  for (int64_t i = 0; i + 1 < table.weight.dim(); ++i) rows *= table.weight.size(i);
  if (scales_inline) {
    view.scales = view.rows + format.scale_offset;
    view.scale_stride = view.row_stride;
  } else if (format.scale_bytes != 0) {
    attach_scales(op, *table.scale, shape_of(table.weight), anchor_name, anchor, view);
  } else {
    NGP_CHECK(!table.scale.has_value(), op, ": format ", table.format, " has no scale, got ",
              describe(*table.scale));
  }
  view.global_scale = global_scale_pointer(op, table, format, anchor_name, anchor);
  const int64_t start = table.row_start, end = table.row_end;
  NGP_CHECK(start >= 0 && start <= kMaxHeadSize && (end == -1 || (end >= start && end - start <= rows)), op,
            ": row_start and row_end must satisfy 0 <= row_start <= row_end <= row_start + ", rows, ", got ",
            start, " and ", end);
  view.row_start = start;
  view.row_end = end == -1 ? start + rows : end;
  return view;
}

}  // namespace ngram_ple::bindings
