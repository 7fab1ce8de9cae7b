#include "lockstep/checkpoint/safetensors_header.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <set>

namespace lockstep::checkpoint {
namespace {

// libtorch's iterators stop at 64 dims; real files have at most a handful.
constexpr std::size_t kMaxDims = 64;
constexpr std::size_t kDataAlignment = 64;

// Accepts exactly {"__metadata__": {string: string}, name: {"dtype": string, "shape": [n..], "data_offsets": [n, n]}}
// and stops at the first token that does not fit.
class HeaderParser : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderParser(SafetensorsHeader& header) : header_(header) {}

  const std::string& problem() const { return problem_; }

  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) return enter(Place::kTop);
    if (place_ != Place::kTop) return refuse("an object where none belongs");
    if (key_ == "__metadata__") return enter(Place::kMetadata);
    tensor_ = HeaderTensor{key_};
    fields_.clear();
    return enter(Place::kTensor);
  }

  bool key(string_t& name) override {
    key_ = name;
    switch (place_) {
      case Place::kTop:
        return names_.insert(name).second || refuse("the name '" + name + "' appears twice");
      case Place::kMetadata:
        return header_.metadata.emplace(name, "").second || refuse("the metadata key '" + name + "' appears twice");
      case Place::kTensor:
        if (name != "dtype" && name != "shape" && name != "data_offsets") return refuse("unknown key '" + name + "'");
        return fields_.insert(name).second || refuse("the key '" + name + "' appears twice");
      default:
        return refuse("a key where none belongs");
    }
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      header_.metadata[key_] = value;
      return true;
    }
    if (place_ != Place::kTensor || key_ != "dtype") return refuse("a string where none belongs");
    tensor_.dtype = value;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::kTensor || key_ == "dtype") return refuse("an array where none belongs");
    offsets_.clear();
    return enter(key_ == "shape" ? Place::kShape : Place::kOffsets);
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
      return refuse("a number that is too large");
    }
    if (place_ == Place::kShape) {
      tensor_.shape.push_back(static_cast<std::int64_t>(value));
      return tensor_.shape.size() <= kMaxDims || refuse("a tensor with more than 64 dims");
    }
    if (place_ != Place::kOffsets) return refuse("a number where none belongs");
    offsets_.push_back(value);
    return offsets_.size() <= 2 || refuse("data_offsets with more than two numbers");
  }

  bool end_array() override {
    if (place_ == Place::kOffsets) {
      if (offsets_.size() != 2) return refuse("data_offsets without two numbers");
      tensor_.begin = offsets_[0];
      tensor_.end = offsets_[1];
    }
    return enter(Place::kTensor);
  }

  bool end_object() override {
    if (place_ == Place::kTop) return enter(Place::kDone);
    if (place_ == Place::kTensor) {
      if (fields_.size() != 3) return refuse("tensor '" + tensor_.name + "' lacks dtype, shape or data_offsets");
      header_.tensors.push_back(std::move(tensor_));
    }
    return enter(Place::kTop);
  }

  bool null() override { return refuse("null where none belongs"); }
  bool boolean(bool) override { return refuse("a boolean where none belongs"); }
  bool number_integer(number_integer_t) override { return refuse("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return refuse("a number that is not an integer"); }
  bool binary(binary_t&) override { return refuse("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return refuse("its header is not JSON (at byte " + std::to_string(position) + ")");
  }

  bool complete() const { return place_ == Place::kDone; }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kDone };

  bool enter(Place place) {
    place_ = place;
    return true;
  }
  bool refuse(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }

  SafetensorsHeader& header_;
  Place place_ = Place::kStart;
  std::string key_;
  std::set<std::string> names_;
  HeaderTensor tensor_;
  std::set<std::string> fields_;
  std::vector<std::uint64_t> offsets_;
  std::string problem_;
};

}  // namespace

std::optional<std::string> parse_header(const std::string& text, SafetensorsHeader& header) {
  // The reference demands it; it also keeps other formats (zip, pickle) from getting as far as the JSON parser.
  if (text.empty() || text.front() != '{') return "its header does not begin with '{'";
  HeaderParser parser(header);
  const bool accepted = nlohmann::json::sax_parse(text, &parser);
  if (!accepted || !parser.complete()) {
    return parser.problem().empty() ? std::string("its header is incomplete") : parser.problem();
  }
  return std::nullopt;
}

std::string header_bytes(const SafetensorsHeader& header) {
  nlohmann::json json = nlohmann::json::object();
  if (!header.metadata.empty()) json["__metadata__"] = header.metadata;
  for (const HeaderTensor& tensor : header.tensors) {
    json[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text = json.dump();
  text.append((kDataAlignment - (text.size() + kHeaderLengthBytes) % kDataAlignment) % kDataAlignment, ' ');
  std::string length(kHeaderLengthBytes, '\0');
  for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<char>(std::uint64_t{text.size()} >> 8 * i);
  return length + text;
}

}  // namespace lockstep::checkpoint
