// Reading a checkpoint of either format, range by range.
#include <algorithm>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/part_files.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/checkpoint/verified_files.h"

namespace lockstep::checkpoint {
namespace {

using nlohmann::json;

// What a read that converts holds in memory beside the result.
constexpr std::int64_t kPieceElements = 4 << 20;

using Key = std::pair<TensorKind, std::string>;

struct KnownPiece {
  int rank = 0;
  std::string file;
  std::uint64_t offset = 0;
  std::vector<Series> series;
};
struct KnownTensor {
  TensorSource::Facts facts;
  std::vector<KnownPiece> pieces;
};

UserError missing(const std::filesystem::path& path, const std::string& name, const std::string& what) {
  return bad_input("the checkpoint has no tensor " + printable(name, 200) + what,
                   "it is of another model or optimizer; check the job", {path.string()});
}

// Whether these stretches cover [begin, end).
bool covers(std::vector<std::pair<std::int64_t, std::int64_t>>& stretches, std::int64_t begin, std::int64_t end) {
  std::sort(stretches.begin(), stretches.end());
  for (const auto& [first, count] : stretches) {
    if (first > begin) return false;
    begin = std::max(begin, first + count);
  }
  return begin >= end;
}

// A bool that is neither 0 nor 1 is undefined behaviour for whoever looks at it.
void check_bools(const torch::Tensor& values, const std::filesystem::path& path, const std::string& name) {
  if (values.scalar_type() != torch::kBool) return;
  const auto* bytes = static_cast<const unsigned char*>(values.data_ptr());
  if (std::any_of(bytes, bytes + values.numel(), [](unsigned char b) { return b > 1; })) {
    throw bad_input("tensor '" + name + "' is BOOL and holds values other than 0 and 1",
                    "resume from an older checkpoint", {path.string()});
  }
}

}  // namespace

struct CheckpointReader::State {
  explicit State(OpenFolder opened) : open(std::move(opened)), files(open.folder, open.info.path, open.entries) {
    if (open.info.format == 1) {
      add_safetensors(TensorKind::kModel, kModelFile);
      add_safetensors(TensorKind::kOptimizer, kOptimizerFile);
      return;
    }
    for (int rank = 0; rank < open.info.world; ++rank) unread.push_back(rank);
  }

  // Format 1: a file whose header is checked before it is believed.
  SafetensorsFile open_safetensors(const std::string& name) {
    const std::filesystem::path path = open.info.path / name;
    std::uint64_t header = 0;
    files.read(name, 0, std::min<std::uint64_t>(kHeaderLengthBytes, open.entries.at(name).digest.bytes), &header);
    header = std::min(header + kHeaderLengthBytes, open.entries.at(name).digest.bytes);
    std::vector<char> checked(std::min(header, kDigestBlockBytes));
    for (std::uint64_t at = 0; at < header; at += checked.size()) {
      files.read(name, at, std::min<std::uint64_t>(checked.size(), header - at), checked.data());
    }
    return SafetensorsFile::open(open_for_reading(path, &open.folder), path);
  }

  // Whole tensors, which the file's own header places.
  void add_safetensors(TensorKind kind, const std::string& name) {
    const auto entry = open.entries.find(name);
    const std::filesystem::path path = open.info.path / name;
    if (entry == open.entries.end()) {
      throw bad_input("the manifest lists no " + name, "resume from an older checkpoint", {open.info.path.string()});
    }
    const SafetensorsFile file = open_safetensors(name);
    bool fits = file.entries().size() == entry->second.tensors.size();
    for (const auto& [tensor, slice] : entry->second.tensors) {
      fits = fits && slice.is_whole() && file.contains(tensor) && file.entry(tensor).shape == slice.shape &&
             safetensors_dtype(file.entry(tensor).dtype) == slice.dtype;
    }
    if (!fits) {
      throw bad_input("the tensors differ from those in the manifest", "resume from an older checkpoint",
                      {path.string()});
    }
    for (const auto& [tensor, where] : file.entries()) {
      KnownTensor& known = tensors[{kind, tensor}];
      known.facts = {where.dtype, where.shape};
      known.pieces = {{0, name, where.offset, {}}};
      append_run(known.pieces.front().series, 0, known.facts.elements());
    }
  }

  // Learns what rank `rank` holds.
  const PartIndex& index_of(int rank) {
    const auto known = indexes.find(rank);
    if (known != indexes.end()) return known->second;
    unread.remove(rank);
    const std::string name = rank_file_stem(rank) + ".json", data = rank_file_stem(rank) + ".safetensors";
    PartIndex index = parse_part_index(files.read_text(name), open.info.path / name);
    const auto entry = open.entries.find(data);
    if (entry == open.entries.end() || entry->second.digest.bytes != index.file.bytes || index.step != open.info.step) {
      throw bad_input("the part of rank " + std::to_string(rank) + " does not belong to the manifest",
                      "resume from an older checkpoint", {(open.info.path / name).string()});
    }
    for (const auto& [key, piece] : index.pieces) {
      if (piece.kind == TensorKind::kRank) continue;
      KnownTensor& tensor = tensors[key];
      const Facts facts{torch_dtype(piece.dtype, open.info.path / name), piece.sizes};
      if (tensor.pieces.empty()) tensor.facts = facts;
      if (tensor.facts.sizes != facts.sizes || tensor.facts.dtype != facts.dtype) {
        throw bad_input("ranks differ in the sizes of '" + printable(piece.name, 200) + "'",
                        "resume from an older checkpoint", {(open.info.path / name).string()});
      }
      tensor.pieces.push_back({rank, data, piece.offset, piece.series});
    }
    return indexes.emplace(rank, std::move(index)).first->second;
  }
  bool learn_more() {
    if (unread.empty()) return false;
    index_of(unread.front());
    return true;
  }

  KnownTensor* find(const Key& key) {
    while (true) {
      const auto found = tensors.find(key);
      if (found != tensors.end()) return &found->second;
      if (!learn_more()) return nullptr;
    }
  }

  // Elements [first, first + count) as stored, into `out`.
  void read_raw(KnownTensor& tensor, const Key& key, std::int64_t first, std::int64_t count, unsigned char* out) {
    const auto width = static_cast<std::int64_t>(torch::elementSize(tensor.facts.dtype));
    std::vector<std::pair<std::int64_t, std::int64_t>> got;
    std::int64_t elements = 0;
    for (std::size_t i = 0;; ++i) {
      if (elements >= count && covers(got, first, first + count)) return;
      while (i == tensor.pieces.size()) {
        if (!learn_more()) throw missing(open.info.path, key.second, ": elements of it are in no part");
      }
      const KnownPiece& piece = tensor.pieces[i];
      visit_overlap(piece.series, first, first + count, [&](std::int64_t from, std::int64_t before, std::int64_t n) {
        files.read(piece.file, piece.offset + static_cast<std::uint64_t>(before * width),
                   static_cast<std::uint64_t>(n * width), out + (from - first) * width);
        got.emplace_back(from, n);
        elements += n;
      });
    }
  }

  OpenFolder open;
  VerifiedFiles files;
  std::list<int> unread;  // ranks whose index is not known yet
  std::map<int, PartIndex> indexes;
  std::map<Key, KnownTensor> tensors;
};

CheckpointReader::CheckpointReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;
CheckpointReader& CheckpointReader::operator=(CheckpointReader&&) noexcept = default;
CheckpointReader::~CheckpointReader() = default;

CheckpointReader CheckpointReader::open(const std::filesystem::path& checkpoint) {
  return CheckpointReader(std::make_unique<State>(open_folder(checkpoint)));
}

const CheckpointInfo& CheckpointReader::info() const { return state_->open.info; }
const json& CheckpointReader::manifest() const { return state_->open.manifest; }
std::uint64_t CheckpointReader::bytes_read() const { return state_->files.bytes_read(); }
std::uint64_t CheckpointReader::memory_bytes() const {
  return VerifiedFiles::memory_bytes() + kPieceElements * sizeof(double);
}

void CheckpointReader::prefer(int rank) const {
  if (info().format > 1 && rank < info().world) state_->index_of(rank);
}

CheckpointFacts CheckpointReader::facts(int rank) const {
  CheckpointFacts facts;
  facts.step = info().step;
  try {
    facts.job_yaml = manifest().at("job").get<std::string>();
    facts.loader = manifest().at("loader");
    facts.extra = manifest().at("extra");
  } catch (const json::exception&) {
    throw bad_input("job, loader or extra is missing", "resume from an older checkpoint",
                    {(info().path / kManifestName).string()});
  }
  if (rank >= info().world) return facts;
  if (info().format > 1) {
    facts.rank_state = state_->index_of(rank).state;
  } else if (const std::string name = rank_file_stem(rank) + ".json"; state_->files.contains(name)) {
    facts.rank_state = parse_json(state_->files.read_text(name), info().path / name);
  }
  return facts;
}

TensorMap CheckpointReader::rank_tensors(int rank) const {
  TensorMap own;
  const std::string name = rank_file_stem(rank) + ".safetensors";
  if (rank >= info().world || !state_->files.contains(name)) return own;
  std::vector<std::pair<std::string, TensorEntry>> entries;
  if (info().format == 1) {
    const SafetensorsFile file = state_->open_safetensors(name);
    for (const auto& [tensor, entry] : file.entries()) entries.emplace_back(tensor, entry);
  } else {
    for (const auto& [key, piece] : state_->index_of(rank).pieces) {
      if (piece.kind != TensorKind::kRank) continue;
      const Facts facts{torch_dtype(piece.dtype, info().path / name), piece.sizes};
      const std::uint64_t bytes =
          static_cast<std::uint64_t>(elements_of(piece.series)) * torch::elementSize(facts.dtype);
      if (elements_of(piece.series) != facts.elements()) throw missing(info().path, piece.name, " as a whole");
      entries.push_back({piece.name, {piece.name, facts.dtype, piece.sizes, piece.offset, bytes}});
    }
  }
  for (const auto& [tensor, entry] : entries) {
    own[tensor] = torch::empty(entry.shape, torch::TensorOptions().dtype(entry.dtype));
    state_->files.read(name, entry.offset, entry.bytes, own[tensor].data_ptr());
    check_bools(own[tensor], info().path / name, tensor);
  }
  return own;
}

const TensorSource::Facts* CheckpointReader::find(TensorKind kind, const std::string& name) const {
  KnownTensor* const found = state_->find({kind, name});
  return found == nullptr ? nullptr : &found->facts;
}

void CheckpointReader::read(TensorKind kind, const std::string& name, std::int64_t first, torch::Tensor out) const {
  LOCKSTEP_ASSERT(out.dim() == 1 && out.is_contiguous(), "read fills one-dimensional contiguous tensors");
  KnownTensor* const tensor = state_->find({kind, name});
  const std::int64_t count = out.numel();
  if (tensor == nullptr || first < 0 || count > tensor->facts.elements() - first) {
    throw missing(info().path, name, " of the model's size");
  }
  const torch::NoGradGuard no_grad;
  const torch::ScalarType stored = tensor->facts.dtype;
  const bool in_place = out.is_cpu() && out.scalar_type() == stored;
  for (std::int64_t done = 0; done < count; done += kPieceElements) {
    const std::int64_t part = std::min(kPieceElements, count - done);
    torch::Tensor target = out.narrow(0, done, part);
    torch::Tensor raw = in_place ? target : torch::empty({part}, torch::TensorOptions().dtype(stored));
    state_->read_raw(*tensor, {kind, name}, first + done, part, static_cast<unsigned char*>(raw.data_ptr()));
    check_bools(raw, info().path, name);
    if (!in_place) target.copy_(raw);
  }
}

std::vector<std::string> CheckpointReader::names(TensorKind kind) const {
  while (state_->learn_more()) {
  }
  std::vector<std::string> names;
  for (const auto& [key, tensor] : state_->tensors) {
    if (key.first == kind) names.push_back(key.second);
  }
  return names;
}

CheckpointContents CheckpointReader::read(int rank) const {
  CheckpointContents contents;
  contents.facts = facts(rank);
  for (const TensorKind kind : {TensorKind::kModel, TensorKind::kOptimizer}) {
    for (const std::string& name : names(kind)) contents.of(kind)[name] = read_whole(kind, name);
  }
  contents.rank_tensors = rank_tensors(rank);
  return contents;
}

std::vector<CheckpointReader::Piece> CheckpointReader::pieces() const {
  while (state_->learn_more()) {
  }
  std::vector<Piece> pieces;
  for (const auto& [key, tensor] : state_->tensors) {
    for (const KnownPiece& piece : tensor.pieces) {
      pieces.push_back(
          {piece.rank, key.first, key.second,
           static_cast<std::uint64_t>(elements_of(piece.series)) * torch::elementSize(tensor.facts.dtype)});
    }
  }
  return pieces;
}

}  // namespace lockstep::checkpoint
