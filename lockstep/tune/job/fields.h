// The fields of a Job that knobs may turn, by the name a space gives them. Internal to tune/.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/spec/job.h"
#include "lockstep/tune/space/config.h"

namespace lockstep::tune {

// One field outside the layout and the cluster.
struct JobField {
  const char* target;  // "communication.bucket_mib"
  const char* key;     // of the override: "communication.bucket"
  // Throws UserError (exit code 2) for a value the field cannot take.
  void (*set)(spec::Job& job, const Value& value);
  Value (*get)(const spec::Job& job);
  std::string (*text)(const Value& value);  // as the job file writes it
};

const JobField* find_job_field(std::string_view target);
std::vector<std::string> job_field_names();

// Fields of `layout:`, without "layout."; the axes and choices of the job file.
bool is_layout_field(std::string_view name);
// Throws UserError (exit code 2) for a value the field cannot take.
void set_layout_field(spec::LayoutRequest& layout, const std::string& name, const Value& value);
Value layout_field(const spec::LayoutRequest& layout, const std::string& name);

// Whole numbers out of 4, 4.0 and "4". Throws UserError (exit code 2) below `low` and for anything else.
std::int64_t whole_number(const Value& value, const std::string& what, std::int64_t low);

}  // namespace lockstep::tune
