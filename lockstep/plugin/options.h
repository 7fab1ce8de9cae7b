// Options: the keys of a section of the job file that belong to a plugin. Every key that is asked for becomes known;
// when the constructor that reads them has ended, any other key is refused with its place and the nearest known one.
//
//   MyModel(Options& options, ...) { options.require("layers"); layers_ = options.integer("layers", 0, 1, 1000); }
//
// What is wrong with a value is thrown as an exception that the host understands; let it pass.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace lockstep::plugin {

class Options {
 public:
  virtual ~Options() = default;

  // A key that must be there: refused once the constructor has ended without it.
  virtual void require(const std::string& key) = 0;
  virtual bool has(const std::string& key) = 0;

  // The value of a key, or `fallback` where it is absent. Whole numbers take suffixes: 4k, 2M.
  virtual std::int64_t integer(const std::string& key, std::int64_t fallback, std::int64_t least = 0,
                               std::int64_t most = std::numeric_limits<std::int64_t>::max()) = 0;
  virtual double real(const std::string& key, double fallback, double least = 0.0,
                      double most = std::numeric_limits<double>::max()) = 0;
  virtual bool boolean(const std::string& key, bool fallback) = 0;
  virtual std::string text(const std::string& key, const std::string& fallback) = 0;
  // One of these words.
  virtual std::string choice(const std::string& key, const std::string& fallback,
                             const std::vector<std::string>& choices) = 0;
  // A file or folder; a relative one starts from the folder of the job file.
  virtual std::string path(const std::string& key, const std::string& fallback) = 0;
  virtual std::vector<std::int64_t> integers(const std::string& key, const std::vector<std::int64_t>& fallback) = 0;

  // Throws, naming the key's place: "job.yaml:3:12: model.heads is 3; ...".
  [[noreturn]] virtual void refuse(const std::string& key, const std::string& problem, const std::string& fix) = 0;
};

}  // namespace lockstep::plugin
