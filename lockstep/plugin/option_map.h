// OptionMap: a plugin's options read from a YAML map.
#pragma once

#include "lockstep/base/map_reader.h"
#include "lockstep/plugin/options.h"

namespace lockstep::plugin {

class OptionMap final : public Options {
 public:
  // `section` is what errors call the map ("model"). `node` must outlive this.
  OptionMap(const YamlNode& node, std::string section) : map_(node, std::move(section)) {}

  void require(const std::string& key) override { map_.require(key); }
  bool has(const std::string& key) override { return map_.has(key); }
  std::int64_t integer(const std::string& key, std::int64_t fallback, std::int64_t least, std::int64_t most) override;
  double real(const std::string& key, double fallback, double least, double most) override;
  bool boolean(const std::string& key, bool fallback) override;
  std::string text(const std::string& key, const std::string& fallback) override;
  std::string choice(const std::string& key, const std::string& fallback,
                     const std::vector<std::string>& choices) override;
  std::string path(const std::string& key, const std::string& fallback) override;
  std::vector<std::int64_t> integers(const std::string& key, const std::vector<std::int64_t>& fallback) override;
  [[noreturn]] void refuse(const std::string& key, const std::string& problem, const std::string& fix) override;

  // Throws UserError for keys that nobody asked for, and for required ones that are missing.
  void finish() const { map_.finish(); }

 private:
  MapReader map_;
};

}  // namespace lockstep::plugin
