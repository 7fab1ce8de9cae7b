#include "lockstep/elastic/rank_environment.h"

#include <charconv>
#include <cstdint>
#include <cstdlib>

#include "lockstep/base/error.h"
#include "lockstep/elastic/node_list.h"

namespace lockstep::elastic {
namespace {

int required_int(const VariableLookup& lookup, const std::string& name, const std::string& because) {
  const std::optional<std::string> text = lookup(name);
  if (!text) throw bad_input(because + " is set but " + name + " is not", "set " + name + " or unset " + because);
  int value = 0;
  const char* end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc() || stop != end || value < 0) {
    throw bad_input("environment variable " + name + "=" + *text + " is not a whole number", "set it to 0 or more");
  }
  return value;
}

int optional_int(const VariableLookup& lookup, const std::string& name, int otherwise) {
  return lookup(name) ? required_int(lookup, name, name) : otherwise;
}

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0; }

void check(const RankEnvironment& environment) {
  if (environment.local_world < 1) {
    throw bad_input(environment.source + " says that this node has no ranks", "set the local world size to 1 or more");
  }
  if (environment.world < 1 || environment.rank >= environment.world) {
    throw bad_input(environment.source + " says rank " + std::to_string(environment.rank) + " of world " +
                        std::to_string(environment.world),
                    "the rank must be below the world size");
  }
}

// LOCKSTEP_* and torchrun speak the same words with and without the prefix.
RankEnvironment from_torchrun_style(const VariableLookup& lookup, const std::string& prefix) {
  const std::string rank_name = prefix + "RANK";
  RankEnvironment result;
  result.source = prefix.empty() ? "torchrun" : "lockstep";
  result.rank = required_int(lookup, rank_name, rank_name);
  result.world = required_int(lookup, prefix + "WORLD_SIZE", rank_name);
  if (const auto host = lookup(prefix + "MASTER_ADDR")) result.master_host = *host;
  result.master_port = optional_int(lookup, prefix + "MASTER_PORT", 0);
  // Without a word about nodes, only a meeting point on loopback shows that there is just this one.
  const bool meets_here = is_loopback(result.master_host);
  result.local_rank = optional_int(lookup, prefix + "LOCAL_RANK", meets_here ? result.rank : 0);
  result.local_world = optional_int(lookup, prefix + "LOCAL_WORLD_SIZE", meets_here ? result.world : 1);
  result.one_node = result.local_world == result.world;
  // torchrun's agent itself listens on MASTER_PORT; our store needs another, the same on all ranks.
  if (lookup("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True") {
    result.master_port =
        derived_port(lookup("TORCHELASTIC_RUN_ID").value_or("") + ":" + std::to_string(result.master_port));
  }
  return result;
}

RankEnvironment from_slurm(const VariableLookup& lookup) {
  RankEnvironment result;
  result.source = "slurm";
  result.rank = required_int(lookup, "SLURM_PROCID", "SLURM_PROCID");
  result.world = required_int(lookup, "SLURM_STEP_NUM_TASKS", "SLURM_PROCID");
  result.local_rank = optional_int(lookup, "SLURM_LOCALID", 0);
  const int nodes = optional_int(lookup, "SLURM_STEP_NUM_NODES", 1);
  if (nodes < 1) throw bad_input("SLURM_STEP_NUM_NODES is 0", "unset it, or start the step with srun");
  result.one_node = nodes == 1;
  // SLURM_STEP_TASKS_PER_NODE is "4(x2)" or "4,3"; only equal shares give a plain number.
  result.local_world = result.one_node ? result.world : result.world / nodes;
  if (!result.one_node) result.master_host = hosts_of(lookup("SLURM_STEP_NODELIST").value_or("127.0.0.1")).front();
  result.master_port = derived_port(lookup("SLURM_JOB_ID").value_or("0") + "." + lookup("SLURM_STEP_ID").value_or("0"));
  return result;
}

RankEnvironment from_openmpi(const VariableLookup& lookup) {
  RankEnvironment result;
  result.source = "openmpi";
  result.rank = required_int(lookup, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK");
  result.world = required_int(lookup, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK");
  result.local_rank = optional_int(lookup, "OMPI_COMM_WORLD_LOCAL_RANK", result.rank);
  result.local_world = optional_int(lookup, "OMPI_COMM_WORLD_LOCAL_SIZE", result.world);
  result.one_node = result.local_world == result.world;
  if (result.one_node) result.master_port = derived_port(lookup("PMIX_NAMESPACE").value_or("ompi"));
  return result;
}

RankEnvironment from_pmi(const VariableLookup& lookup) {
  RankEnvironment result;
  result.source = "pmi";
  result.rank = required_int(lookup, "PMI_RANK", "PMI_RANK");
  result.world = required_int(lookup, "PMI_SIZE", "PMI_RANK");
  result.local_rank = optional_int(lookup, "MPI_LOCALRANKID", result.rank);
  result.local_world = optional_int(lookup, "MPI_LOCALNRANKS", result.world);
  result.one_node = result.local_world == result.world;
  return result;
}

// Slurm, Open MPI and PMI name no meeting point of their own, so torchrun's variables may complete them.
void complete_master(RankEnvironment& result, const VariableLookup& lookup) {
  for (const std::string prefix : {"LOCKSTEP_", ""}) {
    if (const auto host = lookup(prefix + "MASTER_ADDR")) {
      result.master_host = *host;
      result.master_port = optional_int(lookup, prefix + "MASTER_PORT", result.master_port);
      return;
    }
  }
}

}  // namespace

int derived_port(const std::string& job_key) {
  std::uint32_t hash = 2166136261u;  // FNV-1a
  for (const char c : job_key) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return 20000 + static_cast<int>(hash % 10000);
}

VariableLookup process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return std::string(value);
  };
}

std::optional<RankEnvironment> detect_rank_environment(const VariableLookup& lookup) {
  RankEnvironment result;
  if (lookup("LOCKSTEP_RANK")) {
    result = from_torchrun_style(lookup, "LOCKSTEP_");
  } else if (lookup("RANK") && lookup("WORLD_SIZE")) {
    result = from_torchrun_style(lookup, "");
  } else if (lookup("SLURM_PROCID") && lookup("SLURM_STEP_NUM_TASKS")) {
    // Inside `sbatch` alone SLURM_PROCID is 0 and there is no step: that is "by hand".
    result = from_slurm(lookup);
    complete_master(result, lookup);
  } else if (lookup("OMPI_COMM_WORLD_RANK")) {
    result = from_openmpi(lookup);
    complete_master(result, lookup);
  } else if (lookup("PMI_RANK")) {
    result = from_pmi(lookup);
    complete_master(result, lookup);
  } else {
    return std::nullopt;
  }
  result.interface = lookup("LOCKSTEP_INTERFACE").value_or("");
  check(result);
  if (result.world == 1 && result.source != "lockstep") return std::nullopt;
  return result;
}

}  // namespace lockstep::elastic
