// One list of a struct's fields for writing and for strict reading. Beside the struct stands
//
//   void fields_of(auto& fields, Is<Link> auto& link) {
//     fields.name("kind", link.kind);
//     fields.non_negative("latency_seconds", link.latency_seconds);
//   }
//
// in the namespace of the struct or in this one; to_json_object(link) and read_object<Link>(reader) follow from it.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/base/enum_names.h"
#include "lockstep/base/json.h"

namespace lockstep::plan {

template <class T, class Struct>
concept Is = std::same_as<std::remove_const_t<T>, Struct>;

class FieldWriter {
 public:
  void value(const char* key, const auto& value) { json_[key] = value; }
  void positive(const char* key, const auto& value) { json_[key] = value; }
  void non_negative(const char* key, const auto& value) { json_[key] = value; }
  // Left out at 0, and 0 where it is left out.
  void non_negative_or_absent(const char* key, double value) {
    if (value != 0.0) json_[key] = value;
  }
  // Left out where it has the value that its type, or `usual`, has.
  void value_or_absent(const char* key, const auto& value, const auto& usual) {
    if (value != usual) json_[key] = value;
  }
  template <class T>
  void object_or_absent(const char* key, const T& value) {
    if (value != T{}) json_[key] = object_of(value);
  }
  void text_or_absent(const char* key, const std::string& value) {
    if (!value.empty()) json_[key] = value;
  }
  void name(const char* key, NamedEnum auto value) { json_[key] = to_string(value); }
  void object(const char* key, const auto& value) { json_[key] = object_of(value); }
  void objects(const char* key, const auto& values) {
    json_[key] = nlohmann::json::array();
    for (const auto& value : values) json_[key].push_back(object_of(value));
  }

  static nlohmann::json object_of(const auto& value) {
    FieldWriter writer;
    fields_of(writer, value);
    return std::move(writer.json_);
  }

 private:
  nlohmann::json json_ = nlohmann::json::object();
};

class FieldReader {
 public:
  explicit FieldReader(JsonReader reader) : reader_(std::move(reader)) {}

  void value(const char* key, double& out) { out = reader_.real(key); }
  void value(const char* key, std::int64_t& out) { out = reader_.integer(key); }
  void value(const char* key, bool& out) { out = reader_.boolean(key); }
  void value(const char* key, std::string& out) { out = reader_.text(key); }
  void value(const char* key, std::vector<std::int64_t>& out) { out = reader_.integers(key); }
  void value(const char* key, std::vector<std::string>& out) { out = reader_.texts(key); }
  void positive(const char* key, std::int64_t& out) { out = reader_.positive(key); }
  void non_negative(const char* key, double& out) { out = reader_.non_negative(key); }
  void non_negative(const char* key, std::int64_t& out) {
    out = reader_.integer(key);
    if (out < 0) reader_.fail(key, "is negative");
  }
  void non_negative_or_absent(const char* key, double& out) {
    if (reader_.has(key)) out = reader_.non_negative(key);
  }
  void value(const char* key, std::vector<double>& out) {
    for (const nlohmann::json& number : reader_.array(key)) {
      if (!number.is_number()) reader_.fail(key, "holds something else than numbers");
      out.push_back(number.get<double>());
    }
  }
  template <class T>
  void value_or_absent(const char* key, T& out, const auto& usual) {
    out = usual;
    if (!reader_.has(key)) return;
    out = T{};
    value(key, out);
  }
  template <class T>
  void object_or_absent(const char* key, T& out) {
    if (auto found = reader_.object_or_none(key)) out = object_of<T>(std::move(*found));
  }
  void text_or_absent(const char* key, std::string& out) { out = reader_.text(key, ""); }
  template <NamedEnum E>
  void name(const char* key, E& out) {
    constexpr auto kNames = names_of(E{});
    out = static_cast<E>(reader_.choice(key, {kNames.begin(), kNames.end()}));
  }
  template <class T>
  void object(const char* key, T& out) {
    out = object_of<T>(reader_.object(key));
  }
  template <class T>
  void objects(const char* key, std::vector<T>& out) {
    for (JsonReader& reader : reader_.objects(key)) out.push_back(object_of<T>(std::move(reader)));
  }

  // Throws for what is missing, of the wrong kind or unknown.
  template <class T>
  static T object_of(JsonReader reader) {
    FieldReader fields(std::move(reader));
    T value;
    fields_of(fields, value);
    fields.reader_.finish();
    return value;
  }

 private:
  JsonReader reader_;
};

template <class T>
nlohmann::json to_json_object(const T& value) {
  return FieldWriter::object_of(value);
}

template <class T>
T read_object(JsonReader reader) {
  return FieldReader::object_of<T>(std::move(reader));
}

}  // namespace lockstep::plan
