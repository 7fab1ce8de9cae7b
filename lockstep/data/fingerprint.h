// What files hold, in one short line that two machines can compare without sending the files.
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/spec/job.h"

namespace lockstep::data {

// "3 files, 300000 bytes, crc32c 1a2b3c4d" of a file, or of the files below a folder (list_data_files()): the checksum
// is of their names, their sizes and blocks of their bytes, all of them where the files are small and some spread
// evenly where they are large (64 MiB in all at most, but one block of each of the first 4096 files). Never throws:
// what cannot be read gives a line that says so.
std::string fingerprint_of(const std::filesystem::path& path);

// The same of everything that `data` names: "" for what is not set.
struct DataFingerprints {
  std::string path, evaluation_path, tokenizer;
};
DataFingerprints fingerprints_of(const spec::Data& data);

}  // namespace lockstep::data
