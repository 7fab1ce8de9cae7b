#include "lockstep/checkpoint/hf_index.h"

#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep::checkpoint {
namespace {

constexpr int kMaxDepth = 100;
constexpr std::size_t kMessageBytes = 300;

bool is_shard_name(const std::string& name) {
  const std::string end = ".safetensors";
  return name.size() > end.size() && name.ends_with(end) &&
         name.find_first_of(std::string("/\\\0", 3)) == std::string::npos;
}

// Stops at the first token that does not fit; only "weight_map" is looked into.
class IndexParser : public nlohmann::json_sax<nlohmann::json> {
 public:
  const std::string& problem() const { return problem_; }
  WeightMap take() { return std::move(map_); }

  bool start_object(std::size_t) override {
    if (depth_ == 0) return enter();
    if (in_map()) return refuse("tensor '" + key_ + "' has no file name");
    return enter();
  }
  bool start_array(std::size_t) override {
    if (depth_ == 0) return refuse("it is not a JSON object");
    return scalar() && enter();
  }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }

  bool key(string_t& name) override {
    if (depth_ == 1) {
      section_ = name;
      return sections_.insert(name).second || refuse("the key '" + name + "' appears twice");
    }
    if (!in_map()) return true;
    key_ = name;
    return map_.count(name) == 0 || refuse("tensor '" + name + "' is listed twice");
  }

  bool string(string_t& value) override {
    if (!in_map()) return scalar();
    if (!is_shard_name(value)) {
      return refuse("tensor '" + key_ + "' is in '" + value + "', which is not the name of a safetensors file");
    }
    map_.emplace(key_, value);
    return true;
  }

  bool null() override { return scalar(); }
  bool boolean(bool) override { return scalar(); }
  bool number_integer(number_integer_t) override { return scalar(); }
  bool number_unsigned(number_unsigned_t) override { return scalar(); }
  bool number_float(number_float_t, const string_t&) override { return scalar(); }
  bool binary(binary_t&) override { return scalar(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return refuse("it is not JSON (at byte " + std::to_string(position) + ")");
  }

 private:
  bool in_map() const { return depth_ == 2 && section_ == "weight_map"; }
  // A value where the map wants an object of names of files, or nothing to look at.
  bool scalar() {
    if (depth_ == 0) return refuse("it is not a JSON object");
    if (depth_ == 1 && section_ == "weight_map") return refuse("weight_map is not an object");
    return !in_map() || refuse("tensor '" + key_ + "' has no file name");
  }
  bool enter() { return ++depth_ <= kMaxDepth || refuse("it is nested too deeply"); }
  bool leave() {
    --depth_;
    return true;
  }
  bool refuse(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }

  int depth_ = 0;
  std::string section_;  // key of the outermost object
  std::set<std::string> sections_;
  std::string key_;
  WeightMap map_;
  std::string problem_;
};

}  // namespace

WeightMap parse_weight_index(const std::string& text, const std::filesystem::path& file) {
  IndexParser parser;
  std::string problem;
  if (!nlohmann::json::sax_parse(text, &parser)) problem = parser.problem();
  WeightMap map = parser.take();
  if (problem.empty() && map.empty()) problem = "its weight_map lists no tensors";
  if (problem.empty()) return map;
  throw bad_input("not a valid index of weights: " + printable(problem, kMessageBytes), "download or write it again",
                  {printable_path(file)});
}

std::string weight_index_text(const WeightMap& shard_of, std::uint64_t total_bytes) {
  const nlohmann::json json = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", shard_of}};
  return json.dump(2) + "\n";
}

}  // namespace lockstep::checkpoint
