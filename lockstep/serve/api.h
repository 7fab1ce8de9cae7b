// The routes of /api/v1 and /metrics: a request in, an answer out (docs/reference/http-api.md).
#pragma once

#include <memory>
#include <string>

#include "lockstep/serve/dcgm.h"
#include "lockstep/serve/request.h"
#include "lockstep/serve/run_values.h"
#include "lockstep/serve/stores.h"

namespace lockstep::serve {

// Called from several threads, each with its own Stores. Blocks as long as the store takes.
class Api {
 public:
  // `dcgm_url` of a DCGM exporter whose fields /api/v1/cluster shows; "": none. Throws UserError when it is no URL.
  explicit Api(const std::string& dcgm_url = {}) : dcgm_(dcgm_url) {}

  // Never throws: what goes wrong is an answer {"error": ...}, with 400 for a bad question, 404 for what is not there,
  // 405 for another method, 503 for a store that cannot be read now.
  Response answer(const Request& request, Stores& stores);

 private:
  nlohmann::json runs(const Request& request, Stores& stores);
  nlohmann::json of_run(const Request& request, Stores& stores);
  nlohmann::json set_tags(const Request& request, Stores& stores, const telemetry::RunRow& row);
  nlohmann::json studies(const Request& request, Stores& stores);
  Response metrics(const Request& request, Stores& stores);

  FigureCache figures_;
  DcgmReader dcgm_;
};

// What is not there: an answer 404.
class NotThere : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The run of that very id. Throws NotThere. Beginnings of ids and "last" are for people who type.
telemetry::RunRow run_of_id(const telemetry::RunStore& store, const std::string& id);

// A JSON document as text; bytes that are not UTF-8 are replaced, NaN is null.
std::string dump(const nlohmann::json& document);

}  // namespace lockstep::serve
