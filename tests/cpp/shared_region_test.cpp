// Regions over a memory file that several map, and what kernels without MADV_POPULATE_WRITE do.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string>

#include "host_memory/limits.h"
#include "host_memory/pinned_region.h"

namespace ngram_ple {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr int kNoFilter = 77;

class MemoryFile {
 public:
  explicit MemoryFile(size_t bytes) : descriptor_(memfd_create("shared_region_test", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(descriptor_, static_cast<off_t>(bytes)), 0);
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  int descriptor() const { return descriptor_; }
  size_t held_bytes() const {
    struct stat status{};
    EXPECT_EQ(fstat(descriptor_, &status), 0);
    return static_cast<size_t>(status.st_blocks) * 512;
  }

 private:
  int descriptor_;
};

std::unique_ptr<PinnedRegion> make(const MemoryFile& file, size_t bytes, bool present = false,
                                   bool inherited = false) {
  RegionOptions options;
  options.file = file.descriptor();
  options.present = present;
  options.inherited = inherited;
  options.threads = 2;
  return std::make_unique<PinnedRegion>(bytes, std::make_unique<NoRegistrar>(), options);
}

TEST(SharedRegion, IsTheFileAtOnceAndWhole) {
  const MemoryFile file(70 * kMiB);
  auto first = make(file, 70 * kMiB - 5);
  EXPECT_EQ(file.held_bytes(), 70 * kMiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first->address()) % (2 * kMiB), 0u);
  for (size_t i = 0; i < first->bytes(); i += 511) ASSERT_EQ(first->address()[i], 0);
  first->address()[first->bytes() - 1] = 42;
  const auto second = make(file, 70 * kMiB - 5, true);
  EXPECT_EQ(second->address()[second->bytes() - 1], 42);
  EXPECT_LE(second->huge_bytes(), 70 * kMiB);
  first->close();
  second->address()[3] = 7;
  char back = 0;
  EXPECT_EQ(pread(file.descriptor(), &back, 1, 3), 1);
  EXPECT_EQ(back, 7);
}

TEST(SharedRegion, AFileThatIsTooSmallIsRefused) {
  const MemoryFile file(kMiB);
  const uint64_t before = read_memory_limits().address_space_used;
  try {
    make(file, kMiB + 1);
    FAIL() << "no error";
  } catch (const PinnedMemoryError& error) {
    EXPECT_STREQ(error.what(),
                 "shared memory of 1048577 bytes (0.00 GiB) could not be mapped: the file has "
                 "1048576 bytes (0.00 GiB)");
  }
  EXPECT_LE(read_memory_limits().address_space_used, before + kMiB);
}

TEST(SharedRegion, OnlyWhatIsNotThereYetNeedsRoom) {
  const MemoryFile file(kMiB);
  make(file, kMiB);
  RegionOptions options;
  options.file = file.descriptor();
  EXPECT_THROW(PinnedRegion(size_t{1} << 46, std::make_unique<NoRegistrar>(), options), PinnedMemoryError);
  options.present = true;
  EXPECT_NO_THROW(PinnedRegion(kMiB, std::make_unique<NoRegistrar>(), options));
}

// Whether a forked child can read the region; where it cannot, its read ends it.
bool child_reads(const PinnedRegion& region) {
  const pid_t child = fork();
  if (child == 0) {
    int channel[2];
    if (pipe(channel) != 0) _exit(2);
    _exit(write(channel[1], region.address(), 1) == 1 ? 0 : 1);  // EFAULT instead of a signal
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(SharedRegion, ChildrenInheritItWhereAsked) {
  const MemoryFile file(kMiB);
  EXPECT_FALSE(child_reads(*make(file, kMiB)));
  EXPECT_TRUE(child_reads(*make(file, kMiB, true, true)));
}

// Lets madvise(.., MADV_POPULATE_WRITE) fail as before Linux 5.14, for this process and for good.
void forget_populating() {
  constexpr uint32_t kPopulateWrite = 23;
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kPopulateWrite, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{static_cast<unsigned short>(sizeof program / sizeof *program), program};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    _exit(kNoFilter);
  }
  if (madvise(nullptr, 0, kPopulateWrite) == 0 || errno != EINVAL) _exit(78);
}

[[noreturn]] void fill_on_an_old_kernel() {
  const MemoryFile file(70 * kMiB);
  forget_populating();
  const auto first = make(file, 70 * kMiB);
  if (file.held_bytes() != 70 * kMiB) _exit(1);
  for (size_t at = 0; at < first->bytes(); at += 4096) {
    if (first->address()[at] != 0) _exit(2);
    first->address()[at] = 5;
  }
  const auto second = make(file, 70 * kMiB, true);  // touches what holds rows by now
  for (size_t at = 0; at < second->bytes(); at += 4096) {
    if (second->address()[at] != 5) _exit(3);
  }
  const PinnedRegion own(kMiB, std::make_unique<NoRegistrar>());
  for (size_t at = 0; at < own.bytes(); ++at) {
    if (own.address()[at] != 0) _exit(4);
  }
  _exit(0);
}

TEST(SharedRegion, OlderKernelsTouchPageByPage) {
  const auto passed = [](int status) {  // or may filter nothing here
    return WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == kNoFilter);
  };
  EXPECT_EXIT(fill_on_an_old_kernel(), passed, "");
}

}  // namespace
}  // namespace ngram_ple
