#include "lockstep/comm/plugins/mesh/shared_memory.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <new>

#include <fmt/format.h>

#include "lockstep/comm/reduce.h"

namespace lockstep::comm {
namespace {

// Two areas of a few ranks stay in a second-level cache.
constexpr std::int64_t kAreaBytes = 512 * 1024;
constexpr int kMaxRanks = 64;
// A peer that is computing answers within microseconds; after that it is better to yield the core.
constexpr int kSpins = 200;
// How often a sleeping rank looks for a lost peer or an abort.
constexpr long kLookNanoseconds = 20'000'000;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

std::uint32_t* futex_word(std::atomic<std::uint32_t>& word) { return reinterpret_cast<std::uint32_t*>(&word); }

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t seen) {
  const timespec limit{0, kLookNanoseconds};
  ::syscall(SYS_futex, futex_word(word), FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void futex_wake_all(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, futex_word(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

std::string random_name() {
  std::uint64_t bits[2] = {};
  if (::getrandom(bits, sizeof(bits), 0) != static_cast<ssize_t>(sizeof(bits))) return {};
  return fmt::format("/lockstep-{:016x}{:016x}", bits[0], bits[1]);
}

}  // namespace

struct alignas(128) SharedMemory::Control {
  std::atomic<std::uint32_t> step{0};      // how many times this rank has met the others
  std::atomic<std::uint32_t> sleepers{0};  // ranks that sleep until `step` moves
  std::atomic<std::uint32_t> gone{0};
};

SharedMemory::Control& SharedMemory::control(int rank) const { return reinterpret_cast<Control*>(base_)[rank]; }

std::byte* SharedMemory::area(int rank) const {
  return base_ + static_cast<std::size_t>(size_) * sizeof(Control) + (2 * rank + turn_) * kAreaBytes;
}

std::size_t SharedMemory::segment_bytes() const {
  return static_cast<std::size_t>(size_) * (sizeof(Control) + 2 * kAreaBytes);
}

bool SharedMemory::map_and_lock() {
  void* const place = ::mmap(nullptr, segment_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (place == MAP_FAILED) return false;
  base_ = static_cast<std::byte*>(place);
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank_;
  lock.l_len = 1;
  return ::fcntl(fd_, F_OFD_SETLK, &lock) == 0;
}

bool SharedMemory::create(const std::string& name) {
  fd_ = ::shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  // posix_fallocate, since a hole in a full file system would be a SIGBUS later.
  if (fd_ < 0 || ::posix_fallocate(fd_, 0, static_cast<off_t>(segment_bytes())) != 0) return false;
  if (!map_and_lock()) return false;
  for (int rank = 0; rank < size_; ++rank) new (&control(rank)) Control;
  return true;
}

bool SharedMemory::attach(const std::string& name) {
  fd_ = ::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0600);
  struct stat status {};
  if (fd_ < 0 || ::fstat(fd_, &status) != 0) return false;
  return status.st_size == static_cast<off_t>(segment_bytes()) && map_and_lock();
}

std::unique_ptr<SharedMemory> SharedMemory::open(const HostStore& store, const std::string& place, int rank, int size,
                                                 Clock::time_point deadline) {
  if (size < 2 || size > kMaxRanks) return nullptr;
  std::unique_ptr<SharedMemory> memory(new SharedMemory(rank, size));
  const std::string name_key = place + "/shm/name";
  const auto answer_key = [&](int of) { return fmt::format("{}/shm/{}", place, of); };
  std::string name;
  bool usable = false;
  if (rank == 0) {
    name = random_name();
    usable = !name.empty() && memory->create(name);
    store.set(name_key, usable ? name : "-");
  } else {
    name = store.get(name_key, deadline);
    usable = name != "-" && memory->attach(name);
  }
  // All must agree, or some would wait in shared memory and others on the network.
  store.set(answer_key(rank), usable ? "1" : "0");
  try {
    for (int peer = 0; peer < size; ++peer) usable = store.get(answer_key(peer), deadline) == "1" && usable;
  } catch (...) {
    if (rank == 0) ::shm_unlink(name.c_str());
    throw;
  }
  if (rank == 0) ::shm_unlink(name.c_str());  // the mapping lives on; nothing is left behind when the ranks end
  return usable ? std::move(memory) : nullptr;
}

SharedMemory::~SharedMemory() {
  abort();
  if (base_ != nullptr) ::munmap(base_, segment_bytes());
  if (fd_ >= 0) ::close(fd_);  // drops the lock
}

void SharedMemory::abort() noexcept {
  stop_ = true;
  if (base_ == nullptr) return;
  control(rank_).gone.store(1, std::memory_order_release);
  futex_wake_all(control(rank_).step);
}

bool SharedMemory::is_alive(int rank) const {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return ::fcntl(fd_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

void SharedMemory::wait_for(int rank, Clock::time_point deadline) {
  Control& other = control(rank);
  const auto arrived = [&](std::uint32_t seen) { return static_cast<std::int32_t>(seen - step_) >= 0; };
  for (int spin = 0; spin < kSpins; ++spin) {
    if (arrived(other.step.load(std::memory_order_acquire))) return;
    relax();
  }
  const auto began = Clock::now();
  while (true) {
    other.sleepers.fetch_add(1);
    const std::uint32_t seen = other.step.load(std::memory_order_seq_cst);
    if (!arrived(seen)) futex_wait(other.step, seen);
    other.sleepers.fetch_sub(1);
    if (arrived(other.step.load(std::memory_order_acquire))) return;
    if (stop_) throw BackendError(FaultKind::kAborted, -1, "aborted here");
    if (other.gone.load(std::memory_order_acquire) != 0) {
      throw BackendError(FaultKind::kPeerLost, rank, "closed the connection");
    }
    if (Clock::now() >= deadline) throw BackendError(FaultKind::kTimeout, rank, "did not answer in time");
    // Asking the kernel about the lock is only worth it when the peer is late.
    if (Clock::now() - began > std::chrono::milliseconds(100) && !is_alive(rank)) {
      throw BackendError(FaultKind::kPeerLost, rank, "ended");
    }
  }
}

void SharedMemory::meet(Clock::time_point deadline) {
  if (stop_) throw BackendError(FaultKind::kAborted, -1, "aborted here");
  ++step_;
  Control& own = control(rank_);
  own.step.store(step_, std::memory_order_seq_cst);
  if (own.sleepers.load(std::memory_order_seq_cst) > 0) futex_wake_all(own.step);
  for (int distance = 1; distance < size_; ++distance) wait_for((rank_ + distance) % size_, deadline);
}

void SharedMemory::reduce_chunk(const Operation& operation, std::int64_t begin, std::int64_t count,
                                Clock::time_point deadline) {
  const DType dtype = operation.output.dtype;
  const std::int64_t element = size_of(dtype);
  auto* const data = static_cast<std::byte*>(operation.output.data) + begin * element;
  // Writing into this turn's area is safe: all ranks have met once since it was last read.
  turn_ ^= 1;
  const Slice own = slice_of(count, size_, rank_);
  const auto move_slice = [&](std::byte* to, const std::byte* from, const Slice& slice) {
    std::memcpy(to + slice.begin * element, from + slice.begin * element,
                static_cast<std::size_t>(slice.count * element));
  };
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) move_slice(area(rank_), data, slice_of(count, size_, peer));
  }
  meet(deadline);
  std::vector<const void*> inputs(static_cast<std::size_t>(size_));
  for (int peer = 0; peer < size_; ++peer) {
    inputs[static_cast<std::size_t>(peer)] = (peer == rank_ ? data : area(peer)) + own.begin * element;
  }
  reduce_in_order(data + own.begin * element, inputs, own.count, dtype, operation.reduce);
  move_slice(area(rank_), data, own);
  meet(deadline);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) move_slice(data, area(peer), slice_of(count, size_, peer));
  }
}

void SharedMemory::all_reduce(const Operation& operation, Clock::time_point deadline) {
  const std::int64_t chunk = kAreaBytes / size_of(operation.output.dtype);
  for (std::int64_t begin = 0; begin < operation.output.count; begin += chunk) {
    reduce_chunk(operation, begin, std::min(chunk, operation.output.count - begin), deadline);
  }
}

void SharedMemory::barrier(Clock::time_point deadline) { meet(deadline); }

}  // namespace lockstep::comm
