// Pinned regions of the real driver, and kernels that read them in place.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "cpp/gpu/device.h"
#include "gpu/host_runtime.h"
#include "gpu/launch.h"
#include "gpu/pinned_memory.h"
#include "host_memory/pinned_region.h"

namespace ngram_ple::test {
namespace {

constexpr size_t kPage = 4096;

std::unique_ptr<PinnedRegion> make_region(size_t bytes, size_t piece_bytes) {
  RegionOptions options;
  options.piece_bytes = piece_bytes;
  return std::make_unique<PinnedRegion>(bytes, gpu::make_registrar(0), options);
}

TEST(PinnedMemory, IsReadInPlaceAcrossItsPieces) {
  constexpr int64_t kRows = 1000, kRowBytes = 320;  // no divisor of a page
  const auto region = make_region(kRows * kRowBytes, kPage);
  EXPECT_EQ(region->pieces(), (kRows * kRowBytes + kPage - 1) / kPage);
  for (int64_t i = 0; i < kRows * kRowBytes; ++i) region->address()[i] = static_cast<char>(i * 31 + i / 256);

  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 3 * kRows; ++i) ids.push_back(i * 37 % kRows);
  const DeviceBuffer device_ids(ids), out(ids.size() * kRowBytes);
  TableView table{};
  table.format = make_row_format(Format::bf16, 160);
  table.row_stride = kRowBytes;
  table.row_end = kRows;
  table.rows = static_cast<const uint8_t*>(gpu::device_address(region->address(), kRows * kRowBytes));
  ASSERT_NE(table.rows, nullptr);
  const gpu::Stream stream = gpu::new_stream(0);
  gpu::lookup({device_ids.data(), true}, static_cast<int64_t>(ids.size()), table, OutType::bf16, out.data(),
              stream);
  ASSERT_EQ(NGP_VENDOR(StreamSynchronize)(static_cast<NGP_VENDOR(Stream_t)>(stream)), NGP_VENDOR(Success));
  const auto got = out.download<uint8_t>();
  for (size_t i = 0; i < ids.size(); ++i) {
    const char* row = region->address() + ids[i] * kRowBytes;
    ASSERT_EQ(std::memcmp(got.data() + i * kRowBytes, row, kRowBytes), 0) << i;
  }
}

TEST(PinnedMemory, OnlyMemoryThatIsPinnedAsAWholeHasADeviceAddress) {
  const auto region = make_region(3 * kPage, kPage);
  EXPECT_EQ(gpu::device_address(region->address(), 3 * kPage), region->address());
  EXPECT_EQ(gpu::device_address(region->address() + 5, 7), region->address() + 5);
  EXPECT_EQ(gpu::device_address(region->address(), 3 * kPage + 1), nullptr);
  const std::vector<uint8_t> pageable(100);
  EXPECT_EQ(gpu::device_address(pageable.data(), 100), nullptr);
  const DeviceBuffer pinned(100, 0, Placement::pinned);
  EXPECT_EQ(gpu::device_address(pinned.data(), 100), pinned.data());
  region->close();
  EXPECT_EQ(NGP_VENDOR(GetLastError)(), NGP_VENDOR(Success));
}

TEST(PinnedMemory, IsPageableAgainOnceClosed) {
  std::vector<uint8_t> memory(4 * kPage);
  const auto aligned = (reinterpret_cast<uintptr_t>(memory.data()) + kPage - 1) / kPage * kPage;
  void* const page = reinterpret_cast<void*>(aligned);
  const auto registrar = gpu::make_registrar(0);
  registrar->lock(page, kPage);
  EXPECT_EQ(gpu::device_address(page, kPage), page);
  EXPECT_THROW(registrar->lock(page, kPage), std::runtime_error);  // it is taken
  EXPECT_EQ(NGP_VENDOR(GetLastError)(), NGP_VENDOR(Success));
  registrar->unlock(page);
  EXPECT_EQ(gpu::device_address(page, kPage), nullptr);
  registrar->unlock(page);
  EXPECT_EQ(NGP_VENDOR(GetLastError)(), NGP_VENDOR(Success));
}

TEST(PinnedMemory, ThereMustBeSuchAGpu) {
  EXPECT_THROW(gpu::make_registrar(-1), PinnedMemoryError);
  EXPECT_THROW(gpu::make_registrar(1000), PinnedMemoryError);
}

TEST(CaptureId, IsZeroOutsideAndNewEveryTime) {
  const gpu::Stream stream = gpu::new_stream(0);
  const auto handle = static_cast<NGP_VENDOR(Stream_t)>(stream);
  EXPECT_EQ(gpu::capture_id(stream), 0u);
  EXPECT_EQ(gpu::capture_id(nullptr), 0u);
  std::vector<uint64_t> ids;
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(NGP_VENDOR(StreamBeginCapture)(handle, NGP_VENDOR(StreamCaptureModeGlobal)),
              NGP_VENDOR(Success));
    ids.push_back(gpu::capture_id(stream));
    EXPECT_EQ(gpu::capture_id(stream), ids.back());
    const auto region = make_region(kPage, kPage);  // none of the capture's business
    EXPECT_NE(gpu::device_address(region->address(), kPage), nullptr);
    NGP_VENDOR(Graph_t) graph = nullptr;
    ASSERT_EQ(NGP_VENDOR(StreamEndCapture)(handle, &graph), NGP_VENDOR(Success));
    NGP_CALL(GraphDestroy, graph);
  }
  EXPECT_NE(ids[0], 0u);
  EXPECT_NE(ids[0], ids[1]);
}

}  // namespace
}  // namespace ngram_ple::test
