// ngram_ple._core: what is no tensor operation. Objects and scalars only; tensors belong to
// torch.ops.ngram_ple.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/encode_blocks.h"
#include "bindings/pinned_region.h"
#include "core/hash_plan.h"
#include "core/row_format.h"
#include "cpu/read_slots.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace py = pybind11;

namespace ngram_ple {
namespace {

HashPlan hash_plan(int64_t ngram_size, int64_t heads_per_ngram, int64_t vocab_size,
                   int64_t ngram_vocab_size_base, int64_t divisible_by, uint64_t seed, int64_t layer) {
  return make_hash_plan(
      {ngram_size, heads_per_ngram, vocab_size, ngram_vocab_size_base, divisible_by, seed, layer});
}

RowFormat row_format(const std::string& name, int64_t head_dim) {
  const std::optional<Format> format = parse_format(name);
  if (!format) {
    throw std::invalid_argument("format must be one of bf16, fp16, fp32, fp8, fp8-rowwise, nvfp4, got " +
                                name);
  }
  return make_row_format(*format, head_dim);
}

// Asks for transparent huge pages behind the whole pages of [address, address + bytes): a table is read in
// random order, and address translation is most of that cost. A hint: whether it was taken is returned, never
// an error.
bool advise_huge_pages(uintptr_t address, size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (address + page - 1) / page * page, end = (address + bytes) / page * page;
  return begin < end && madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE) == 0;
#else
  (void)address, (void)bytes;
  return false;
#endif
}

// Fills slots [num_rows, slot_bytes] at an address from two open files. Returns what failed ("rows",
// "scales", "bad_scale" or nothing), where, and errno. Reading threads call it, so it lets go of the
// interpreter.
py::tuple read_slots(const std::string& format, int64_t head_dim, int64_t num_rows, int rows_fd,
                     int64_t rows_offset, int scales_fd, int64_t scales_offset,
                     const std::string& scale_dtype, uintptr_t slots) {
  const RowFormat geometry = row_format(format, head_dim);
  const bool blocks = geometry.format == Format::nvfp4;
  if (geometry.scale_bytes == 0 || num_rows < 0 ||
      !(blocks ? scale_dtype == "F8_E4M3" : scale_dtype == "BF16" || scale_dtype == "F32")) {
    throw std::invalid_argument("read_slots needs a format whose rows have scales, num_rows >= 0 and the " +
                                std::string("scales' dtype, got ") + format + ", " +
                                std::to_string(num_rows) + " and " + scale_dtype);
  }
  const cpu::ScaleType stored =
      blocks ? cpu::ScaleType::e4m3 : (scale_dtype == "BF16" ? cpu::ScaleType::bf16 : cpu::ScaleType::fp32);
  cpu::ReadResult result;
  {
    const py::gil_scoped_release released;
    result = cpu::read_slots(geometry, num_rows, {rows_fd, rows_offset}, {scales_fd, scales_offset}, stored,
                             reinterpret_cast<uint8_t*>(slots));
  }
  const char* const names[] = {"", "rows", "scales", "bad_scale"};
  return py::make_tuple(names[result.status], result.at, result.error);
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "Hash plan, primes and row geometry of ngram_ple.";
  py::class_<HashPlan>(m, "HashPlan")
      .def_readonly("multipliers", &HashPlan::multipliers)
      .def_readonly("head_sizes", &HashPlan::head_sizes)
      .def_readonly("head_offsets", &HashPlan::head_offsets)
      .def_readonly("num_rows", &HashPlan::num_rows)
      .def_readonly("padded_rows", &HashPlan::padded_rows);
  py::class_<RowFormat>(m, "RowFormat")
      .def_readonly("head_dim", &RowFormat::head_dim)
      .def_readonly("row_bytes", &RowFormat::row_bytes)
      .def_readonly("scale_bytes", &RowFormat::scale_bytes)
      .def_readonly("scale_offset", &RowFormat::scale_offset)
      .def_readonly("slot_bytes", &RowFormat::slot_bytes)
      .def_readonly("has_global_scale", &RowFormat::has_global_scale);
  m.def("hash_plan", &hash_plan, py::arg("ngram_size"), py::arg("heads_per_ngram"), py::arg("vocab_size"),
        py::arg("ngram_vocab_size_base"), py::arg("divisible_by"), py::arg("seed"), py::arg("layer"));
  m.def("row_format", &row_format, py::arg("name"), py::arg("head_dim"));
  m.def("is_prime", &is_prime, py::arg("n"));
  m.def("next_prime", &next_prime, py::arg("n"), "The smallest prime >= n.");
  m.def("splitmix64", &splitmix64, py::arg("x"));
  m.def("read_slots", &read_slots, py::arg("format"), py::arg("head_dim"), py::arg("num_rows"),
        py::arg("rows_fd"), py::arg("rows_offset"), py::arg("scales_fd"), py::arg("scales_offset"),
        py::arg("scale_dtype"), py::arg("slots"));
  bindings::bind_encode_blocks(m);
  bindings::bind_pinned_region(m);
  m.def("advise_huge_pages", &advise_huge_pages, py::arg("address"), py::arg("bytes"));
}

}  // namespace ngram_ple
