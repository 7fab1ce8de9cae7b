#include "lockstep/checkpoint/host_image.h"

#include <ATen/Parallel.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <numeric>
#include <optional>
#include <thread>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/copy_values.h"
#include "lockstep/checkpoint/safetensors_header.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::int64_t kCopyBytes = 1 << 20;  // what one thread copies at a time
constexpr std::int64_t kStagingBytes = 32 << 20;
constexpr std::uint64_t kHugePage = 2u << 20;
constexpr std::uint64_t kPopulateBytes = 32u << 20;  // at a time: the kernel holds up other mappings meanwhile

std::uint64_t bytes_of(const torch::Tensor& tensor) {
  return static_cast<std::uint64_t>(tensor.numel()) * tensor.element_size();
}

// Widest elements first: with no holes allowed, this keeps every tensor aligned to its element size.
std::vector<const TensorPiece*> image_order(const std::vector<TensorPiece>& pieces) {
  std::vector<const TensorPiece*> order;
  order.reserve(pieces.size());
  for (const TensorPiece& piece : pieces) order.push_back(&piece);
  std::stable_sort(order.begin(), order.end(),
                   [](auto* a, auto* b) { return a->values.element_size() > b->values.element_size(); });
  return order;
}

ExponentBits exponents_of(const StoredPiece& piece) {
  if (piece.kind == TensorKind::kRank) return {};
  return exponent_bits(torch_dtype(piece.dtype, "a checkpoint"));
}

void wait_for(const c10::Event& event) {
  while (!event.query()) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

}  // namespace

// Huge pages: the first save touches every page of it.
struct HostImage::Mapping {
  explicit Mapping(std::uint64_t wanted) : bytes((wanted + kHugePage - 1) / kHugePage * kHugePage) {
    void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      throw environment_error(
          "no memory for the copy that a checkpoint or snapshot is made of (" + std::to_string(bytes) + " bytes)",
          "use fewer ranks on this node or a layout that shards the optimizer");
    }
    start = static_cast<unsigned char*>(memory);
    ::madvise(memory, bytes, MADV_HUGEPAGE);
  }
  ~Mapping() { ::munmap(start, bytes); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::uint64_t bytes = 0;
  unsigned char* start = nullptr;
};

// Memory of a device on its way here, through two page-locked buffers: one fills while the other is emptied.
struct HostImage::DeviceCopy {
  explicit DeviceCopy(torch::Device device)
      : guard(device.type()), stream(guard.getStreamFromGlobalPool(device)), ready(device.type()) {}

  bool copy_sources();
  void run();

  struct Lane {
    torch::Tensor buffer;
    std::unique_ptr<c10::Event> filled;
    unsigned char* to = nullptr;
    std::size_t bytes = 0;
  };
  void empty(Lane& lane) const;

  c10::impl::VirtualGuardImpl guard;
  c10::Stream stream;
  c10::Event ready;  // the sources have their values
  std::vector<Move> moves;
  Lane lanes[2];
};

// The sources become a copy of themselves, in one block: taking memory of a device costs by the piece. False where the
// device has no room for it.
bool HostImage::DeviceCopy::copy_sources() {
  std::int64_t bytes = 0;
  for (const Move& move : moves) bytes += move.from.numel();
  torch::Tensor block;
  try {
    block = torch::empty({bytes}, moves.front().from.options());
  } catch (const c10::Error&) {
    return false;
  }
  std::int64_t done = 0;
  for (Move& move : moves) {
    torch::Tensor own = block.narrow(0, done, move.from.numel());
    done += move.from.numel();
    own.copy_(move.from);
    move.from = std::move(own);
  }
  return true;
}

void HostImage::DeviceCopy::empty(Lane& lane) const {
  if (lane.bytes == 0) return;
  wait_for(*lane.filled);
  std::memcpy(lane.to, lane.buffer.data_ptr<std::uint8_t>(), std::exchange(lane.bytes, 0));
}

void HostImage::DeviceCopy::run() {
  const torch::NoGradGuard no_grad;
  const c10::StreamGuard on_own(stream);
  ready.block(stream);
  for (Lane& lane : lanes) {
    lane.bytes = 0;
    if (lane.filled) continue;
    lane.buffer = torch::empty({kStagingBytes}, torch::TensorOptions().dtype(torch::kUInt8).pinned_memory(true));
    lane.filled = std::make_unique<c10::Event>(stream.device_type());
  }
  std::size_t turn = 0;
  for (Move& move : moves) {
    for (std::int64_t done = 0; done < move.from.numel(); done += kStagingBytes, ++turn) {
      Lane& lane = lanes[turn % 2];
      empty(lane);
      const std::int64_t bytes = std::min(kStagingBytes, move.from.numel() - done);
      lane.buffer.narrow(0, 0, bytes).copy_(move.from.narrow(0, done, bytes), /*non_blocking=*/true);
      lane.filled->record(stream);
      lane.to = move.to + done;
      lane.bytes = static_cast<std::size_t>(bytes);
    }
  }
  for (Lane& lane : lanes) empty(lane);
  moves.clear();
}

HostImage::HostImage(Front front) : front_(front) {}
HostImage::~HostImage() = default;

std::vector<HostImage::Move> HostImage::lay_out(const std::vector<TensorPiece>& pieces) {
  pieces_ = image_places(pieces);
  const std::vector<const TensorPiece*> order = image_order(pieces);
  SafetensorsHeader header;
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    end = pieces_[i].offset + bytes_of(order[i]->values);
    if (front_ == Front::kNone) continue;
    const std::string name = std::string(to_string(pieces_[i].kind)) + ":" + pieces_[i].name;
    header.tensors.push_back({name, pieces_[i].dtype, {order[i]->values.numel()}, pieces_[i].offset, end});
  }
  const std::string front = front_ == Front::kSafetensors ? header_bytes(header) : "";
  make_room(front.size() + end);
  std::memcpy(data_, front.data(), front.size());
  std::vector<Move> moves;
  for (std::size_t i = 0; i < order.size(); ++i) {
    pieces_[i].offset += front.size();
    if (order[i]->values.numel() == 0) continue;
    const torch::Tensor flat = order[i]->values.detach().contiguous().view({-1});
    moves.push_back({data_ + pieces_[i].offset, flat.view(torch::kUInt8), i});
  }
  return moves;
}

void HostImage::make_room(std::uint64_t bytes) {
  size_ = bytes;
  if (!mapping_ || mapping_->bytes < bytes) {
    mapping_.reset();
    mapping_ = std::make_unique<Mapping>(bytes);
  }
  data_ = mapping_->start;
}

void HostImage::prepare(std::uint64_t bytes) {
  make_room(bytes + kHugePage);  // and a header
#ifdef MADV_POPULATE_WRITE
  for (std::uint64_t done = 0; done < mapping_->bytes; done += kPopulateBytes) {
    // Where the kernel cannot, the first copy does it.
    const std::uint64_t piece = std::min(kPopulateBytes, mapping_->bytes - done);
    if (::madvise(mapping_->start + done, piece, MADV_POPULATE_WRITE) != 0) return;
  }
#endif
}

void HostImage::take(const std::vector<TensorPiece>& pieces) {
  if (device_copy_) device_copy_->moves.clear();  // of a save that was given up
  not_finite_.reset();
  const torch::NoGradGuard no_grad;
  std::vector<Move> here, there;
  for (Move& move : lay_out(pieces)) (move.from.is_cpu() ? here : there).push_back(std::move(move));
  if (!there.empty()) copy_device(std::move(there));
  copy_host(here);
}

void HostImage::copy_host(const std::vector<Move>& moves) {
  std::vector<std::int64_t> chunks = {0};  // before each move
  for (const Move& move : moves) chunks.push_back(chunks.back() + (move.from.numel() + kCopyBytes - 1) / kCopyBytes);
  std::atomic<std::size_t> bad{pieces_.size()};
  at::parallel_for(0, chunks.back(), 1, [&](std::int64_t begin, std::int64_t end) {
    std::size_t at =
        static_cast<std::size_t>(std::upper_bound(chunks.begin(), chunks.end(), begin) - chunks.begin()) - 1;
    for (std::int64_t chunk = begin; chunk < end; ++chunk) {
      while (chunk >= chunks[at + 1]) ++at;
      const std::int64_t first = (chunk - chunks[at]) * kCopyBytes;
      const std::int64_t bytes = std::min(kCopyBytes, moves[at].from.numel() - first);
      const StoredPiece& piece = pieces_[moves[at].piece];
      if (!copy_values(moves[at].to + first, moves[at].from.data_ptr<std::uint8_t>() + first,
                       static_cast<std::size_t>(bytes), exponents_of(piece))) {
        bad = moves[at].piece;
      }
    }
  });
  if (bad < pieces_.size()) not_finite_ = bad;
}

void HostImage::copy_device(std::vector<Move> moves) {
  const torch::Device device = moves.front().from.device();
  if (!device_copy_) device_copy_ = std::make_unique<DeviceCopy>(device);
  DeviceCopy& copy = *device_copy_;
  copy.moves = std::move(moves);
  const bool spare = copy.copy_sources();
  copy.ready.record(copy.guard.getStream(device));
  if (!spare) return copy.run();
  wait_for(copy.ready);  // the next step may run on a stream that does not know of this one
}

std::optional<std::string> HostImage::not_finite() const {
  if (!not_finite_) return std::nullopt;
  return pieces_[*not_finite_].name;
}

void HostImage::finish() {
  if (device_copy_ && !device_copy_->moves.empty()) device_copy_->run();
}

std::vector<StoredPiece> image_places(const std::vector<TensorPiece>& pieces) {
  std::vector<StoredPiece> places;
  std::uint64_t offset = 0;
  for (const TensorPiece* piece : image_order(pieces)) {
    LOCKSTEP_ASSERT(elements_of(piece->series) == piece->values.numel(), "a piece has the elements that it says");
    places.push_back({piece->kind, piece->name, safetensors_dtype(piece->values.scalar_type()), piece->sizes,
                      piece->series, offset});
    offset += bytes_of(piece->values);
  }
  return places;
}

std::vector<TensorPiece> pieces_at(const std::vector<StoredPiece>& stored, unsigned char* data,
                                   const std::shared_ptr<const void>& owner) {
  std::vector<TensorPiece> pieces;
  for (const StoredPiece& piece : stored) {
    const std::int64_t count = elements_of(piece.series);
    const auto options = torch::TensorOptions().dtype(torch_dtype(piece.dtype, "a snapshot"));
    torch::Tensor values = torch::from_blob(
        data + piece.offset, {count}, [owner](void*) {}, options);
    pieces.push_back({piece.kind, piece.name, piece.sizes, piece.series, std::move(values)});
  }
  return pieces;
}

std::vector<std::uint32_t> block_checksums(const unsigned char* data, std::uint64_t bytes) {
  std::vector<std::uint32_t> blocks((bytes + kDigestBlockBytes - 1) / kDigestBlockBytes);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::uint64_t first = i * kDigestBlockBytes;
    blocks[i] = crc32c(data + first, std::min(kDigestBlockBytes, bytes - first));
  }
  return blocks;
}

}  // namespace lockstep::checkpoint
