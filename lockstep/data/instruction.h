// Instruction data: conversations as language-model samples whose loss counts the answers only.
//
// An example is the tokens of one rendered conversation (data/chat_template.h). A sample is a sequence of up to
// sequence_length + 1 tokens, of which input and target are the first and the last sequence_length. With packing it
// holds several whole examples one after the other (data/packing.h): positions run on and attention may look back into
// the examples before, as in pre-training, unless they are to stay apart (Samples::documents); without, it holds one.
// Longer examples lose their end; those that lose every answer by it are dropped. The rest of a sample is padding.
// Targets are kIgnoredTarget everywhere but at the tokens of answers, end of turn included, and an example's first
// token is not a target of the example before it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/data/chat_template.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/tokenizer.h"

namespace lockstep::data {

// All examples one after the other. Immutable once read; shared by the data sets over its parts.
class InstructionExamples {
 public:
  struct Example {
    std::span<const TokenId> ids;
    std::span<const std::uint8_t> counted;  // 1 where the token belongs to an answer
  };

  std::int64_t size() const { return static_cast<std::int64_t>(ends_.size()); }
  Example at(std::int64_t index) const;
  void add(const std::vector<Segment>& segments, const Tokenizer& tokenizer);

 private:
  std::vector<TokenId> ids_;
  std::vector<std::uint8_t> counted_;
  std::vector<std::size_t> ends_;
};

// How to read and to lay out the examples.
struct InstructionOptions {
  spec::ChatTemplate chat_template = spec::ChatTemplate::kPlain;  // not kAuto
  TextEnds ends;
  TokenId padding = 0;
  std::int64_t sequence_length = 0;
  spec::Packing packing = spec::Packing::kTogether;
};

// Reads JSON lines (records: data/conversation.h) and tokenises them now: about 5 bytes per token stay in memory.
// Throws UserError with file:line.
std::shared_ptr<const InstructionExamples> read_instructions(const std::vector<std::filesystem::path>& files,
                                                             const Tokenizer& tokenizer,
                                                             const InstructionOptions& options);

// The samples of examples [begin, end). Throws bad_input naming `what` when no answer fits into sequence_length.
std::shared_ptr<const Dataset> instruction_samples(std::shared_ptr<const InstructionExamples> examples,
                                                   std::int64_t begin, std::int64_t end,
                                                   const InstructionOptions& options, const std::string& what);

}  // namespace lockstep::data
