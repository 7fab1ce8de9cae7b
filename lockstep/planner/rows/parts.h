// The parts question_of() is made of. Internal to rows*.cpp.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/planner/rows/rows.h"

namespace lockstep::planner {

// Choices made for a row, in order; joined by "; ".
class RowNotes {
 public:
  void add(std::string note) { notes_.push_back(std::move(note)); }
  // A choice that the price depends on: `sigma` of the logarithm of the step time. They add in quadrature.
  void guess(std::string note, double sigma) {
    add(std::move(note));
    variance_ += sigma * sigma;
  }
  std::string text() const;
  double sigma() const;

  bool cannot_run = false;  // a rule says that the run does not start, whatever the memory

 private:
  std::vector<std::string> notes_;
  double variance_ = 0;
};

// Thrown inside question_of() and nowhere else.
struct CannotPrice {
  std::string why;
  bool layout_rule = false;
};

bool contains(std::string_view text, std::string_view part);  // letter case ignored
// The first whole number that follows `before` in `text` ("FSDP=" in "FSDP=128 x DP=4").
std::optional<std::int64_t> number_after(std::string_view text, std::string_view before);

spec::Model model_of(const PublishedRow& row, const std::string& stack, RowNotes& notes);

struct RowHardware {
  spec::Cluster cluster;
  std::string device_kind;
};
RowHardware hardware_of(const PublishedRow& row, RowNotes& notes);

// Facts of the stack as this row ran it: some rows say more than the stack's default.
cost::StackFacts facts_of(const PublishedRow& row, const std::string& stack);
// Adapters of a fine-tuning row: their rank and the layers they are attached to.
spec::Lora adapters_of(const PublishedRow& row, RowNotes& notes);

plan::Layout layout_of(const PublishedRow& row, const spec::Model& model, const spec::Cluster& cluster,
                       const cost::StackFacts& facts, RowNotes& notes);
plan::BatchPlan batch_of(const PublishedRow& row, const plan::Layout& layout, const std::string& stack,
                         RowNotes& notes);

}  // namespace lockstep::planner
