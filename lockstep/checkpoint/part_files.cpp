#include "lockstep/checkpoint/part_files.h"

#include <algorithm>
#include <future>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::checkpoint {
namespace {

using nlohmann::json;

constexpr const char* kSchema = "lockstep.checkpoint_part/2";
// Large writes; in the page cache, the disk starts on each at once instead of at the fsync.
constexpr std::uint64_t kWriteBytes = 8u << 20;
constexpr std::int64_t kMostElements = std::int64_t{1} << 56;

FileDigest write_image(const std::filesystem::path& path, const HostImage& image, const FileLayer& files,
                       const std::atomic<bool>& abandoned) {
  auto checksums = std::async(std::launch::async, [&image] { return block_checksums(image.data(), image.size()); });
  const UniqueFd file = files.create(path);
  files.reserve(file, path, image.size());
  // Training wants the cores and the memory that copies in the page cache would take.
  const bool direct = files.bypass_cache(file, true);
  const std::uint64_t whole = image.size() / kDirectBytes * kDirectBytes;
  for (std::uint64_t done = 0; done < image.size();) {
    if (abandoned) throw environment_error("the save was given up", "see the message before", {path.string()});
    if (direct && done == whole) files.bypass_cache(file, false);
    const std::uint64_t piece = std::min(kWriteBytes, (done < whole ? whole : image.size()) - done);
    files.write(file, path, image.data() + done, piece);
    if (!direct) files.start_writeback(file, done, piece);
    done += piece;
  }
  files.sync(file, path);
  return {image.size(), 0, checksums.get()};
}

json index_of(int rank, const HostImage& image, const CheckpointFacts& facts, const FileDigest& digest) {
  json tensors = json::object();
  for (const TensorKind kind : kTensorKinds) tensors[to_string(kind)] = json::object();
  for (const StoredPiece& piece : image.pieces()) {
    json series = json::array();
    for (const Series& one : piece.series) series.push_back({one.first, one.count, one.stride, one.repeat});
    tensors[to_string(piece.kind)][piece.name] = {
        {"dtype", piece.dtype}, {"sizes", piece.sizes}, {"offset", piece.offset}, {"series", std::move(series)}};
  }
  return {{"schema", kSchema},
          {"rank", rank},
          {"step", facts.step},
          {"state", facts.rank_state},
          {"file", {{"bytes", digest.bytes}, {"blocks", digest.blocks}}},
          {"tensors", std::move(tensors)}};
}

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& problem) {
  throw bad_input(printable(problem, 300), "this checkpoint cannot be used; resume from another one", {path.string()});
}

std::int64_t checked_elements(const std::vector<std::int64_t>& sizes, const std::filesystem::path& path) {
  std::int64_t product = 1;
  for (const std::int64_t size : sizes) {
    if (size < 0 || __builtin_mul_overflow(product, std::max<std::int64_t>(size, 1), &product) ||
        product > kMostElements) {
      refuse(path, "a tensor has impossible sizes");
    }
  }
  return std::count(sizes.begin(), sizes.end(), 0) > 0 ? 0 : product;
}

Series parse_series(const json& said, std::int64_t elements, const std::filesystem::path& path) {
  const Series series{said.at(0), said.at(1), said.at(2), said.at(3)};
  const bool sane = series.first >= 0 && series.count > 0 && series.repeat > 0 && series.stride >= series.count &&
                    series.first < elements && series.count <= elements && series.stride <= elements &&
                    series.repeat <= elements && series.repeat - 1 <= (elements - series.first) / series.stride &&
                    series.end() <= elements;
  if (!sane) refuse(path, "a piece lies outside its tensor");
  return series;
}

StoredPiece parse_piece(TensorKind kind, const std::string& name, const json& said, const FileDigest& file,
                        const std::filesystem::path& path) {
  StoredPiece piece{kind, name, said.at("dtype"), said.at("sizes"), {}, said.at("offset")};
  const std::int64_t elements = checked_elements(piece.sizes, path);
  std::int64_t held = 0;
  for (const json& series : said.at("series")) {
    piece.series.push_back(parse_series(series, elements, path));
    held += piece.series.back().elements();
    if (held > elements) refuse(path, "'" + name + "' has more elements in its pieces than it has");
  }
  const std::uint64_t bytes = static_cast<std::uint64_t>(held) * torch::elementSize(torch_dtype(piece.dtype, path));
  if (piece.offset > file.bytes || bytes > file.bytes - piece.offset) {
    refuse(path, "'" + name + "' lies behind the end of its file");
  }
  return piece;
}

}  // namespace

std::uint64_t write_part_files(const std::filesystem::path& folder, int rank, const HostImage& image,
                               const CheckpointFacts& facts, const FileLayer& files,
                               const std::atomic<bool>& abandoned) {
  const std::string stem = rank_file_stem(rank);
  const FileDigest data = write_image(folder / (stem + ".safetensors"), image, files, abandoned);
  const std::string index = index_of(rank, image, facts, data).dump(-1, ' ', false, json::error_handler_t::replace);
  write_durable_file(folder / (stem + ".json"), index, files);
  return data.bytes + index.size();
}

PartIndex parse_part_index(const std::string& text, const std::filesystem::path& path) {
  const json said = parse_json(text, path);
  PartIndex index;
  try {
    if (said.at("schema") != kSchema) refuse(path, "it is not the index of a rank's part");
    index.step = said.at("step");
    index.state = said.at("state");
    index.file.bytes = said.at("file").at("bytes");
    said.at("file").at("blocks").get_to(index.file.blocks);
    check_blocks(index.file, path);
    for (const TensorKind kind : kTensorKinds) {
      for (const auto& [name, piece] : said.at("tensors").at(to_string(kind)).items()) {
        index.pieces[{kind, name}] = parse_piece(kind, name, piece, index.file, path);
      }
    }
  } catch (const json::exception&) {
    refuse(path, "the index of a rank's part is malformed");
  }
  return index;
}

}  // namespace lockstep::checkpoint
