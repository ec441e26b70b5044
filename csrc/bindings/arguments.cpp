#include "bindings/arguments.h"

#include <torch/csrc/stable/ops.h>

#include <vector>

namespace ngram_ple::bindings {
namespace {

int64_t element_bytes(ScalarType type) {
  switch (type) {
    case ScalarType::Long:
    case ScalarType::Double:
      return 8;
    case ScalarType::Int:
    case ScalarType::Float:
      return 4;
    case ScalarType::Half:
    case ScalarType::BFloat16:
      return 2;
    default:
      return 1;  // every other type is refused before anybody asks
  }
}

bool overlap(const Tensor& a, const Tensor& b) {
  const auto range = [](const Tensor& tensor) {
    int64_t elements = tensor.numel() == 0 ? 0 : 1;
    for (int64_t i = 0; i < tensor.dim() && elements > 0; ++i) {
      elements += (tensor.size(i) - 1) * tensor.stride(i);
    }
    const auto begin = reinterpret_cast<uintptr_t>(tensor.data_ptr());
    return std::pair{begin, begin + static_cast<uintptr_t>(elements * element_bytes(tensor.scalar_type()))};
  };
  const auto [a_begin, a_end] = range(a);
  const auto [b_begin, b_end] = range(b);
  return a_begin < b_end && b_begin < a_end;
}

bool same_device(const Tensor& a, const Tensor& b) {
  return a.is_cpu() == b.is_cpu() && a.get_device_index() == b.get_device_index();
}

}  // namespace

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

std::string device_text(const Tensor& tensor) {
  if (tensor.is_cpu()) return "cpu";
  std::ostringstream text;
  text << (tensor.is_cuda() ? "cuda" : "device") << ":" << tensor.get_device_index();
  return text.str();
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::ostringstream text;
  text << "[";
  for (size_t i = 0; i < shape.size(); ++i) text << (i == 0 ? "" : ", ") << shape[i];
  text << "]";
  return text.str();
}

void check_contiguous(const char* op, const char* name, const Tensor& tensor) {
  NGP_CHECK(tensor.is_contiguous(), op, ": ", name,
            " must be contiguous, got strides of a view: ", describe(tensor));
}

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
  check_defined(op, name, tensor);
  check_defined(op, anchor_name, anchor);
  NGP_CHECK(same_device(tensor, anchor), op, ": ", name, " must be on the device of ", anchor_name, " (",
            device_text(anchor), "), got ", describe(tensor));
}

void check_defined(const char* op, const char* name, const Tensor& tensor) {
  NGP_CHECK(tensor.defined(), op, ": ", name, " must be a tensor, got None");
}

IntArray int_array(const char* op, const char* name, const Tensor& tensor) {
  check_defined(op, name, tensor);
  const ScalarType type = tensor.scalar_type();
  NGP_CHECK(type == ScalarType::Int || type == ScalarType::Long, op, ": ", name,
            " must be int32 or int64, got ", describe(tensor));
  check_contiguous(op, name, tensor);
  return {tensor.data_ptr(), type == ScalarType::Long};
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

void check_apart(const char* op, const Tensor& out, std::initializer_list<NamedTensor> inputs) {
  for (const NamedTensor& input : inputs) {
    NGP_CHECK(!overlap(out, input.tensor), op, ": out must share no memory with ", input.name);
  }
}

void check_apart(const char* op, const Tensor& out, const TableArguments& table, const char* rows_name) {
  check_apart(op, out, {{rows_name, table.weight}});
  if (table.scale.has_value()) check_apart(op, out, {{"scale", *table.scale}});
  if (table.global_scale.has_value()) check_apart(op, out, {{"global_scale", *table.global_scale}});
}

Tensor allocate(const char* op, const Tensor& like, const std::vector<int64_t>& shape, ScalarType type) {
  try {
    return torch::stable::new_empty(like, shape, type);
  } catch (const std::exception& error) {
    fail(op, ": could not allocate the result, ", dtype_name(type), " ", shape_text(shape), " on ",
         device_text(like), ": ", error.what());
  }
}

void check_out(const char* op, const Tensor& out, ScalarType type, const std::vector<int64_t>& shape,
               const char* anchor_name, const Tensor& anchor) {
  check_defined(op, "out", out);
  NGP_CHECK(out.scalar_type() == type && shape_of(out) == shape, op, ": out must be ", dtype_name(type), " ",
            shape_text(shape), ", got ", describe(out));
  check_same_device(op, "out", out, anchor_name, anchor);
  check_contiguous(op, "out", out);
}

}  // namespace ngram_ple::bindings
