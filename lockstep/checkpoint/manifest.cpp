#include "lockstep/checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::checkpoint {
namespace {

using nlohmann::json;

constexpr const char* kSchemaPrefix = "lockstep.checkpoint/";
constexpr int kOldestVersion = 1, kNewestVersion = 2;
constexpr int kMaxNesting = 100;
// The seal is the last thing in the text, so that it can be checked before anything is parsed: ,"crc32c":"0123abcd"}\n
constexpr std::size_t kSealBytes = 22;

std::string seal_of(std::string_view body) {
  return fmt::format(",\"crc32c\":\"{:08x}\"}}\n", crc32c(body.data(), body.size()));
}

UserError bad_manifest(const std::filesystem::path& path, const std::string& problem) {
  return bad_input(printable(problem, 300), "this checkpoint cannot be used; resume from another one", {path.string()});
}

// A name that stays inside the checkpoint and is not a temporary file of ours.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name.front() != '.' && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

int nesting_of(const std::string& text) {
  int depth = 0, deepest = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

FileEntry parse_entry(const json& said) {
  FileEntry entry;
  entry.digest.bytes = said.at("bytes").get<std::uint64_t>();
  entry.digest.crc32c = said.value("crc32c", std::uint32_t{0});
  entry.digest.blocks = said.at("blocks").get<std::vector<std::uint32_t>>();
  if (said.contains("tensors")) {
    for (const auto& [name, tensor] : said.at("tensors").items()) {
      entry.tensors[name] = {tensor.at("dtype"), tensor.at("shape"), tensor.at("global_shape"), tensor.at("offsets")};
    }
  }
  return entry;
}

// Whoever resumes takes these as what they should be: a manifest that holds something else is passed over, like damage.
void check_facts(const json& manifest, const std::filesystem::path& place) {
  const json none;
  const auto of = [&](const json& parent, const char* key) -> const json& {
    const auto found = parent.find(key);
    return found == parent.end() ? none : *found;
  };
  const auto require = [&](const json& value, bool fits, const std::string& name, const char* kind) {
    if (!value.is_null() && !fits) throw bad_manifest(place, name + " is not " + kind);
  };
  require(of(manifest, "job"), of(manifest, "job").is_string(), "job", "text");
  for (const char* part : {"loader", "extra"}) {
    const json& facts = of(manifest, part);
    require(facts, facts.is_object(), part, "an object");
    if (!facts.is_object()) continue;
    for (const char* key : {"epoch", "samples", "global_batch", "dataset_samples", "world"}) {
      const json& value = of(facts, key);
      require(value, value.is_number_integer() && value >= 0, fmt::format("{}.{}", part, key), "a count");
    }
    for (const char* key : {"layout", "run", "device_step"}) {
      require(of(facts, key), of(facts, key).is_string(), fmt::format("{}.{}", part, key), "text");
    }
  }
}

// Names of the tensors that lie in [begin, end) of a safetensors file, as far as its header can still be read.
std::string tensors_in(const UniqueFd& folder, const std::filesystem::path& path, std::uint64_t begin,
                       std::uint64_t end) {
  if (path.extension() != ".safetensors") return {};
  std::vector<std::string> names;
  try {
    const SafetensorsFile file = SafetensorsFile::open(open_for_reading(path, &folder), path);
    for (const auto& [name, entry] : file.entries()) {
      if (entry.offset < end && entry.offset + entry.bytes > begin) names.push_back(printable(name));
    }
  } catch (const UserError&) {
    return " (in its header)";
  }
  constexpr std::size_t kShown = 3;
  if (names.empty()) return {};
  const std::size_t more = names.size() > kShown ? names.size() - kShown : 0;
  names.resize(names.size() - more);
  return " (tensors " + join(names, ", ") + (more ? " and " + std::to_string(more) + " more)" : ")");
}

}  // namespace

bool TensorSlice::is_whole() const {
  return shape == global_shape && offsets.size() == shape.size() &&
         std::all_of(offsets.begin(), offsets.end(), [](std::int64_t offset) { return offset == 0; });
}

json to_json(const FileEntries& entries) {
  json all = json::object();
  for (const auto& [name, entry] : entries) {
    json& file = all[name];
    file = {{"bytes", entry.digest.bytes}, {"blocks", entry.digest.blocks}};
  }
  return all;
}

FileEntries parse_entries(const json& said, const std::filesystem::path& place) {
  FileEntries entries;
  try {
    if (!said.is_object()) throw bad_manifest(place, "its list of files is not an object");
    for (const auto& [name, file] : said.items()) {
      if (!is_plain_name(name)) throw bad_manifest(place, "it lists a file outside the checkpoint: '" + name + "'");
      FileEntry entry = parse_entry(file);
      check_blocks(entry.digest, place);
      entries.emplace(name, std::move(entry));
    }
  } catch (const json::exception&) {
    throw bad_manifest(place, "its list of files is malformed");
  }
  return entries;
}

void check_blocks(const FileDigest& digest, const std::filesystem::path& place) {
  const std::uint64_t needed = digest.bytes / kDigestBlockBytes + (digest.bytes % kDigestBlockBytes != 0);
  if (digest.blocks.size() == needed) return;
  throw bad_manifest(place, fmt::format("it has {} checksums for a file of {} bytes, which needs {}",
                                        digest.blocks.size(), digest.bytes, needed));
}

std::string seal_manifest(const json& manifest) {
  // Text from elsewhere (a job file in Latin-1) must not make a save fail.
  std::string text = manifest.dump(-1, ' ', false, json::error_handler_t::replace);
  LOCKSTEP_ASSERT(text.size() > 2 && text.back() == '}', "a manifest is a JSON object with members");
  text.pop_back();
  return text + seal_of(text);
}

json unseal_manifest(const std::string& text, const std::filesystem::path& path) {
  if (text.size() <= kSealBytes) throw bad_manifest(path, "the manifest is cut short");
  const std::string_view body(text.data(), text.size() - kSealBytes);
  if (text.compare(body.size(), kSealBytes, seal_of(body)) != 0) {
    throw bad_manifest(path, "the manifest does not match its checksum");
  }
  json manifest = parse_json(text, path);
  const std::string schema = manifest.is_object() ? manifest.value("schema", json()).dump() : "";
  const std::string prefix = std::string("\"") + kSchemaPrefix;
  if (schema.compare(0, prefix.size(), prefix) != 0) throw bad_manifest(path, "not the manifest of a checkpoint");
  const int version = std::atoi(schema.c_str() + prefix.size());
  if (version < kOldestVersion || version > kNewestVersion) {
    throw bad_input("written by another version of lockstep (schema " + schema + ")", "use that version to read it",
                    {path.string()});
  }
  return manifest;
}

CheckpointInfo describe(const json& manifest, const std::filesystem::path& checkpoint) {
  CheckpointInfo info;
  info.path = checkpoint;
  try {
    info.step = manifest.at("step").get<std::int64_t>();
    info.world = manifest.at("world").get<int>();
    info.created_at = manifest.at("created_at").get<double>();
    const std::string schema = manifest.at("schema").get<std::string>();
    info.format = std::atoi(schema.c_str() + std::string_view(kSchemaPrefix).size());
  } catch (const json::exception&) {
    throw bad_manifest(checkpoint / kManifestName, "step, world or created_at is missing or malformed");
  }
  if (info.step < 0 || info.world < 1) throw bad_manifest(checkpoint / kManifestName, "its step or world is negative");
  check_facts(manifest, checkpoint / kManifestName);
  for (const auto& [name, entry] : parse_entries(manifest.value("files", json()), checkpoint / kManifestName)) {
    info.bytes += entry.digest.bytes;
  }
  return info;
}

json parse_json(const std::string& text, const std::filesystem::path& path) {
  if (nesting_of(text) > kMaxNesting) throw bad_manifest(path, "its JSON is nested too deeply");
  json parsed = json::parse(text, nullptr, false);
  if (parsed.is_discarded()) throw bad_manifest(path, "it is not JSON");
  return parsed;
}

std::vector<Damage> verify_file(const UniqueFd& folder, const std::filesystem::path& checkpoint,
                                const std::string& name, const FileEntry& entry) {
  const std::filesystem::path path = checkpoint / name;
  std::vector<Damage> damage;
  try {
    const UniqueFd file = open_for_reading(path, &folder);
    const std::uint64_t size = file_size(file, path);
    if (size != entry.digest.bytes) {
      return {{name, 0, 0, fmt::format("is {} bytes long, the manifest says {}", size, entry.digest.bytes)}};
    }
    std::vector<char> block(std::min(size, kDigestBlockBytes));
    for (std::size_t i = 0; i < entry.digest.blocks.size(); ++i) {
      const std::uint64_t begin = i * kDigestBlockBytes;
      const std::uint64_t bytes = std::min(kDigestBlockBytes, size - begin);
      read_exactly(file, path, block.data(), bytes, begin);
      if (crc32c(block.data(), bytes) == entry.digest.blocks[i]) continue;
      if (!damage.empty() && damage.back().offset + damage.back().bytes == begin) {
        damage.back().bytes += bytes;
      } else {
        damage.push_back({name, begin, bytes, ""});
      }
    }
    for (Damage& region : damage) {
      region.problem =
          "do not match their checksum" + tensors_in(folder, path, region.offset, region.offset + region.bytes);
    }
  } catch (const UserError& error) {
    return {{name, 0, 0, std::string("cannot be read: ") + error.what()}};
  }
  return damage;
}

std::string Damage::to_string() const {
  if (bytes == 0) return file + " " + problem;
  return fmt::format("{}: bytes {}..{} {}", file, offset, offset + bytes, problem);
}

std::string step_folder_name(std::int64_t step) { return fmt::format("step-{:08}", step); }
std::string rank_file_stem(int rank) { return fmt::format("rank-{:05}", rank); }

std::int64_t parse_step_folder(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  if (name.compare(0, kPrefix.size(), kPrefix) != 0) return -1;
  const std::string digits = name.substr(kPrefix.size());
  if (digits.size() < 8 || digits.size() > 18) return -1;
  if (!std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; })) return -1;
  return std::stoll(digits);
}

}  // namespace lockstep::checkpoint
