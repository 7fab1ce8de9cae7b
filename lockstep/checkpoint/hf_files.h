// What Hugging Face calls its files, and a safe way to a file in an untrusted folder.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

inline constexpr const char* kHfConfig = "config.json";
inline constexpr const char* kHfWeights = "model.safetensors";
inline constexpr const char* kHfIndex = "model.safetensors.index.json";

// Files that belong to the tokenizer and to generation; a folder has some of them.
std::vector<std::string> hf_tokenizer_files();

// The file `name` directly in `folder`, links followed; nothing when it is not there. A link may lead anywhere inside
// the folder and, in a folder of Hugging Face's download cache (snapshots/REVISION), to the blobs beside the snapshots.
// Throws UserError (bad input) for a link that leads elsewhere and for a name that is a path.
std::optional<std::filesystem::path> file_of_folder(const std::filesystem::path& folder, const std::string& name);

}  // namespace lockstep::checkpoint
