// encode: rows of numbers as a table stores them. row_amax: what their scales are chosen from.
#include "cpu/encode.h"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

#include <cmath>
#include <tuple>

#include "bindings/arguments.h"
#include "bindings/device.h"
#include "bindings/register.h"
#include "core/encoding.h"
#ifdef NGRAM_PLE_GPU
#include "gpu/launch.h"
#endif

namespace ngram_ple::bindings {
namespace {

// Contiguous rows of bf16, fp16 or fp32 values.
struct Numbers {
  Format type{};
  int64_t count = 1, head_dim = 0;
  std::vector<int64_t> shape;

  Numbers(const char* op, const Tensor& rows) : shape(check(op, rows)) {
    const ScalarType scalar = rows.scalar_type();
    type = scalar == ScalarType::BFloat16 ? Format::bf16
           : scalar == ScalarType::Half   ? Format::fp16
                                          : Format::fp32;
    head_dim = shape.back();
    for (size_t i = 0; i + 1 < shape.size(); ++i) count *= shape[i];
  }

  int64_t row_bytes() const { return head_dim * (type == Format::fp32 ? 4 : 2); }

 private:
  static std::vector<int64_t> check(const char* op, const Tensor& rows) {
    check_defined(op, "rows", rows);
    const ScalarType scalar = rows.scalar_type();
    NGP_CHECK(scalar == ScalarType::BFloat16 || scalar == ScalarType::Half || scalar == ScalarType::Float, op,
              ": rows must be bfloat16, float16 or float32, got ", describe(rows));
    NGP_CHECK(rows.dim() >= 1 && rows.size(rows.dim() - 1) >= 1, op,
              ": rows must be [..., head_dim] with head_dim >= 1, got ", describe(rows));
    check_contiguous(op, "rows", rows);
    return shape_of(rows);
  }
};

// --- row_amax ---------------------------------------------------------------------------------------
struct RowAmax {
  Numbers numbers;
  bool finite_only;
  std::vector<int64_t> shape;

  RowAmax(const Tensor& rows, bool finite) : numbers("row_amax", rows), finite_only(finite) {
    shape.assign(numbers.shape.begin(), numbers.shape.end() - 1);
  }

  void run(const Tensor& rows, const Tensor& out_tensor) const {
    if (numbers.count == 0) return;
    const auto* values = static_cast<const uint8_t*>(rows.data_ptr());
    auto* out = static_cast<float*>(out_tensor.data_ptr());
    if (rows.is_cpu()) {
      parallel_over(numbers.count, 1, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          out[row] = cpu::largest_magnitude(numbers.type, values + row * numbers.row_bytes(),
                                            numbers.head_dim, finite_only);
        }
      });
      return;
    }
#ifdef NGRAM_PLE_GPU
    const torch::stable::accelerator::DeviceGuard guard(rows.get_device_index());
    gpu::row_amax(numbers.type, values, numbers.count, numbers.head_dim, finite_only, out,
                  current_stream(rows));
#endif
  }
};

Tensor row_amax(Tensor rows, bool finite_only) {
  const RowAmax call(rows, finite_only);
  Tensor out = allocate("row_amax", rows, call.shape, ScalarType::Float);
  call.run(rows, out);
  return out;
}

void row_amax_out(Tensor rows, bool finite_only, Tensor out) {
  const RowAmax call(rows, finite_only);
  check_out("row_amax", out, ScalarType::Float, call.shape, "rows", rows);
  check_apart("row_amax", out, {{"rows", rows}});
  call.run(rows, out);
}

// --- encode -----------------------------------------------------------------------------------------
struct Encode {
  Numbers numbers;
  RowFormat format{};
  bool scale_is_bf16 = false;
  ScalarType weight_type{}, scale_type = ScalarType::Float;
  std::vector<int64_t> weight_shape, scale_shape;
  const float* global_scale = nullptr;

  Encode(const Tensor& rows, const OptionalTensor& global, const std::string& name,
         const std::string& scale_dtype)
      : numbers("encode", rows), weight_shape(numbers.shape), scale_shape(numbers.shape) {
    static constexpr ScalarType kNative[] = {ScalarType::BFloat16,      ScalarType::Half,
                                             ScalarType::Float,         ScalarType::Float8_e4m3fn,
                                             ScalarType::Float8_e4m3fn, ScalarType::Byte};
    const std::optional<Format> parsed = parse_format(name);
    NGP_CHECK(parsed.has_value(),
              "encode: format must be one of bf16, fp16, fp32, fp8, fp8-rowwise, nvfp4, got ", name);
    try {
      format = make_row_format(*parsed, numbers.head_dim);
    } catch (const std::invalid_argument& error) {
      fail("encode: ", error.what());
    }
    NGP_CHECK(scale_dtype == "bf16" || scale_dtype == "fp32",
              "encode: scale_dtype must be bf16 or fp32, got ", scale_dtype);
    const bool rowwise = *parsed == Format::fp8_rowwise, blocks = *parsed == Format::nvfp4;
    scale_is_bf16 = rowwise && scale_dtype == "bf16";
    weight_type = kNative[static_cast<int>(*parsed)];
    if (blocks) weight_shape.back() = format.row_bytes;
    scale_shape.back() = rowwise ? 1 : format.scale_bytes;
    if (blocks) scale_type = ScalarType::Float8_e4m3fn;
    if (scale_is_bf16) scale_type = ScalarType::BFloat16;
    take_global_scale(rows, global, name);
  }

  void run(const Tensor& rows, const Tensor& weight, const Tensor& scale) const {
    if (numbers.count == 0) return;
    const auto* values = static_cast<const uint8_t*>(rows.data_ptr());
    auto* out = static_cast<uint8_t*>(weight.data_ptr());
    auto* scales = format.scale_bytes == 0 ? nullptr : static_cast<uint8_t*>(scale.data_ptr());
    if (rows.is_cpu()) {
      const cpu::EncodeArgs args{numbers.type, format, global_scale == nullptr ? 1.0f : *global_scale,
                                 scale_is_bf16};
      const int64_t scale_bytes = scale_is_bf16 ? 2 : format.scale_bytes;
      parallel_over(numbers.count, 1, [&](int64_t begin, int64_t end) {
        cpu::encode(args, values + begin * numbers.row_bytes(), end - begin, out + begin * format.row_bytes,
                    scales + begin * scale_bytes);
      });
      return;
    }
#ifdef NGRAM_PLE_GPU
    const torch::stable::accelerator::DeviceGuard guard(rows.get_device_index());
    gpu::encode({numbers.type, format, values, out, scales, global_scale, scale_is_bf16}, numbers.count,
                current_stream(rows));
#endif
  }

 private:
  void take_global_scale(const Tensor& rows, const OptionalTensor& global, const std::string& name) {
    NGP_CHECK(global.has_value() == format.has_global_scale, "encode: format ", name,
              format.has_global_scale ? " needs global_scale, a float32 tensor of one element, got None"
                                      : " has no global_scale, got a tensor");
    if (!format.has_global_scale) return;
    NGP_CHECK(global->scalar_type() == ScalarType::Float && global->numel() == 1,
              "encode: global_scale must be a float32 tensor of one element, got ", describe(*global));
    check_same_device("encode", "global_scale", *global, "rows", rows);
    global_scale = static_cast<const float*>(global->data_ptr());
    // On a GPU the kernel takes such a one as the least.
    NGP_CHECK(!rows.is_cpu() || (*global_scale >= kLeastScale && std::isfinite(*global_scale)),
              "encode: global_scale must be finite and at least 2^-117, got ", *global_scale);
  }
};

std::tuple<Tensor, Tensor> encode(Tensor rows, OptionalTensor global_scale, std::string format,
                                  std::string scale_dtype) {
  const Encode call(rows, global_scale, format, scale_dtype);
  Tensor weight = allocate("encode", rows, call.weight_shape, call.weight_type);
  Tensor scale = allocate("encode", rows, call.scale_shape, call.scale_type);
  call.run(rows, weight, scale);
  return {weight, scale};
}

// Where codes go may be uint8 too, as what decode takes.
void check_result(const char* name, const Tensor& out, ScalarType type, const std::vector<int64_t>& shape,
                  const Tensor& rows, const OptionalTensor& global_scale) {
  check_defined("encode", name, out);
  const bool codes = type == ScalarType::Float8_e4m3fn;
  NGP_CHECK((out.scalar_type() == type || (codes && out.scalar_type() == ScalarType::Byte)) &&
                shape_of(out) == shape,
            "encode: ", name, " must be ", codes ? "uint8 or " : "", dtype_name(type), " ", shape_text(shape),
            ", got ", describe(out));
  check_same_device("encode", name, out, "rows", rows);
  check_contiguous("encode", name, out);
  check_apart("encode", out, {{"rows", rows}});
  if (global_scale.has_value()) check_apart("encode", out, {{"global_scale", *global_scale}});
}

void encode_out(Tensor rows, OptionalTensor global_scale, std::string format, std::string scale_dtype,
                Tensor weight, Tensor scale) {
  const Encode call(rows, global_scale, format, scale_dtype);
  check_result("weight", weight, call.weight_type, call.weight_shape, rows, global_scale);
  check_result("scale", scale, call.scale_type, call.scale_shape, rows, global_scale);
  check_apart("encode", weight, {{"scale", scale}});
  call.run(rows, weight, scale);
}

}  // namespace

NGP_REGISTER("row_amax", row_amax)
NGP_REGISTER("row_amax.out", row_amax_out)
NGP_REGISTER("encode", encode)
NGP_REGISTER("encode.out", encode_out)

}  // namespace ngram_ple::bindings
