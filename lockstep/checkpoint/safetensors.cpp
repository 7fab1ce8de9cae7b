#include "lockstep/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/safetensors_header.h"

namespace lockstep::checkpoint {
namespace {

// The reference implementation's limit; also bounds what a lying length can make us allocate.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
// What a read that converts holds in memory beside the result.
constexpr std::int64_t kPieceBytes = 16 << 20;

struct DtypeName {
  torch::ScalarType dtype;
  const char* name;
};

constexpr DtypeName kDtypes[] = {
    {torch::kFloat64, "F64"}, {torch::kFloat32, "F32"}, {torch::kFloat16, "F16"}, {torch::kBFloat16, "BF16"},
    {torch::kInt64, "I64"},   {torch::kInt32, "I32"},   {torch::kInt16, "I16"},   {torch::kInt8, "I8"},
    {torch::kUInt8, "U8"},    {torch::kBool, "BOOL"},
};

std::optional<torch::ScalarType> dtype_from_name(const std::string& name) {
  for (const DtypeName& row : kDtypes) {
    if (name == row.name) return row.dtype;
  }
  return std::nullopt;
}

// What a hostile file says may hold control characters; a message is one printable line.
constexpr std::size_t kMessageBytes = 300;

UserError lie(const std::filesystem::path& path, const std::string& problem) {
  return bad_input("not a valid safetensors file: " + printable(problem, kMessageBytes), "download or write it again",
                   {path.string()});
}

// Bytes of `shape`, or nothing when the product leaves int64. Zero-size dims must not hide an overflow: libtorch
// multiplies the others into strides.
std::optional<std::uint64_t> checked_bytes(const std::vector<std::int64_t>& shape, std::uint64_t element_bytes) {
  std::int64_t product = static_cast<std::int64_t>(element_bytes);
  bool empty = false;
  for (const std::int64_t dim : shape) {
    if (dim == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(product, dim, &product)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : static_cast<std::uint64_t>(product);
}

// Turns what the header says into an entry, checked against the size of the data.
TensorEntry checked_entry(const std::filesystem::path& path, const HeaderTensor& said, std::uint64_t data_start,
                          std::uint64_t data_bytes) {
  const auto dtype = dtype_from_name(said.dtype);
  if (!dtype) throw lie(path, "tensor '" + said.name + "' has the unsupported dtype '" + said.dtype + "'");
  if (said.begin > said.end || said.end > data_bytes) {
    throw lie(path, "tensor '" + said.name + "' lies at bytes " + std::to_string(said.begin) + ".." +
                        std::to_string(said.end) + " of " + std::to_string(data_bytes));
  }
  const auto bytes = checked_bytes(said.shape, torch::elementSize(*dtype));
  if (!bytes || *bytes != said.end - said.begin) {
    throw lie(path, "tensor '" + said.name + "' has a shape that does not match its " +
                        std::to_string(said.end - said.begin) + " bytes");
  }
  return {said.name, *dtype, said.shape, data_start + said.begin, *bytes};
}

// The format has no holes and no overlaps: sorted by offset, each tensor begins where the last one ended.
void check_coverage(const std::filesystem::path& path, const std::map<std::string, TensorEntry>& entries,
                    std::uint64_t data_start, std::uint64_t file_bytes) {
  std::vector<const TensorEntry*> by_offset;
  by_offset.reserve(entries.size());
  for (const auto& [name, entry] : entries) by_offset.push_back(&entry);
  std::sort(by_offset.begin(), by_offset.end(), [](const TensorEntry* a, const TensorEntry* b) {
    return std::tie(a->offset, a->bytes) < std::tie(b->offset, b->bytes);
  });
  std::uint64_t next = data_start;
  for (const TensorEntry* entry : by_offset) {
    if (entry->offset != next) {
      throw lie(path, "tensor '" + entry->name + "' " + (entry->offset < next ? "overlaps" : "leaves a hole after") +
                          " the one before it");
    }
    next += entry->bytes;
  }
  if (next != file_bytes) {
    throw lie(path, std::to_string(file_bytes - next) + " bytes at the end belong to no tensor");
  }
}

// A bool that is neither 0 nor 1 is undefined behaviour for whoever looks at it.
bool holds_bad_bools(const torch::Tensor& raw) {
  if (raw.scalar_type() != torch::kBool) return false;
  const auto* bytes = static_cast<const unsigned char*>(raw.data_ptr());
  return std::any_of(bytes, bytes + raw.numel(), [](unsigned char b) { return b > 1; });
}

}  // namespace

std::string safetensors_dtype(torch::ScalarType dtype) {
  for (const DtypeName& row : kDtypes) {
    if (dtype == row.dtype) return row.name;
  }
  throw bad_input(std::string("dtype ") + c10::toString(dtype) + " cannot be stored in safetensors",
                  "convert the tensor first");
}

torch::ScalarType torch_dtype(const std::string& name, const std::filesystem::path& path) {
  const auto dtype = dtype_from_name(name);
  if (!dtype) throw lie(path, "the unsupported dtype '" + name + "'");
  return *dtype;
}

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) { return open(open_for_reading(path), path); }

SafetensorsFile SafetensorsFile::open(UniqueFd file, const std::filesystem::path& path) {
  SafetensorsFile result;
  result.path_ = path;
  result.file_ = std::move(file);
  const std::uint64_t size = file_size(result.file_, path);
  if (size < kHeaderLengthBytes + 2) throw lie(path, "only " + std::to_string(size) + " bytes long");
  unsigned char raw[kHeaderLengthBytes];
  read_exactly(result.file_, path, raw, kHeaderLengthBytes, 0);
  std::uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | raw[i];
  if (header_bytes > size - kHeaderLengthBytes || header_bytes > kMaxHeaderBytes) {
    throw lie(path,
              "its header claims " + std::to_string(header_bytes) + " bytes, the file has " + std::to_string(size));
  }
  std::string text(header_bytes, '\0');
  read_exactly(result.file_, path, text.data(), header_bytes, kHeaderLengthBytes);
  SafetensorsHeader header;
  if (auto problem = parse_header(text, header)) throw lie(path, *problem);

  const std::uint64_t data_start = kHeaderLengthBytes + header_bytes;
  for (const HeaderTensor& said : header.tensors) {
    TensorEntry entry = checked_entry(path, said, data_start, size - data_start);
    result.entries_.emplace(said.name, std::move(entry));
  }
  check_coverage(path, result.entries_, data_start, size);
  result.metadata_ = std::move(header.metadata);
  return result;
}

const TensorEntry& SafetensorsFile::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    throw bad_input("there is no tensor '" + name + "'", "check that the file belongs to this model", {path_.string()});
  }
  return found->second;
}

torch::Tensor SafetensorsFile::read(const std::string& name) const {
  const TensorEntry& where = entry(name);
  torch::Tensor tensor = torch::empty(where.shape, torch::TensorOptions().dtype(where.dtype));
  read_range(name, 0, tensor.view(-1));
  return tensor;
}

void SafetensorsFile::read_range(const std::string& name, std::int64_t first, torch::Tensor out) const {
  const TensorEntry& where = entry(name);
  LOCKSTEP_ASSERT(out.dim() == 1 && out.is_contiguous(), "read_range fills one-dimensional contiguous tensors");
  const auto element_bytes = static_cast<std::int64_t>(torch::elementSize(where.dtype));
  const std::int64_t elements = static_cast<std::int64_t>(where.bytes) / element_bytes, count = out.numel();
  if (first < 0 || first > elements || count > elements - first) {
    throw bad_input("tensor '" + printable(name, kMessageBytes) + "' has " + std::to_string(elements) +
                        " elements, wanted " + std::to_string(count) + " from number " + std::to_string(first),
                    "check that the file belongs to this model", {path_.string()});
  }
  const torch::NoGradGuard no_grad;
  const bool in_place = out.device().is_cpu() && out.scalar_type() == where.dtype;
  const std::int64_t piece = kPieceBytes / element_bytes;
  for (std::int64_t done = 0; done < count; done += piece) {
    const std::int64_t part = std::min(piece, count - done);
    torch::Tensor target = out.narrow(0, done, part);
    torch::Tensor raw = in_place ? target : torch::empty({part}, torch::TensorOptions().dtype(where.dtype));
    read_exactly(file_, path_, raw.data_ptr(), static_cast<std::uint64_t>(part * element_bytes),
                 where.offset + static_cast<std::uint64_t>((first + done) * element_bytes));
    if (holds_bad_bools(raw)) throw lie(path_, "tensor '" + name + "' is BOOL and holds values other than 0 and 1");
    if (!in_place) target.copy_(raw);
  }
}

void SafetensorsFile::read_into(const std::string& name, torch::Tensor& target) const {
  const TensorEntry& where = entry(name);
  if (target.sizes() != c10::IntArrayRef(where.shape)) {
    throw bad_input("tensor '" + name + "' has the shape " + c10::str(c10::IntArrayRef(where.shape)) + ", wanted " +
                        c10::str(target.sizes()),
                    "check that the file belongs to this model", {path_.string()});
  }
  torch::NoGradGuard no_grad;
  target.copy_(read(name));
}

TensorMap SafetensorsFile::read_all() const {
  TensorMap tensors;
  for (const auto& [name, entry] : entries_) tensors.emplace(name, read(name));
  return tensors;
}

FileDigest write_safetensors(const std::filesystem::path& path, const TensorMap& tensors,
                             const std::map<std::string, std::string>& metadata) {
  // Widest elements first: with no holes allowed, this keeps every tensor aligned to its element size.
  std::vector<const TensorMap::value_type*> order;
  for (const auto& item : tensors) {
    LOCKSTEP_ASSERT(item.second.defined(), "tensor '" + item.first + "' is undefined");
    order.push_back(&item);
  }
  std::stable_sort(order.begin(), order.end(),
                   [](auto* a, auto* b) { return a->second.element_size() > b->second.element_size(); });

  SafetensorsHeader header{{}, metadata};
  std::uint64_t offset = 0;
  for (const auto* item : order) {
    const torch::Tensor& tensor = item->second;
    const auto bytes = static_cast<std::uint64_t>(tensor.numel()) * tensor.element_size();
    header.tensors.push_back(
        {item->first, safetensors_dtype(tensor.scalar_type()), tensor.sizes().vec(), offset, offset + bytes});
    offset += bytes;
  }
  const std::string front = header_bytes(header);

  DurableFile file(path);
  file.write(front.data(), front.size());
  for (const auto* item : order) {
    const torch::Tensor bytes = item->second.detach().to(torch::kCPU).contiguous();
    if (bytes.numel() > 0) file.write(bytes.data_ptr(), static_cast<std::size_t>(bytes.numel()) * bytes.element_size());
  }
  return file.finish();
}

}  // namespace lockstep::checkpoint
