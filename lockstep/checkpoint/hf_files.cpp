#include "lockstep/checkpoint/hf_files.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find_first_of(std::string("/\\\0", 3)) == name.npos;
}

bool is_inside(const fs::path& root, const fs::path& file) {
  return std::mismatch(root.begin(), root.end(), file.begin(), file.end()).first == root.end();
}

// ROOT/snapshots/REVISION holds links to ROOT/blobs/HASH.
bool is_blob_of_snapshot(const fs::path& folder, const fs::path& file) {
  const fs::path snapshots = folder.parent_path();
  return snapshots.filename() == "snapshots" && file.parent_path() == snapshots.parent_path() / "blobs";
}

}  // namespace

std::vector<std::string> hf_tokenizer_files() {
  return {"tokenizer.json",
          "tokenizer_config.json",
          "tokenizer.model",
          "vocab.txt",
          "vocab.json",
          "merges.txt",
          "special_tokens_map.json",
          "added_tokens.json",
          "chat_template.jinja",
          "generation_config.json"};
}

std::optional<fs::path> file_of_folder(const fs::path& folder, const std::string& name) {
  const SourcePlace place{printable_path(folder)};
  if (!is_plain_name(name)) {
    throw bad_input("`" + printable(name) + "` is not the name of a file in this folder",
                    "names of files carry no path; download the folder again", place);
  }
  std::error_code error;
  const fs::path root = fs::canonical(folder, error);
  if (error) return std::nullopt;
  const fs::path file = fs::canonical(root / name, error);
  if (error) return std::nullopt;  // not there, or a link to nothing
  if (!is_inside(root, file) && !is_blob_of_snapshot(root, file)) {
    throw bad_input("`" + printable(name) + "` is a link out of the folder, to " + printable_path(file),
                    "copy the file itself into the folder", place);
  }
  return file;
}

}  // namespace lockstep::checkpoint
