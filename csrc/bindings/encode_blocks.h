// ngram_ple._core's way to the encoders: blocks of rows at addresses, on the calling thread, without torch.
#pragma once

#include <pybind11/pybind11.h>

namespace ngram_ple::bindings {

void bind_encode_blocks(pybind11::module_& m);

}  // namespace ngram_ple::bindings
