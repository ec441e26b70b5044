#include "bindings/pinned_region.h"

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "host_memory/registrar.h"
#ifdef NGRAM_PLE_GPU
#include "gpu/pinned_memory.h"
#include "host_memory/pinned_region.h"
#endif

namespace py = pybind11;

namespace ngram_ple::bindings {
namespace {

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const PinnedMemoryError& error) {
    py::set_error(py::module_::import("ngram_ple.errors").attr("PinnedMemoryError"), error.what());
  }
}

#ifdef NGRAM_PLE_GPU

bool room_is_checked() {
  const char* value = std::getenv("NGRAM_PLE_MEMORY_CHECK");
  return value == nullptr || std::string_view(value) != "0";
}

std::unique_ptr<PinnedRegion> make_region(size_t nbytes, int device, size_t piece_bytes, int threads) {
  const py::gil_scoped_release released;
  return std::make_unique<PinnedRegion>(nbytes, gpu::make_registrar(device),
                                        RegionOptions{piece_bytes, threads, room_is_checked()});
}

// Nothing once it is closed: an exception may not leave a buffer function.
py::buffer_info bytes_of(PinnedRegion& region) {
  const size_t bytes = region.address() == nullptr ? 0 : region.bytes();
  return py::buffer_info(reinterpret_cast<uint8_t*>(region.address()), static_cast<py::ssize_t>(bytes));
}

uintptr_t address_of(const PinnedRegion& region) { return reinterpret_cast<uintptr_t>(region.address()); }

uintptr_t new_stream(int device) { return reinterpret_cast<uintptr_t>(gpu::new_stream(device)); }

uint64_t capture_id(uintptr_t stream) { return gpu::capture_id(reinterpret_cast<gpu::Stream>(stream)); }

#else

// Stands where the class would be, so that asking for one ends in a sentence.
struct NoRegion {};

#endif

}  // namespace

void bind_pinned_region(py::module_& m) {
  py::register_local_exception_translator(&translate);
#ifdef NGRAM_PLE_GPU
  py::class_<PinnedRegion>(m, "PinnedRegion", py::buffer_protocol())
      .def(py::init(&make_region), py::arg("nbytes"), py::arg("device"),
           py::arg("piece_bytes") = RegionOptions{}.piece_bytes, py::arg("threads") = 0)
      .def_buffer(&bytes_of)
      .def_property_readonly("address", &address_of)
      .def_property_readonly("nbytes", &PinnedRegion::bytes)
      .def_property_readonly("pieces", &PinnedRegion::pieces)
      .def("huge_bytes", &PinnedRegion::huge_bytes, py::call_guard<py::gil_scoped_release>())
      .def("close", &PinnedRegion::close, py::call_guard<py::gil_scoped_release>());
  m.def("new_stream", &new_stream, py::arg("device"));
  m.def("capture_id", &capture_id, py::arg("stream"));
#else
  py::class_<NoRegion>(m, "PinnedRegion")
      .def(py::init([](size_t, int, size_t, int) -> NoRegion {
             throw PinnedMemoryError(
                 "pinned memory needs a GPU, got an ngram_ple that was built without GPU support: install it "
                 "where nvcc or hipcc is found");
           }),
           py::arg("nbytes"), py::arg("device"), py::arg("piece_bytes") = 0, py::arg("threads") = 0);
#endif
}

}  // namespace ngram_ple::bindings
