// Files that lockstep_gpu_step reads and writes: safetensors in fp32, raw int32. And the age of this process.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lockstep::bench {

// Reads tensors by name; every failure is a UserError that names the file.
class TensorFile {
 public:
  explicit TensorFile(const std::string& path);
  std::vector<float> read(const std::string& name) const;

 private:
  std::string path_;
  nlohmann::json header_;
  std::int64_t data_begin_ = 0;
};

class TensorWriter {
 public:
  void add(const std::string& name, const std::vector<std::int64_t>& shape, const std::vector<float>& values);
  void write(const std::string& path) const;

 private:
  nlohmann::json header_;
  std::vector<char> data_;
};

std::vector<std::int32_t> read_int32(const std::string& path);
double seconds_since_process_start();

}  // namespace lockstep::bench
