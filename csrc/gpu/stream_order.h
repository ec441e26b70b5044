// Order between streams, and between a stream and the host, that a graph can capture.
#pragma once

#include <cstdint>

#include "gpu/launch.h"

namespace ngram_ple::gpu {

// Throws std::runtime_error.
void copy_to_device(Stream stream, uint8_t* to, const uint8_t* from, int64_t bytes);

// Lets one stream wait for another.
class Handover {
 public:
  Handover();
  ~Handover();
  Handover(const Handover&) = delete;
  Handover& operator=(const Handover&) = delete;

  // `to` goes on after all that `from` has been given so far.
  void pass(Stream from, Stream to);

 private:
  void* event_ = nullptr;
};

// Calls on the host beside what a stream does next.
class HostBranch {
 public:
  HostBranch();  // of the current device
  ~HostBranch();
  HostBranch(const HostBranch&) = delete;
  HostBranch& operator=(const HostBranch&) = delete;

  // Begins after all earlier work of the stream, which goes on at once. These throw std::runtime_error.
  void fork(Stream stream);
  // Calls function(data) on a thread of the driver's after the calls before it. The function may not call the
  // driver.
  void call(void (*function)(void*), void* data);
  // Lets the stream wait until the calls so far have returned.
  void join(Stream stream);

 private:
  Stream side_ = nullptr;
  void* fork_ = nullptr;
  void* joined_ = nullptr;
};

// The end of the last use of something that one stream at a time may use.
class LastUse {
 public:
  LastUse();
  ~LastUse();
  LastUse(const LastUse&) = delete;
  LastUse& operator=(const LastUse&) = delete;

  // Lets the stream wait for it. A use inside one capture and a use outside of it say nothing to each other:
  // what a graph does is ordered by the stream that it is replayed on.
  void wait_on(Stream stream, uint64_t capture);
  void record(Stream stream, uint64_t capture);

 private:
  void* event_ = nullptr;
  uint64_t capture_ = 0;
  bool recorded_ = false;
};

}  // namespace ngram_ple::gpu
