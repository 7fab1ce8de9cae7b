#include "lockstep/nn/script_graph.h"

#include <fmt/format.h>

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/inliner.h>

#include <algorithm>
#include <functional>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::nn {
namespace {

namespace jit = torch::jit;
using jit::Block;
using jit::Graph;
using jit::Node;
using jit::Value;

// A container of more than this share of the weights is looked into; a segment of less is joined with the next.
constexpr double kLargeShare = 0.25;
constexpr double kSmallShare = 1.0 / 64;
constexpr int kMostInlined = 4096;

bool is_module(const Value* value) {
  const auto type = value->type()->cast<c10::ClassType>();
  return type != nullptr && type->is_module();
}

std::int64_t weights_below(const jit::Module& module) {
  std::int64_t count = 0;
  for (const torch::Tensor& tensor : module.parameters()) count += tensor.numel();
  return count;
}

// A list of tensors among a module's attributes: recurrent layers keep their weights in one, beside the parameters.
bool is_tensor_list(const Value* value) {
  const auto list = value->type()->cast<c10::ListType>();
  return list != nullptr && list->getElementType()->isSubtypeOf(*c10::TensorType::get());
}

// Something that may hold tensors in a way that is not followed here.
bool may_hide_tensors(const Value* value) {
  const auto kind = value->type()->kind();
  return kind == c10::TypeKind::DictType || kind == c10::TypeKind::TupleType ||
         (kind == c10::TypeKind::ListType && !is_tensor_list(value));
}

bool holds_tensors(const c10::TypePtr& type) {
  if (type->isSubtypeOf(*c10::TensorType::get())) return true;
  const auto inner = type->containedTypes();
  return std::any_of(inner.begin(), inner.end(), holds_tensors);
}

std::string owner_of(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

void each_node(const Block* block, const std::function<void(const Node*)>& visit) {
  for (const Node* node : block->nodes()) {
    visit(node);
    for (const Block* inner : node->blocks()) each_node(inner, visit);
  }
}

// Follows attributes from `self`: which submodule or tensor a value of the graph is.
class Paths {
 public:
  Paths(const Graph& graph, const jit::Module& root) : root_(root) {
    paths_[graph.inputs()[0]] = "";
    each_node(graph.block(), [&](const Node* node) {
      if (node->kind() != c10::prim::GetAttr) return;
      const auto found = paths_.find(node->input());
      if (found == paths_.end()) return;
      const std::string& name = node->s(c10::attr::name);
      paths_[node->output()] = found->second.empty() ? name : found->second + "." + name;
    });
  }
  const std::string* find(const Value* value) const {
    const auto found = paths_.find(value);
    return found == paths_.end() ? nullptr : &found->second;
  }
  jit::Module module_at(const std::string& path) const {
    jit::Module module = root_;
    std::size_t begin = 0;
    while (begin < path.size()) {
      const std::size_t end = std::min(path.find('.', begin), path.size());
      module = module.attr(path.substr(begin, end - begin)).toModule();
      begin = end + 1;
    }
    return module;
  }

 private:
  jit::Module root_;
  std::unordered_map<const Value*, std::string> paths_;
};

bool is_container(const jit::Module& child, std::int64_t all_weights) {
  std::int64_t with_weights = 0;
  for (const jit::Module& inner : child.children()) with_weights += weights_below(inner) > 0 ? 1 : 0;
  if (with_weights == 0) return false;
  const std::string type = child.type()->name() ? child.type()->name()->qualifiedName() : "";
  if (type.find("container.Sequential") != std::string::npos) return true;
  return static_cast<double>(weights_below(child)) > kLargeShare * static_cast<double>(all_weights);
}

// The first call of a container's forward, whose own code can take its place.
Node* find_container(Graph& graph, const jit::Module& module, std::int64_t all_weights) {
  const Paths paths(graph, module);
  for (Node* node : graph.nodes()) {
    if (node->kind() != c10::prim::CallMethod || node->s(c10::attr::name) != "forward") continue;
    const std::string* path = paths.find(node->input(0));
    if (path != nullptr && is_container(paths.module_at(*path), all_weights)) return node;
  }
  return nullptr;
}

std::shared_ptr<Graph> flat_graph(const jit::Module& module) {
  std::shared_ptr<Graph> graph = jit::toGraphFunction(module.get_method("forward").function()).graph()->copy();
  const std::int64_t weights = weights_below(module);
  for (int i = 0; i < kMostInlined; ++i) {
    Node* call = find_container(*graph, module, weights);
    if (call == nullptr) break;
    jit::Function& callee = call->input(0)->type()->expect<c10::ClassType>()->getMethod("forward");
    auto* code = dynamic_cast<jit::GraphFunction*>(&callee);
    if (code == nullptr) break;
    jit::inlineCallTo(call, code);
  }
  return graph;
}

// Arguments with a default get it; the others are the tensors that the data gives.
std::vector<std::string> settle_arguments(Graph& graph, const jit::Module& module, const std::string& name) {
  const auto& arguments = module.get_method("forward").function().getSchema().arguments();
  std::vector<std::string> tensors;
  graph.setInsertPoint(*graph.nodes().begin());
  for (std::size_t i = arguments.size(); i-- > 1;) {
    const c10::Argument& argument = arguments[i];
    if (argument.default_value()) {
      Value* constant = graph.insertConstant(*argument.default_value());
      graph.inputs()[i]->replaceAllUsesWith(constant);
      graph.eraseInput(i);
      continue;
    }
    const auto type = argument.type();
    const auto optional = type->cast<c10::OptionalType>();
    const bool is_tensor = type->isSubtypeOf(*c10::TensorType::get()) ||
                           (optional && optional->getElementType()->isSubtypeOf(*c10::TensorType::get()));
    if (!is_tensor) {
      throw bad_input(fmt::format("{}: forward reads `{}` of type {}, and data gives tensors", name,
                                  printable(argument.name()), printable(type->annotation_str())),
                      "give it a default value, or make it an attribute of the module");
    }
    tensors.insert(tensors.begin(), argument.name());
  }
  if (tensors.empty()) throw bad_input(name + ": forward reads no tensor", "let it read the data");
  return tensors;
}

// What is known about the whole graph once every call is inlined.
struct WholeFacts {
  bool draws = false, updates = false;
  bool hides = false;  // attributes that may hold weights in a way that is not followed
};

// The rate of dropout that an operator takes is above zero, computed, or an attribute of that name. `kind` names the
// operator; of attention it is the fifth number, its scale is another.
bool takes_dropout(const Node* node, const std::string& kind, const Paths& paths) {
  constexpr std::size_t kRateOfAttention = 4;
  for (std::size_t i = 0; i < node->inputs().size(); ++i) {
    const Value* input = node->input(i);
    if (kind == "scaled_dot_product_attention" && i != kRateOfAttention) continue;
    if (!input->type()->isSubtypeOf(*c10::FloatType::get())) continue;
    const auto value = jit::toIValue(input);
    const std::string* path = paths.find(input);
    if (value ? value->toDouble() > 0.0 : path == nullptr || path->ends_with("dropout")) return true;
  }
  return false;
}

WholeFacts look_at_all(const jit::Module& module, const std::string& name) {
  std::shared_ptr<Graph> graph = jit::toGraphFunction(module.get_method("forward").function()).graph()->copy();
  jit::Inline(*graph);
  const Paths paths(*graph, module);
  static const std::unordered_set<std::string> kDraw = {
      "dropout", "alpha_dropout", "feature_dropout", "bernoulli", "rand",  "randn",    "rand_like",   "randn_like",
      "randint", "normal",        "multinomial",     "poisson",   "rrelu", "randperm", "randint_like"};
  // These take their dropout as a number.
  static const std::unordered_set<std::string> kMayDraw = {"lstm", "gru", "scaled_dot_product_attention"};
  WholeFacts facts;
  each_node(graph->block(), [&](const Node* node) {
    if (node->kind() == c10::prim::GetAttr) {
      facts.hides = facts.hides || (may_hide_tensors(node->output()) && holds_tensors(node->output()->type()));
      return;
    }
    std::string kind = node->kind().toUnqualString();
    if (kind.ends_with('_')) kind.pop_back();
    facts.draws = facts.draws || kDraw.contains(kind) || (kMayDraw.contains(kind) && takes_dropout(node, kind, paths));
    if (node->kind() == c10::prim::SetAttr) {
      throw bad_input(fmt::format("{}: forward assigns to self.{}", name, printable(node->s(c10::attr::name))),
                      "write into the tensor instead: self." + printable(node->s(c10::attr::name)) + ".copy_(...)");
    }
    const c10::FunctionSchema* schema = node->maybeSchema();
    if (schema == nullptr) return;
    if (kind == "batch_norm" || kind == "native_batch_norm") facts.updates = true;
    for (std::size_t i = 0; i < schema->arguments().size() && i < node->inputs().size(); ++i) {
      const c10::AliasInfo* alias = schema->arguments()[i].alias_info();
      if (alias != nullptr && alias->isWrite() && paths.find(node->input(i)) != nullptr) facts.updates = true;
    }
  });
  return facts;
}

// Cuts one flat graph.
class Cutter {
 public:
  Cutter(std::shared_ptr<Graph> graph, const jit::Module& module)
      : graph_(std::move(graph)), module_(module), paths_(*graph_, module) {
    for (const auto& entry : module.named_buffers()) names_[entry.name] = 0;
    for (const auto& entry : module.named_parameters()) names_[entry.name] = entry.value.numel();
    for (Node* node : graph_->nodes()) {
      if (is_free(node)) continue;
      position_[node] = nodes_.size();
      nodes_.push_back(node);
    }
  }

  // With `whole` it is one segment that uses everything.
  std::vector<ScriptSegment> cut(bool whole) {
    if (whole) {
      ScriptSegment all = make_segment(0, nodes_.size());
      add_parameters("", all.parameters);
      return {all};
    }
    std::vector<std::size_t> starts = find_starts();
    while (true) {
      std::vector<ScriptSegment> segments;
      std::size_t spoilt = 0;
      for (std::size_t i = 0; i < starts.size(); ++i) {
        segments.push_back(make_segment(starts[i], i + 1 < starts.size() ? starts[i + 1] : nodes_.size()));
        // Two tensors that enter may be one in memory, and the copy that is written into another one.
        const ScriptSegment& made = segments.back();
        const bool writes = std::count(made.written.begin(), made.written.end(), 1) > 0;
        if (i > 0 && made.inputs > 1 && writes && spoilt == 0) spoilt = i;
      }
      if (spoilt == 0) return segments;
      starts.erase(starts.begin() + static_cast<std::ptrdiff_t>(spoilt));
    }
  }

 private:
  // Constants, attributes and lists of them: made again wherever they are used.
  bool is_free(const Node* node) const {
    const auto kind = node->kind();
    if (kind == c10::prim::Constant) return true;
    if (kind == c10::prim::GetAttr) return paths_.find(node->output()) != nullptr;
    if (kind != c10::prim::ListConstruct && kind != c10::prim::TupleConstruct) return false;
    return std::all_of(node->inputs().begin(), node->inputs().end(), [&](const Value* input) {
      return input->node()->owningBlock() == graph_->block() && input->node() != graph_->param_node() &&
             is_free(input->node());
    });
  }

  // Values of the top of the graph that a node, or what is inside it, uses; free ones apart.
  void uses_of(const Node* node, std::vector<const Value*>& carried, std::vector<const Value*>& free) const {
    const auto add = [&](const Value* value) {
      if (value->node()->owningBlock() != graph_->block() && value->node() != graph_->param_node()) return;
      if (value == graph_->inputs()[0] || (value->node() != graph_->param_node() && is_free(value->node()))) {
        free.push_back(value);
      } else {
        carried.push_back(value);
      }
    };
    for (const Value* input : node->inputs()) add(input);
    for (const Block* block : node->blocks()) {
      each_node(block, [&](const Node* inner) {
        for (const Value* input : inner->inputs()) add(input);
        for (const Block* deeper : inner->blocks()) {
          for (const Value* output : deeper->outputs()) add(output);
        }
      });
      for (const Value* output : block->outputs()) add(output);
    }
  }

  void add_parameters(const std::string& path, std::set<std::string>& names) const {
    for (const auto& [name, count] : names_) {
      if (path.empty() || name == path || name.starts_with(path + ".")) names.insert(name);
    }
  }

  std::set<std::string> parameters_of(const Node* node, std::string* called = nullptr) const {
    std::set<std::string> names;
    const auto look = [&](const Node* at) {
      if (at->kind() == c10::prim::GetAttr) {
        const std::string* path = paths_.find(at->output());
        if (path == nullptr) return;
        if (names_.contains(*path)) names.insert(*path);
        if (is_tensor_list(at->output())) add_parameters(owner_of(*path), names);
        return;
      }
      for (const Value* input : at->inputs()) {
        const std::string* path = paths_.find(input);
        if (path == nullptr || (is_module(input) && at->kind() == c10::prim::GetAttr)) continue;
        if (is_module(input) || names_.contains(*path)) add_parameters(*path, names);
        if (is_tensor_list(input)) add_parameters(owner_of(*path), names);
        if (called != nullptr && called->empty()) *called = path->empty() ? "forward" : *path;
      }
    };
    look(node);
    for (const Block* block : node->blocks()) each_node(block, look);
    return names;
  }

  std::int64_t count_of(const std::set<std::string>& names) const {
    std::int64_t count = 0;
    for (const std::string& name : names) count += names_.at(name);
    return count;
  }

  // Values made before `position` that are used from there on.
  std::vector<const Value*> live_at(std::size_t position) const {
    std::vector<const Value*> live;
    const auto add = [&](const Value* value) {
      const Node* maker = value->node();
      const bool before = maker == graph_->param_node() || position_.at(maker) < position;
      if (before && std::find(live.begin(), live.end(), value) == live.end()) live.push_back(value);
    };
    for (std::size_t i = position; i < nodes_.size(); ++i) {
      std::vector<const Value*> carried, free;
      uses_of(nodes_[i], carried, free);
      for (const Value* value : carried) add(value);
    }
    for (const Value* output : graph_->outputs()) {
      if (output->node() != graph_->param_node() && is_free(output->node())) continue;
      add(output);
    }
    std::sort(live.begin(), live.end(), [&](const Value* a, const Value* b) { return order_of(a) < order_of(b); });
    return live;
  }
  std::pair<std::size_t, std::size_t> order_of(const Value* value) const {
    const bool given = value->node() == graph_->param_node();
    return {given ? 0 : position_.at(value->node()) + 1, value->offset()};
  }

  std::vector<std::size_t> find_starts() const {
    const std::int64_t weights = [&] {
      std::int64_t all = 0;
      for (const auto& [name, count] : names_) all += count;
      return all;
    }();
    std::vector<std::size_t> starts = {0};
    std::set<std::string> here;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      const std::set<std::string> used = parameters_of(nodes_[i]);
      const bool more = !std::includes(here.begin(), here.end(), used.begin(), used.end());
      const bool large = static_cast<double>(count_of(here)) >= kSmallShare * static_cast<double>(weights);
      if (i > 0 && more && count_of(used) > 0 && count_of(here) > 0 && large && only_tensors(live_at(i))) {
        starts.push_back(i);
        here.clear();
      }
      here.insert(used.begin(), used.end());
    }
    return starts;
  }
  static bool only_tensors(const std::vector<const Value*>& values) {
    return std::all_of(values.begin(), values.end(),
                       [](const Value* value) { return value->type()->isSubtypeOf(*c10::TensorType::get()); });
  }

  ScriptSegment make_segment(std::size_t begin, std::size_t end) const {
    ScriptSegment segment;
    segment.graph = std::make_shared<Graph>();
    std::unordered_map<const Value*, Value*> made;
    made[graph_->inputs()[0]] = segment.graph->addInput()->setType(graph_->inputs()[0]->type());
    std::vector<const Value*> entering = begin > 0 ? live_at(begin) : std::vector<const Value*>{};
    if (begin == 0) entering.assign(graph_->inputs().begin() + 1, graph_->inputs().end());
    for (const Value* value : entering) made[value] = segment.graph->addInput()->setType(value->type());
    segment.inputs = static_cast<std::int64_t>(entering.size());
    std::vector<std::string> called;
    for (std::size_t i = begin; i < end; ++i) {
      std::string name;
      segment.parameters.merge(parameters_of(nodes_[i], &name));
      if (!name.empty()) called.push_back(name);
      append(nodes_[i], *segment.graph, made);
    }
    const bool last = end == nodes_.size();
    std::vector<const Value*> leaving = last ? std::vector<const Value*>{} : live_at(end);
    if (last) leaving.assign(graph_->outputs().begin(), graph_->outputs().end());
    for (const Value* value : leaving) segment.graph->registerOutput(value_in(value, *segment.graph, made));
    segment.outputs = static_cast<std::int64_t>(leaving.size());
    segment.name = join(called, ", ");
    segment.written = find_written(*segment.graph);
    return segment;
  }

  // The value's counterpart in `to`; free values are made there.
  Value* value_in(const Value* value, Graph& to, std::unordered_map<const Value*, Value*>& made) const {
    if (const auto found = made.find(value); found != made.end()) return found->second;
    LOCKSTEP_ASSERT(value->node()->owningBlock() == graph_->block(), "a value from inside another block");
    append(const_cast<Node*>(value->node()), to, made);  // NOLINT: createClone() only reads it
    return made.at(value);
  }
  void append(Node* node, Graph& to, std::unordered_map<const Value*, Value*>& made) const {
    std::vector<const Value*> carried, free;
    uses_of(node, carried, free);
    for (const Value* value : free) value_in(value, to, made);
    Node* copy = to.createClone(node, [&](Value* value) { return value_in(value, to, made); });
    to.appendNode(copy);
    for (std::size_t i = 0; i < node->outputs().size(); ++i) made[node->outputs()[i]] = copy->outputs()[i];
  }

  // Inputs that something in the segment writes into, by the schemas' own words about aliases.
  static std::vector<char> find_written(Graph& given) {
    const std::shared_ptr<Graph> graph = given.copy();
    jit::Inline(*graph);
    std::map<const Value*, std::set<std::size_t>> same;  // inputs that a value may share memory with
    for (std::size_t i = 1; i < graph->inputs().size(); ++i) same[graph->inputs()[i]] = {i - 1};
    std::vector<char> written(graph->inputs().size() - 1, 0);
    const auto join_sets = [&](const Value* to, const Value* from) {
      if (const auto found = same.find(from); found != same.end()) {
        const std::set<std::size_t> inputs = found->second;
        same[to].insert(inputs.begin(), inputs.end());
      }
    };
    each_node(graph->block(), [&](const Node* node) {
      const c10::FunctionSchema* schema = node->maybeSchema();
      for (std::size_t i = 0; i < node->inputs().size(); ++i) {
        const c10::AliasInfo* alias =
            schema != nullptr && i < schema->arguments().size() ? schema->arguments()[i].alias_info() : nullptr;
        const Value* input = node->input(i);
        // Lists, tuples and control flow hand on what they are given.
        if (schema == nullptr || alias != nullptr) {
          for (const Value* output : node->outputs()) join_sets(output, input);
        }
        if (alias == nullptr || !alias->isWrite()) continue;
        if (const auto found = same.find(input); found != same.end()) {
          for (const std::size_t number : found->second) written[number] = 1;
        }
      }
      // Inner values come later in the walk, so blocks' results are taken to be anything that went in.
      for (const Block* block : node->blocks()) {
        for (const Node* inner : block->nodes()) {
          for (const Value* input : inner->inputs()) {
            for (const Value* output : node->outputs()) join_sets(output, input);
          }
        }
        for (const Value* result : block->outputs()) {
          for (const Value* output : node->outputs()) join_sets(output, result);
        }
      }
    });
    return written;
  }

  std::shared_ptr<Graph> graph_;
  jit::Module module_;
  Paths paths_;
  std::map<std::string, std::int64_t> names_;  // elements of parameters; buffers have none that count
  std::vector<Node*> nodes_;                   // of the top, free ones left out
  std::unordered_map<const Node*, std::size_t> position_;
};

}  // namespace

ScriptGraph cut_module(const torch::jit::Module& module, const std::string& name) {
  if (!module.find_method("forward")) throw bad_input(name + " has no forward", "save a module that has one");
  ScriptGraph result;
  const WholeFacts facts = look_at_all(module, name);
  result.draws = facts.draws;
  result.updates = facts.updates;
  const std::shared_ptr<Graph> graph = flat_graph(module);
  result.arguments = settle_arguments(*graph, module, name);
  result.segments = Cutter(graph, module).cut(facts.hides);
  return result;
}

}  // namespace lockstep::nn
