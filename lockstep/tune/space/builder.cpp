// Makes a Space of what a file says: resolves expressions, adds NCCL's rules, finds and lists the components.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/tune/job/nccl_rules.h"
#include "lockstep/tune/space/impl.h"

namespace lockstep::tune {
namespace {

constexpr std::uint64_t kProofNodes = 10'000'000;

std::vector<ExpressionSymbol> symbols_of(const std::vector<Knob>& knobs, const std::vector<Domain>& domains) {
  std::vector<ExpressionSymbol> symbols;
  for (std::size_t i = 0; i < knobs.size(); ++i) {
    ExpressionSymbol symbol{knobs[i].name, domains[i].type(), {}};
    for (const Value& choice : knobs[i].choices) {
      if (const auto* text = std::get_if<std::string>(&choice)) symbol.texts.push_back(*text);
    }
    symbols.push_back(std::move(symbol));
  }
  return symbols;
}

std::vector<WrittenExpression> nccl_expressions(const SpaceText& text) {
  std::vector<Value> algos;
  std::vector<Value> protos;
  SourcePlace place;
  for (std::size_t i = 0; i < text.knobs.size(); ++i) {
    if (text.knobs[i].name == "NCCL_ALGO") algos = text.knobs[i].choices;
    if (text.knobs[i].name == "NCCL_PROTO") protos = text.knobs[i].choices;
    if (text.knobs[i].name == "NCCL_ALGO" || text.knobs[i].name == "NCCL_PROTO") place = text.knob_places[i];
  }
  std::vector<WrittenExpression> written;
  for (std::string& rule : nccl_constraints(algos, protos, text.facts)) written.push_back({std::move(rule), place});
  return written;
}

enum class Existence { kYes, kNo, kNotFound };

// Is there a configuration that satisfies the first `count` constraints of the component?
Existence exists(const SpaceParts& parts, const Component& component, std::size_t count, SpaceBudget& budget) {
  Random random(0);
  BoxSearch search(parts, component);
  search.use_constraints(count);
  search.shuffle(random);
  bool found = false;
  const bool complete =
      search.run(search.whole_box(), std::min(budget.nodes, kProofNodes), [&](std::span<const double>) {
        found = true;
        return false;
      });
  budget.nodes -= std::min(budget.nodes, search.spent());
  return found ? Existence::kYes : complete ? Existence::kNo : Existence::kNotFound;
}

// Throws at the first constraint that leaves nothing.
[[noreturn]] void refuse(const SpaceParts& parts, const Component& component,
                         const std::vector<WrittenExpression>& written, SpaceBudget& budget) {
  std::size_t count = 0;
  Existence existence = Existence::kYes;
  while (existence == Existence::kYes && count < component.constraints.size()) {
    existence = exists(parts, component, ++count, budget);
  }
  const WrittenExpression& guilty = written[component.constraints[count - 1]];
  throw bad_input(
      fmt::format("no configuration {} `{}`{}", existence == Existence::kNo ? "satisfies" : "was found that satisfies",
                  printable(guilty.text, 120), count == 1 ? "" : " together with the constraints before it"),
      "widen the knobs it names or loosen it", guilty.place);
}

void check_names(const SpaceText& text, std::map<std::string, std::size_t>& index) {
  for (std::size_t i = 0; i < text.knobs.size(); ++i) index[text.knobs[i].name] = i;
}

// Constraints without knobs are true or the file is wrong.
void check_constant(const Expression& expression, const WrittenExpression& written) {
  if (!expression.knobs().empty() || expression.truth({}) == Truth::kTrue) return;
  throw bad_input(fmt::format("`{}` is never true", printable(written.text, 120)), "it names no knob; remove it",
                  written.place);
}

}  // namespace

std::shared_ptr<const Space::Impl> Space::Impl::build(const SpaceText& text) {
  auto space = std::make_shared<Impl>();
  space->name = text.name;
  space->description = text.description;
  space->knobs = text.knobs;
  space->facts = text.facts;
  space->nccl_rules = text.nccl_rules;
  space->written_constraints = text.constraints.size();
  check_names(text, space->index);

  Texts texts;
  SpaceParts& parts = space->parts;
  for (const Knob& knob : space->knobs) parts.domains.emplace_back(knob, texts);
  const std::vector<ExpressionSymbol> symbols = symbols_of(space->knobs, parts.domains);
  for (std::size_t i = 0; i < space->knobs.size(); ++i) {
    auto& when = parts.whens.emplace_back();
    if (!space->knobs[i].when.empty())
      when = Expression::parse(space->knobs[i].when, symbols, texts, text.when_places[i]);
  }
  std::vector<WrittenExpression> written = text.constraints;
  if (text.nccl_rules) {
    for (WrittenExpression& rule : nccl_expressions(text)) written.push_back(std::move(rule));
  }
  for (const WrittenExpression& entry : written) {
    parts.constraints.push_back(Expression::parse(entry.text, symbols, texts, entry.place));
    check_constant(parts.constraints.back(), entry);
    space->constraints.push_back(entry.text);
  }

  const ActivityOrder order = order_by_activity(parts.whens);
  if (order.cycle) {
    const std::size_t knob = *order.cycle;
    throw bad_input(fmt::format("whether `{}` is active depends on itself", printable(space->knobs[knob].name)),
                    "break the circle of `when`", text.when_places[knob]);
  }
  space->order = order.knobs;
  space->components = find_components(parts, space->order);
  SpaceBudget budget;
  for (Component& component : space->components) {
    list_combinations(parts, component, budget);
    if (!component.tied) continue;
    const auto all = component.constraints.size();
    const bool possible =
        all == 0 || (component.listed ? component.count > 0 : exists(parts, component, all, budget) == Existence::kYes);
    if (!possible) refuse(parts, component, written, budget);
    component.rejection = !component.listed && space->rejection_works(component);
  }
  space->find_default_config();
  return space;
}

}  // namespace lockstep::tune
