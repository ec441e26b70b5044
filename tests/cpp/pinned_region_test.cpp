#include "host_memory/pinned_region.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <string>

#include "host_memory/limits.h"

namespace ngram_ple {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kMiB = size_t{1} << 20;

// What a driver was asked, and when it is to fail.
struct Driver {
  std::vector<std::pair<char*, size_t>> locked;
  int locks = 0, waits = 0, unknown_unlocks = 0;
  int fail_at = std::numeric_limits<int>::max();  // the lock that fails, counted from 0
  size_t most_bytes = std::numeric_limits<size_t>::max();
};

class FakeRegistrar final : public Registrar {
 public:
  explicit FakeRegistrar(Driver& driver) : driver_(driver) {}
  void lock(void* address, size_t bytes) override {
    if (driver_.locks++ == driver_.fail_at || bytes > driver_.most_bytes) {
      throw std::runtime_error("fakeHostRegister: out of memory");
    }
    driver_.locked.emplace_back(static_cast<char*>(address), bytes);
  }
  void unlock(void* address) noexcept override {
    for (auto at = driver_.locked.begin(); at != driver_.locked.end(); ++at) {
      if (at->first != address) continue;
      driver_.locked.erase(at);
      return;
    }
    ++driver_.unknown_unlocks;
  }
  void wait() noexcept override { ++driver_.waits; }
  int memory_node() noexcept override { return 0; }

 private:
  Driver& driver_;
};

std::unique_ptr<PinnedRegion> make(Driver& driver, size_t bytes, size_t piece_bytes = 64 * kMiB,
                                   bool check_room = true, int threads = 3) {
  RegionOptions options;
  options.piece_bytes = piece_bytes;
  options.threads = threads;
  options.check_room = check_room;
  return std::make_unique<PinnedRegion>(bytes, std::make_unique<FakeRegistrar>(driver), options);
}

std::string failure_of(Driver& driver, size_t bytes, size_t piece_bytes = 64 * kMiB, bool check_room = true) {
  try {
    make(driver, bytes, piece_bytes, check_room, 1);
  } catch (const PinnedMemoryError& error) {
    return error.what();
  }
  return "no error";
}

#define EXPECT_CONTAINS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

uint64_t address_space() { return read_memory_limits().address_space_used; }

uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * kPage;
}

TEST(PinnedRegion, IsZeroedAlignedAndWritable) {
  Driver driver;
  const auto region = make(driver, 5 * kMiB + 123);
  EXPECT_EQ(region->bytes(), 5 * kMiB + 123);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(region->address()) % (2 * kMiB), 0u);
  for (size_t i = 0; i < region->bytes(); ++i) ASSERT_EQ(region->address()[i], 0);
  region->address()[region->bytes() - 1] = 1;
  EXPECT_LE(region->huge_bytes(), 6 * kMiB);
}

TEST(PinnedRegion, HasItsExactSizeAndIsResidentAtOnce) {
  Driver driver;
  {
    const auto warm = make(driver, 16 * kMiB);
  }
  const uint64_t mapped = address_space(), resident = resident_bytes();
  const auto region = make(driver, 200 * kMiB + 1, 64 * kMiB, true, 1);
  EXPECT_LE(address_space() - mapped, 201 * kMiB);
  EXPECT_GE(resident_bytes() - resident, 200 * kMiB);
  EXPECT_LE(resident_bytes() - resident, 202 * kMiB);
}

TEST(PinnedRegion, IsRegisteredInPiecesThatCoverIt) {
  for (const size_t piece : {kPage, 3 * kPage, 3 * kPage + 17, 40 * kPage, 41 * kPage, 100 * kPage}) {
    Driver driver;
    const auto region = make(driver, 40 * kPage + 1, piece);
    const size_t whole = piece / kPage * kPage;
    char* expected = region->address();
    for (const auto& [address, bytes] : driver.locked) {
      EXPECT_EQ(address, expected);
      EXPECT_LE(bytes, whole);
      EXPECT_EQ(bytes % kPage, 0u);
      expected += bytes;
    }
    EXPECT_EQ(expected, region->address() + 41 * kPage);
    EXPECT_EQ(region->pieces(), (41 * kPage + whole - 1) / whole);
  }
}

TEST(PinnedRegion, CloseWaitsUnlocksAndUnmapsOnce) {
  Driver driver;
  const uint64_t before = address_space();
  auto region = make(driver, 64 * kMiB, 10 * kMiB);
  region->close();
  EXPECT_EQ(region->address(), nullptr);
  EXPECT_EQ(region->huge_bytes(), 0u);
  EXPECT_EQ(driver.waits, 1);
  EXPECT_TRUE(driver.locked.empty());
  region->close();
  region.reset();
  EXPECT_EQ(driver.waits, 1);
  EXPECT_EQ(driver.unknown_unlocks, 0);
  EXPECT_LT(address_space(), before + 32 * kMiB);
}

TEST(PinnedRegion, AFailureAtAnyPieceGivesAllBack) {
  constexpr int kPieces = 7;
  for (int piece = 0; piece < kPieces; ++piece) {
    Driver driver;
    driver.fail_at = piece;
    const uint64_t before = address_space();
    const std::string said = failure_of(driver, kPieces * 16 * kMiB - 5, 16 * kMiB, false);
    EXPECT_CONTAINS(said,
                    "failed at piece " + std::to_string(piece + 1) + " of 7 (16777216 bytes (0.02 GiB))");
    EXPECT_CONTAINS(said, "fakeHostRegister: out of memory; RLIMIT_MEMLOCK is ");
    EXPECT_EQ(driver.locks, piece + 1);
    EXPECT_TRUE(driver.locked.empty());
    EXPECT_EQ(driver.unknown_unlocks, 0);
    EXPECT_LT(address_space(), before + 64 * kMiB);
  }
}

TEST(PinnedRegion, RefusesArgumentsThatAreNone) {
  Driver driver;
  EXPECT_CONTAINS(failure_of(driver, 0), "nbytes must be > 0, got 0");
  EXPECT_CONTAINS(failure_of(driver, 1, 4095), "piece_bytes must be at least a page of 4096 bytes, got 4095");
  EXPECT_EQ(driver.locks, 0);
}

TEST(PinnedRegion, MoreThanTheMachineHasIsRefusedBeforeAnythingIsTaken) {
  Driver driver;
  const uint64_t before = address_space();
  const std::string said = failure_of(driver, size_t{1} << 46);
  EXPECT_CONTAINS(said, "pinned memory of 70368744177664 bytes (65536.00 GiB) does not fit: ");
  EXPECT_EQ(driver.locks, 0);
  EXPECT_EQ(address_space(), before);
}

TEST(PinnedRegion, AForkedChildHasNoneOfIt) {
  Driver driver;
  auto region = make(driver, 8 * kMiB, kMiB);
  region->address()[0] = 42;
  const pid_t child = fork();
  if (child == 0) {
    region.reset();  // must neither ask the driver nor unmap what may lie there
    _exit(driver.locked.size() == 8 && driver.waits == 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(region->address()[0], 42);
}

// In a process of its own: makes a region under a resource limit and compares the message.
[[noreturn]] void try_under_limit(__rlimit_resource resource, uint64_t limit, size_t bytes,
                                  size_t driver_limit, const std::string& expected) {
  rlimit value{};
  getrlimit(resource, &value);
  value.rlim_cur = limit;
  setrlimit(resource, &value);
  Driver driver;
  driver.most_bytes = driver_limit;
  const std::string said = failure_of(driver, bytes);
  if (said.find(expected) == std::string::npos || !driver.locked.empty()) {
    std::fprintf(stderr, "%s\n", said.c_str());
    _exit(1);
  }
  _exit(0);
}

#if defined(__SANITIZE_ADDRESS__)
#define UNDER_LIMITS(name) DISABLED_##name  // it takes address space by the terabyte
#else
#define UNDER_LIMITS(name) name
#endif

TEST(PinnedRegion, UNDER_LIMITS(ASmallAddressSpaceIsFoundBeforehand)) {
  const uint64_t limit = address_space() + 64 * kMiB;
  EXPECT_EXIT(try_under_limit(RLIMIT_AS, limit, 128 * kMiB, SIZE_MAX,
                              "the address space limit (RLIMIT_AS, ulimit -v) is " + bytes_text(limit)),
              testing::ExitedWithCode(0), "");
}

TEST(PinnedRegion, ASmallLockLimitIsFoundBeforehandWhereTheDriverCountsIt) {
  const std::string said =
      "the lock limit (RLIMIT_MEMLOCK, ulimit -l) is 1048576 bytes (0.00 GiB) and the "
      "driver locked no more (fakeHostRegister: out of memory)";
  EXPECT_EXIT(try_under_limit(RLIMIT_MEMLOCK, kMiB, 8 * kMiB, kMiB, said), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(try_under_limit(RLIMIT_MEMLOCK, kMiB, 8 * kMiB, SIZE_MAX, "no error"),
              testing::ExitedWithCode(0), "");
  EXPECT_EXIT(try_under_limit(RLIMIT_MEMLOCK, kMiB, kMiB, kMiB, "no error"), testing::ExitedWithCode(0), "");
}

TEST(CheckRoom, NamesTheLimitAndItsNumbers) {
  const auto said = [](const MemoryLimits& limits) -> std::string {
    try {
      check_room(1000, limits);
    } catch (const PinnedMemoryError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(said({}), "");
  MemoryLimits limits;
  limits.available = 999;
  EXPECT_EQ(said(limits),
            "pinned memory of 1000 bytes (0.00 GiB) does not fit: MemAvailable is 999 bytes (0.00 GiB); "
            "NGRAM_PLE_MEMORY_CHECK=0 tries all the same");
  limits.available = 1000;
  EXPECT_EQ(said(limits), "");
  limits.group_room = 10;
  EXPECT_CONTAINS(said(limits), "the memory limit of the control group leaves 10 bytes");
  limits = {};
  limits.address_space = 2000;
  limits.address_space_used = 1000;
  EXPECT_EQ(said(limits), "");
  limits.address_space_used = 1001;
  EXPECT_CONTAINS(said(limits), "is 2000 bytes (0.00 GiB), of which 1001 bytes (0.00 GiB) are in use");
  limits.address_space_used = 3000;
  EXPECT_CONTAINS(said(limits), "RLIMIT_AS");
}

TEST(ReadMemoryLimits, FindsWhatEverySystemTells) {
  const MemoryLimits limits = read_memory_limits();
  EXPECT_GT(limits.available, 0u);
  EXPECT_NE(limits.available, kUnlimited);
  EXPECT_GT(limits.address_space_used, 0u);
}

}  // namespace
}  // namespace ngram_ple
