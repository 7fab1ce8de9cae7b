// Alerts to people who do not look: to a webhook and to a command of the user's, by a thread of its own.
//
// tell() returns at once. The first alert goes out at once; what comes within `pause` of a notification is told
// together in the next one. A webhook that does not answer with 2xx is tried again, later each time, and given up after
// some tries; that is said once. Addresses are never part of a message: they are secrets.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/telemetry/alert.h"

namespace lockstep::telemetry {

struct DeliveryOptions {
  std::string run;                   // its id
  std::string name;                  // of the job
  double first_retry_seconds = 1.0;  // four times as long after each
  int tries = 4;
  double timeout_seconds = 10.0;                            // of one try
  double command_seconds = 30.0;                            // after which the command is killed
  double close_seconds = 5.0;                               // what the destructor gives what is left
  std::function<void(const std::string&)> on_problem = {};  // one line; from the thread
};

// {"text": for people (what Slack and its like show), "run", "name", "host", "alerts": [events of the schema]}.
nlohmann::json notification(const std::vector<Alert>& alerts, const DeliveryOptions& options);

// The address that a setting names: itself, the value of a variable, the first line of a file. Throws UserError that
// does not hold it.
std::string webhook_address(const std::string& setting);

// Thread-safe.
class AlertDelivery {
 public:
  // Throws UserError (environment) when the webhook's variable or file is not there.
  AlertDelivery(const spec::Alerts& settings, DeliveryOptions options);
  ~AlertDelivery();
  AlertDelivery(const AlertDelivery&) = delete;
  AlertDelivery& operator=(const AlertDelivery&) = delete;

  bool is_wanted() const;  // there is a webhook or a command
  void tell(const Alert& alert);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::telemetry
