// Quotes: figures of a document, each taken from one place of a JSON document. What is shown can only be what is there,
// and a program can compare: to_json() lists every figure with its path.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <tuple>

namespace lockstep::report {

// Paths are JSON pointers: "/plan/best/batch/micro". A path that leads nowhere is our own bug. Not thread-safe.
class Quotes {
 public:
  explicit Quotes(nlohmann::json document) : document_(std::move(document)) {}

  const nlohmann::json& document() const { return document_; }
  bool has(const std::string& path) const;  // and it is not null
  double number(const std::string& path) const;
  bool is_true(const std::string& path) const;
  std::size_t size(const std::string& path) const;  // of an array; 0 where there is none

  std::string seconds(const std::string& path);                    // "28m 52s"
  std::string bytes(const std::string& path);                      // "181 GB" is "169 GiB"
  std::string gib(const std::string& path);                        // of a number of GiB: "55.2 GiB"
  std::string rate(const std::string& path);                       // of bytes a second: "450 GB/s"
  std::string count(const std::string& path);                      // "206 k"
  std::string percent(const std::string& path, int decimals = 1);  // of a share: "53.5%"
  std::string signed_percent(const std::string& path);             // of a share: "+5.5%"
  std::string percent_number(const std::string& path);             // of a number of percent: "3.2%"
  std::string whole(const std::string& path);                      // "1024"
  std::string real(const std::string& path);                       // three digits at most: "6.88"
  std::string dollars(const std::string& path);                    // "89.1 k USD"
  std::string days(const std::string& path);                       // of a number of days: "16.9 days", "7h 12m 3s"
  std::string text(const std::string& path);                       // as it is
  std::string layout(const std::string& path);                     // "pp=2, tp=2": without the precision, can be broken

  // [{"path", "as", "text"}], by path.
  nlohmann::json figures() const;

 private:
  const nlohmann::json& at(const std::string& path) const;
  std::string keep(const std::string& path, const char* as, std::string text);

  nlohmann::json document_;
  std::set<std::tuple<std::string, std::string, std::string>> figures_;
};

}  // namespace lockstep::report
