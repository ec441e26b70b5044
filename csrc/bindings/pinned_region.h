// The part of ngram_ple._core that speaks of pinned memory.
#pragma once

#include <pybind11/pybind11.h>

namespace ngram_ple::bindings {

void bind_pinned_region(pybind11::module_& m);

}  // namespace ngram_ple::bindings
