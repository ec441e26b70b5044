#include "bindings/encode_blocks.h"

#include <stdexcept>
#include <string>

#include "cpu/encode.h"
#include "cpu/encode_error.h"

namespace py = pybind11;

namespace ngram_ple::bindings {
namespace {

Format plain_format(const std::string& name) {
  const std::optional<Format> format = parse_format(name);
  if (!format || *format > Format::fp32) {
    throw std::invalid_argument("values must be bf16, fp16 or fp32, got " + name);
  }
  return *format;
}

cpu::EncodeArgs encode_args(const std::string& from, const std::string& to, int64_t head_dim,
                            float global_scale, bool scale_is_bf16) {
  const std::optional<Format> format = parse_format(to);
  if (!format) {
    throw std::invalid_argument("format must be one of bf16, fp16, fp32, fp8, fp8-rowwise, nvfp4, got " + to);
  }
  const bool rowwise = *format == Format::fp8_rowwise;
  return {plain_format(from), make_row_format(*format, head_dim), global_scale, rowwise && scale_is_bf16};
}

float largest_magnitude(const std::string& from, int64_t count, uintptr_t values, bool finite_only) {
  const Format format = plain_format(from);
  const py::gil_scoped_release released;
  return cpu::largest_magnitude(format, reinterpret_cast<const uint8_t*>(values), count, finite_only);
}

cpu::EncodeError encode_rows(const std::string& from, const std::string& to, int64_t head_dim,
                             float global_scale, bool scale_is_bf16, int64_t num_rows, uintptr_t values,
                             uintptr_t rows, uintptr_t scales) {
  const cpu::EncodeArgs args = encode_args(from, to, head_dim, global_scale, scale_is_bf16);
  cpu::EncodeError sums;
  const py::gil_scoped_release released;
  cpu::encode_measured(args, reinterpret_cast<const uint8_t*>(values), num_rows,
                       reinterpret_cast<uint8_t*>(rows), reinterpret_cast<uint8_t*>(scales), sums);
  return sums;
}

}  // namespace

void bind_encode_blocks(py::module_& m) {
  py::class_<cpu::EncodeError>(m, "EncodeError")
      .def_readonly("squared_error", &cpu::EncodeError::squared_error)
      .def_readonly("squared_value", &cpu::EncodeError::squared_value)
      .def_readonly("largest_error", &cpu::EncodeError::largest_error)
      .def_readonly("saturated", &cpu::EncodeError::saturated)
      .def_readonly("zeroed", &cpu::EncodeError::zeroed)
      .def_readonly("not_finite", &cpu::EncodeError::not_finite)
      .def_readonly("first_not_finite", &cpu::EncodeError::first_not_finite);
  m.def("largest_magnitude", &largest_magnitude, py::arg("source"), py::arg("count"), py::arg("values"),
        py::arg("finite_only"));
  m.def("encode_rows", &encode_rows, py::arg("source"), py::arg("format"), py::arg("head_dim"),
        py::arg("global_scale"), py::arg("scale_is_bf16"), py::arg("num_rows"), py::arg("values"),
        py::arg("rows"), py::arg("scales"));
}

}  // namespace ngram_ple::bindings
