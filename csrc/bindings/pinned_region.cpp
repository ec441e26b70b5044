#include "bindings/pinned_region.h"

#include <pybind11/stl.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "host_memory/registrar.h"
#ifdef NGRAM_PLE_HOST_MEMORY
#include "host_memory/pinned_region.h"
#endif
#ifdef NGRAM_PLE_GPU
#include "gpu/pinned_memory.h"
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

#ifdef NGRAM_PLE_HOST_MEMORY

bool room_is_checked() {
  const char* value = std::getenv("NGRAM_PLE_MEMORY_CHECK");
  return value == nullptr || std::string_view(value) != "0";
}

std::unique_ptr<Registrar> make_registrar(std::optional<int> device) {
  if (!device) return std::make_unique<NoRegistrar>();
#ifdef NGRAM_PLE_GPU
  return gpu::make_registrar(*device);
#else
  throw PinnedMemoryError(
      "pinned memory needs a GPU, got an ngram_ple that was built without GPU support: install it where nvcc "
      "or hipcc is found");
#endif
}

std::unique_ptr<PinnedRegion> make_region(size_t nbytes, std::optional<int> device, size_t piece_bytes,
                                          int threads, int file, bool present) {
  const py::gil_scoped_release released;
  RegionOptions options;
  options.piece_bytes = piece_bytes;
  options.threads = threads;
  options.check_room = room_is_checked();
  options.file = file;
  options.present = present;
  options.inherited = !device;  // a forked child may read what no driver locked
  return std::make_unique<PinnedRegion>(nbytes, make_registrar(device), options);
}

// Nothing once it is closed: an exception may not leave a buffer function.
py::buffer_info bytes_of(PinnedRegion& region) {
  const size_t bytes = region.address() == nullptr ? 0 : region.bytes();
  return py::buffer_info(reinterpret_cast<uint8_t*>(region.address()), static_cast<py::ssize_t>(bytes));
}

uintptr_t address_of(const PinnedRegion& region) { return reinterpret_cast<uintptr_t>(region.address()); }

#else

// Stands where the class would be, so that asking for one ends in a sentence.
struct NoRegion {};

#endif

#ifdef NGRAM_PLE_GPU

uintptr_t new_stream(int device) { return reinterpret_cast<uintptr_t>(gpu::new_stream(device)); }

uint64_t capture_id(uintptr_t stream) { return gpu::capture_id(reinterpret_cast<gpu::Stream>(stream)); }

#endif

}  // namespace

void bind_pinned_region(py::module_& m) {
  py::register_local_exception_translator(&translate);
#ifdef NGRAM_PLE_HOST_MEMORY
  // device None: registered with no GPU.
  py::class_<PinnedRegion>(m, "PinnedRegion", py::buffer_protocol())
      .def(py::init(&make_region), py::arg("nbytes"), py::arg("device"),
           py::arg("piece_bytes") = RegionOptions{}.piece_bytes, py::arg("threads") = 0, py::kw_only(),
           py::arg("file") = -1, py::arg("present") = false)
      .def_buffer(&bytes_of)
      .def_property_readonly("address", &address_of)
      .def_property_readonly("nbytes", &PinnedRegion::bytes)
      .def_property_readonly("pieces", &PinnedRegion::pieces)
      .def("huge_bytes", &PinnedRegion::huge_bytes, py::call_guard<py::gil_scoped_release>())
      .def("close", &PinnedRegion::close, py::call_guard<py::gil_scoped_release>());
#else
  py::class_<NoRegion>(m, "PinnedRegion").def(py::init([](const py::args&, const py::kwargs&) -> NoRegion {
    throw PinnedMemoryError("pinned and shared memory need Linux, got another system");
  }));
#endif
#ifdef NGRAM_PLE_GPU
  m.def("new_stream", &new_stream, py::arg("device"));
  m.def("capture_id", &capture_id, py::arg("stream"));
#endif
}

}  // namespace ngram_ple::bindings
