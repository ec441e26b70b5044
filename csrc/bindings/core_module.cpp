// ngram_ple._core: what is no tensor operation. Objects and scalars only; tensors belong to
// torch.ops.ngram_ple.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "core/hash_plan.h"
#include "core/row_format.h"

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
  m.def("advise_huge_pages", &advise_huge_pages, py::arg("address"), py::arg("bytes"));
}

}  // namespace ngram_ple
