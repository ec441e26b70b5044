// Host memory that a GPU reads in place, and the streams that prefetch from it. No kernels, no torch.
#pragma once

#include <cstdint>
#include <memory>

#include "gpu/launch.h"
#include "host_memory/registrar.h"

namespace ngram_ple::gpu {

// Registers memory for every GPU of the process; `device` is the one whose memory node and work count.
// Throws PinnedMemoryError where there is no such GPU.
std::unique_ptr<Registrar> make_registrar(int device);

// Where the current device reads [host, host + bytes), which must be pinned as a whole; null where it is not.
const void* device_address(const void* host, int64_t bytes);

// A new non-blocking stream of `device`; it lasts as long as the process. Its kernels come before those of
// ordinary streams wherever a multiprocessor has room.
Stream new_stream(int device);

// The capture that `stream` is part of, 0 outside of one. Numbers are not used again.
uint64_t capture_id(Stream stream);

}  // namespace ngram_ple::gpu
