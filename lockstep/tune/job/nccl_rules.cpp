#include "lockstep/tune/job/nccl_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>

#include "lockstep/base/text.h"

namespace lockstep::tune {
namespace {

constexpr int kFirstVersionWithPat = 22300;
constexpr int kFirstVersionThatFails = 22400;

enum Function : unsigned {
  kAllReduce = 1,
  kAllGather = 2,
  kReduceScatter = 4,
  kBroadcast = 8,
  kReduce = 16,
  kAll = 31
};

struct Algorithm {
  const char* name;  // lower case
  bool only_simple;
  bool needs_hopper;
  bool needs_nodes;
  bool uses_nthreads;
  unsigned functions;
};

constexpr std::array kAlgorithms = {
    Algorithm{"ring", false, false, false, true, kAll},
    Algorithm{"tree", false, false, false, true, kAllReduce},
    Algorithm{"collnet", true, false, false, false, kAllReduce | kAllGather | kReduceScatter},
    Algorithm{"collnetdirect", true, false, false, false, kAllReduce | kAllGather | kReduceScatter},
    Algorithm{"collnetchain", true, false, false, false, kAllReduce},
    Algorithm{"nvls", true, true, false, false, kAllReduce | kAllGather | kReduceScatter},
    Algorithm{"nvlstree", true, true, true, false, kAllReduce},
    Algorithm{"pat", true, false, false, true, kAllGather | kReduceScatter},
};
constexpr std::array kProtocols = {"ll", "ll128", "simple"};
constexpr std::array kFunctions = {std::pair{"allreduce", kAllReduce}, std::pair{"allgather", kAllGather},
                                   std::pair{"reducescatter", kReduceScatter}, std::pair{"broadcast", kBroadcast},
                                   std::pair{"reduce", kReduce}};

bool is_unset(const std::string& value) { return value.empty() || value == "auto" || value == "default"; }

std::string plain_name(std::string_view word) {
  std::string name = to_lower(trim(word));
  name.erase(std::remove(name.begin(), name.end(), '_'), name.end());  // NVLS_TREE, COLLNET_DIRECT
  return name;
}

// What a variable says about one collective: a list of names, or all but those.
struct Selection {
  bool given = false;  // the collective is named: what it cannot do counts
  bool all_but = false;
  std::vector<std::string> names;  // lower case

  bool has(const char* name) const {
    const bool listed = std::find(names.begin(), names.end(), name) != names.end();
    return names.empty() || listed != all_but;
  }
  // "LL128" and "^LL" switch LL128 on, wanted or not; a variable that is not set leaves that to NCCL.
  bool forces(const char* name) const { return !names.empty() && has(name); }
};

Selection parse_names(std::string_view list) {
  Selection selection;
  list = trim(list);
  if (!list.empty() && list.front() == '^') {
    selection.all_but = true;
    list.remove_prefix(1);
  }
  for (const std::string& word : split(list, ',')) {
    if (!trim(word).empty()) selection.names.push_back(plain_name(word));
  }
  return selection;
}

// The part for `function`: "allreduce:tree;ring" has its own for allreduce and ring for the rest.
Selection selection_for(const std::string& value, const char* function) {
  Selection result;
  if (is_unset(to_lower(trim(value)))) return result;
  for (const std::string& part : split(value, ';')) {
    const std::size_t colon = part.find(':');
    if (colon == std::string::npos) {
      if (!result.given) result = parse_names(part);
    } else if (plain_name(part.substr(0, colon)) == function) {
      result = parse_names(part.substr(colon + 1));
      result.given = true;
    }
  }
  return result;
}

bool is_known(const Selection& selection, const auto& is_name) {
  return std::all_of(selection.names.begin(), selection.names.end(), is_name);
}

std::string objection_to_algorithm(const Algorithm& algorithm, const NcclFacts& facts) {
  if (algorithm.needs_hopper && facts.hopper == false) return "needs NVLink SHARP (Hopper or later)";
  if (algorithm.needs_nodes && facts.nodes == 1) return "needs more than one node";
  if (std::string_view(algorithm.name) == "pat" && facts.version != 0 && facts.version < kFirstVersionWithPat) {
    return "came with NCCL 2.23";
  }
  return {};
}

// Is there one algorithm with one protocol left for this collective?
std::string objection_for(const Selection& algos, const Selection& protos, unsigned function, const NcclFacts& facts) {
  const auto is_algorithm = [](const std::string& name) {
    return std::any_of(kAlgorithms.begin(), kAlgorithms.end(), [&](const Algorithm& a) { return name == a.name; });
  };
  const auto is_protocol = [](const std::string& name) {
    return std::find(kProtocols.begin(), kProtocols.end(), name) != kProtocols.end();
  };
  // Names with quotes in them are none of NCCL's, so expressions can always quote what there is a rule for.
  if (!is_known(algos, is_algorithm) || !is_known(protos, is_protocol)) return {};
  std::string why;
  for (const Algorithm& algorithm : kAlgorithms) {
    if (!algos.has(algorithm.name)) continue;
    if (algos.given && (algorithm.functions & function) == 0) {
      why = fmt::format("{} cannot do this collective", algorithm.name);
      continue;
    }
    if (const std::string problem = objection_to_algorithm(algorithm, facts); !problem.empty()) {
      why = fmt::format("{} {}", algorithm.name, problem);
      continue;
    }
    for (const char* protocol : kProtocols) {
      if (protos.has(protocol) && (!algorithm.only_simple || std::string_view(protocol) == "simple")) return {};
    }
    why = fmt::format("{} works with the Simple protocol only", algorithm.name);
  }
  return why.empty() ? "nothing is left to choose" : why;
}

// As it is written in an expression: texts quoted, numbers not.
std::string literal(const Value& value) {
  const std::string text = to_text(value);
  return std::holds_alternative<std::string>(value) ? fmt::format("\"{}\"", text) : text;
}

}  // namespace

std::string nccl_objection(const std::string& algo, const std::string& proto, const NcclFacts& facts) {
  const bool by_collective = algo.find(':') != std::string::npos || proto.find(':') != std::string::npos;
  if (by_collective && facts.version != 0 && facts.version < kFirstVersionThatFails) {
    return fmt::format("NCCL_ALGO={} NCCL_PROTO={}: lists by collective came with NCCL 2.24", algo, proto);
  }
  for (const auto& [name, function] : kFunctions) {
    const Selection algos = selection_for(algo, name);
    const Selection protos = selection_for(proto, name);
    if (facts.ll128_safe == false && protos.forces("ll128")) {
      return fmt::format("NCCL_PROTO={} forces LL128, which can corrupt data on these links", proto);
    }
    const std::string problem = objection_for(algos, protos, function, facts);
    if (problem.empty()) continue;
    const bool ignored = facts.version != 0 && facts.version < kFirstVersionThatFails;
    return fmt::format("NCCL_ALGO={} NCCL_PROTO={}: {}{}", algo, proto, problem,
                       ignored ? " (NCCL before 2.24 would quietly use something else)" : "");
  }
  return {};
}

std::vector<std::string> nccl_constraints(const std::vector<Value>& algos, const std::vector<Value>& protos,
                                          const NcclFacts& facts) {
  std::vector<std::string> rules;
  std::vector<Value> left;  // protocols that are possible at all
  for (const Value& proto : protos) {
    if (nccl_objection("", to_text(proto), facts).empty()) {
      left.push_back(proto);
    } else {
      rules.push_back(fmt::format("NCCL_PROTO != {}", literal(proto)));
    }
  }
  for (const Value& algo : algos) {
    if (!nccl_objection(to_text(algo), "", facts).empty()) {
      rules.push_back(fmt::format("NCCL_ALGO != {}", literal(algo)));
      continue;
    }
    std::vector<std::string> fitting;
    for (const Value& proto : left) {
      if (nccl_objection(to_text(algo), to_text(proto), facts).empty()) fitting.push_back(literal(proto));
    }
    if (fitting.size() == left.size()) continue;
    rules.push_back(fitting.empty()
                        ? fmt::format("NCCL_ALGO != {}", literal(algo))
                        : fmt::format("NCCL_ALGO != {} or NCCL_PROTO in [{}]", literal(algo), join(fitting, ", ")));
  }
  return rules;
}

bool nccl_uses_nthreads(const std::string& algo, const std::string& proto) {
  const Selection algos = selection_for(algo, "allreduce");
  const Selection protos = selection_for(proto, "allreduce");
  const bool some_algorithm = std::any_of(kAlgorithms.begin(), kAlgorithms.end(), [&](const Algorithm& algorithm) {
    return algorithm.uses_nthreads && algos.has(algorithm.name);
  });
  return some_algorithm && (protos.has("simple") || protos.has("ll"));
}

int parse_nccl_version(const std::string& text) {
  const std::vector<std::string> parts = split(text, '.');
  int numbers[3] = {0, 0, 0};
  if (parts.size() > 3) return 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const bool digits =
        !parts[i].empty() && parts[i].size() <= 6 && parts[i].find_first_not_of("0123456789") == std::string::npos;
    if (!digits) return 0;
    numbers[i] = std::atoi(parts[i].c_str());
  }
  if (parts.size() == 1) return numbers[0] >= 2000 ? numbers[0] : 0;
  // Two digits per part since 2.9, one before.
  return numbers[0] == 2 && numbers[1] <= 8 ? numbers[0] * 1000 + numbers[1] * 100 + numbers[2]
                                            : numbers[0] * 10000 + numbers[1] * 100 + numbers[2];
}

}  // namespace lockstep::tune
