#include "bench/gpu/files.h"

#include <time.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "lockstep/base/error.h"

namespace lockstep::bench {
namespace {
[[noreturn]] void fail(const std::string& path, const std::string& problem) {
  throw UserError(ExitCode::kUsage, problem, {}, {path});
}
}  // namespace

TensorFile::TensorFile(const std::string& path) : path_(path) {
  std::ifstream in(path, std::ios::binary);
  std::uint64_t length = 0;
  if (!in.read(reinterpret_cast<char*>(&length), sizeof length) || length > (1u << 28))
    fail(path, "not a safetensors file");
  std::string text(length, ' ');
  if (!in.read(text.data(), static_cast<std::streamsize>(length))) fail(path, "its header is cut off");
  header_ = nlohmann::json::parse(text, nullptr, false);
  if (!header_.is_object()) fail(path, "its header is not JSON");
  data_begin_ = static_cast<std::int64_t>(sizeof length + length);
}

std::vector<float> TensorFile::read(const std::string& name) const {
  if (!header_.contains(name) || header_[name].value("dtype", "") != "F32") fail(path_, "no fp32 tensor " + name);
  const auto offsets = header_[name]["data_offsets"].get<std::vector<std::int64_t>>();
  std::vector<float> values((offsets.at(1) - offsets.at(0)) / sizeof(float));
  std::ifstream in(path_, std::ios::binary);
  in.seekg(data_begin_ + offsets[0]);
  if (!in.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(float))))
    fail(path_, "cut off in " + name);
  return values;
}

void TensorWriter::add(const std::string& name, const std::vector<std::int64_t>& shape,
                       const std::vector<float>& values) {
  const std::size_t begin = data_.size(), bytes = values.size() * sizeof(float);
  data_.resize(begin + bytes);
  std::memcpy(data_.data() + begin, values.data(), bytes);
  header_[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, begin + bytes}}};
}

void TensorWriter::write(const std::string& path) const {
  const std::string text = header_.dump();
  const std::uint64_t length = text.size();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&length), sizeof length);
  out << text;
  out.write(data_.data(), static_cast<std::streamsize>(data_.size()));
  if (!out) fail(path, "could not be written");
}

std::vector<std::int32_t> read_int32(const std::string& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) fail(path, "could not be opened");
  std::vector<std::int32_t> values(static_cast<std::size_t>(in.tellg()) / sizeof(std::int32_t));
  in.seekg(0);
  in.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(std::int32_t)));
  return values;
}

double seconds_since_process_start() {
  // Field 22 of /proc/self/stat, counted after the command's closing parenthesis: ticks since boot.
  std::ifstream in("/proc/self/stat");
  std::string line;
  std::getline(in, line);
  std::istringstream fields(line.substr(line.rfind(')') + 2));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  double ticks = 0;
  fields >> ticks;
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9 -
         ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace lockstep::bench
