#include "lockstep/tune/job/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/plan/layout.h"

namespace lockstep::tune {
namespace {

UserError cannot_be(const std::string& what, const Value& value, const std::string& fix) {
  return bad_input(fmt::format("{} cannot be `{}`", what, printable(to_text(value))), fix);
}

double real_number(const Value& value, const std::string& what) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return static_cast<double>(*whole);
  if (const auto* real = std::get_if<double>(&value)) return *real;
  throw cannot_be(what, value, "give a number");
}

bool truth(const Value& value, const std::string& what) {
  if (const auto* given = std::get_if<bool>(&value)) return *given;
  if (const auto* number = std::get_if<std::int64_t>(&value); number != nullptr && (*number == 0 || *number == 1)) {
    return *number == 1;
  }
  const std::string text = to_text(value);
  if (text == "true" || text == "false") return text == "true";
  throw cannot_be(what, value, "give true or false");
}

// The choice whose name `value` is.
template <class E>
E choice(const Value& value, const std::string& what, std::initializer_list<E> choices) {
  std::vector<std::string> names;
  for (const E candidate : choices) {
    if (to_text(value) == spec::to_string(candidate)) return candidate;
    names.emplace_back(spec::to_string(candidate));
  }
  throw cannot_be(what, value, fmt::format("use {}", join(names, ", ")));
}

std::string plain(const Value& value) { return to_text(value); }
std::string yes_no(const Value& value) { return truth(value, "") ? "true" : "false"; }
std::string whole(const Value& value) { return std::to_string(whole_number(value, "", 0)); }
std::string mebibytes(const Value& value) { return fmt::format("{}MiB", real_number(value, "")); }

void set_bucket(spec::Job& job, const Value& value) {
  const double mib = real_number(value, "communication.bucket_mib");
  if (!(mib > 0)) throw cannot_be("communication.bucket_mib", value, "give MiB above 0");
  job.communication.bucket_mib = mib;
}

void set_compression(spec::Job& job, const Value& value) {
  using enum spec::Compression;
  job.communication.compression = choice(value, "communication.compression", {kNone, kFp16, kBf16, kPowerSgd, kOneBit});
}

void set_precision(spec::Job& job, const Value& value) {
  using enum spec::Precision;
  job.precision = choice(value, "precision", {kFp64, kFp32, kFp16, kBf16, kFp8});
}

void set_backend(spec::Job& job, const Value& value) {
  const std::string name = to_text(value);
  if (name != "auto" && name != "local" && name != "tcp" && name != "gloo" && name != "mpi" && name != "nccl") {
    throw cannot_be("communication.backend", value, "use auto, local, tcp, gloo, mpi, nccl");
  }
  job.communication.backend = name == "auto" ? "" : name;
}

// Function pointers out of members, so that the table below stays one line a field.
template <auto Part, auto Member, std::int64_t kLow>
void set_count(spec::Job& job, const Value& value) {
  (job.*Part).*Member = whole_number(value, "it", kLow);
}
template <auto Part, auto Member>
Value get_count(const spec::Job& job) {
  return (job.*Part).*Member;
}
template <auto Part, auto Member>
void set_flag(spec::Job& job, const Value& value) {
  (job.*Part).*Member = truth(value, "it");
}

using spec::Job;
constexpr std::array<JobField, 14> kFields{{
    {"batch.micro", "batch.micro", set_count<&Job::batch, &spec::Batch::micro, 1>,
     get_count<&Job::batch, &spec::Batch::micro>, whole},
    {"batch.accumulation", "batch.accumulation", set_count<&Job::batch, &spec::Batch::accumulation, 1>,
     get_count<&Job::batch, &spec::Batch::accumulation>, whole},
    {"batch.sequence_length", "batch.sequence_length", set_count<&Job::batch, &spec::Batch::sequence_length, 1>,
     get_count<&Job::batch, &spec::Batch::sequence_length>, whole},
    {"loader.num_workers", "loader.num_workers", set_count<&Job::loader, &spec::Loader::num_workers, 0>,
     get_count<&Job::loader, &spec::Loader::num_workers>, whole},
    {"loader.prefetch_factor", "loader.prefetch_factor", set_count<&Job::loader, &spec::Loader::prefetch_factor, 1>,
     get_count<&Job::loader, &spec::Loader::prefetch_factor>, whole},
    {"communication.bucket_mib", "communication.bucket", set_bucket,
     [](const Job& job) -> Value { return job.communication.bucket_mib; }, mebibytes},
    {"communication.compression", "communication.compression", set_compression,
     [](const Job& job) -> Value { return std::string(spec::to_string(job.communication.compression)); }, plain},
    {"communication.powersgd_rank", "communication.powersgd_rank",
     set_count<&Job::communication, &spec::Communication::powersgd_rank, 1>,
     get_count<&Job::communication, &spec::Communication::powersgd_rank>, whole},
    {"communication.backend", "communication.backend", set_backend,
     [](const Job& job) -> Value {
       return job.communication.backend.empty() ? std::string("auto") : job.communication.backend;
     },
     plain},
    {"communication.reduce_each_micro_step", "communication.reduce_each_micro_step",
     set_flag<&Job::communication, &spec::Communication::reduce_each_micro_step>,
     [](const Job& job) -> Value { return job.communication.reduce_each_micro_step; }, yes_no},
    {"communication.reshard_after_forward", "communication.reshard_after_forward",
     set_flag<&Job::communication, &spec::Communication::reshard_after_forward>,
     [](const Job& job) -> Value { return job.communication.reshard_after_forward; }, yes_no},
    {"activation_offload", "activation_offload",
     [](Job& job, const Value& value) { job.activation_offload = truth(value, "activation_offload"); },
     [](const Job& job) -> Value { return job.activation_offload; }, yes_no},
    {"precision", "precision", set_precision,
     [](const Job& job) -> Value { return std::string(spec::to_string(job.precision)); }, plain},
    {"threads_per_rank", "threads_per_rank",
     [](Job& job, const Value& value) { job.threads_per_rank = whole_number(value, "threads_per_rank", 0); },
     [](const Job& job) -> Value { return job.threads_per_rank; }, whole},
}};

}  // namespace

std::int64_t whole_number(const Value& value, const std::string& what, std::int64_t low) {
  std::optional<std::int64_t> number;
  if (const auto* whole = std::get_if<std::int64_t>(&value)) number = *whole;
  if (const auto* real = std::get_if<double>(&value); real != nullptr && std::abs(*real) < 1e15) {
    if (std::floor(*real) == *real) number = static_cast<std::int64_t>(*real);
  }
  if (const auto* text = std::get_if<std::string>(&value); text != nullptr && !text->empty() && text->size() < 16 &&
                                                           text->find_first_not_of("0123456789") == std::string::npos) {
    number = std::stoll(*text);
  }
  if (!number || *number < low) throw cannot_be(what, value, fmt::format("give a whole number from {} on", low));
  return *number;
}

const JobField* find_job_field(std::string_view target) {
  const auto found =
      std::find_if(kFields.begin(), kFields.end(), [&](const JobField& field) { return field.target == target; });
  return found == kFields.end() ? nullptr : &*found;
}

std::vector<std::string> job_field_names() {
  std::vector<std::string> names;
  for (const JobField& field : kFields) names.emplace_back(field.target);
  for (const plan::LayoutField& field : plan::layout_fields()) {
    if (is_layout_field(field.name())) names.push_back(fmt::format("layout.{}", field.name()));
  }
  names.insert(names.end(), {"ranks", "env", "loader.pin_memory"});
  return names;
}

bool is_layout_field(std::string_view name) {
  return name != "precision" && plan::find_layout_field(name) != nullptr;  // the precision is the job's
}

void set_layout_field(spec::LayoutRequest& layout, const std::string& name, const Value& value) {
  const std::string what = fmt::format("layout.{}", name);
  const spec::LayoutKey& key = *plan::find_layout_field(name)->key;
  if (name == "sequence_parallel") {
    layout.sequence_parallel = truth(value, what);
  } else if (key.is_axis()) {
    const std::int64_t size = whole_number(value, what, key.least);
    if (size > key.most) throw cannot_be(what, value, fmt::format("{} is the most", key.most));
    layout.axes[name] = size;
  } else {
    const std::string text = to_text(value);
    if (std::find(key.choices.begin(), key.choices.end(), text) == key.choices.end()) {
      throw cannot_be(what, value, "see `layout` in docs/reference/job-file.md");
    }
    layout.choices[name] = text;
  }
}

Value layout_field(const spec::LayoutRequest& request, const std::string& name) {
  const plan::Layout layout = plan::layout_from_request(request, spec::Precision::kFp32);
  const plan::LayoutField* field = plan::find_layout_field(name);
  if (name == "sequence_parallel") return layout.sequence_parallel;
  if (field == nullptr) return {};
  return field->is_axis() ? Value(field->get(layout)) : Value(field->text(layout));
}

}  // namespace lockstep::tune
