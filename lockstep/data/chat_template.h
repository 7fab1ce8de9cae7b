// Chat templates: how the turns of a conversation become one text, and which part of it is the assistant's.
//
// Hugging Face keeps a template as a Jinja program in the tokenizer's files. None is executed here: the five in common
// use are written out, and a program is only searched for the markers that identify it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/conversation.h"
#include "lockstep/data/tokenizer.h"
#include "lockstep/data/tokenizer_config.h"
#include "lockstep/spec/job.h"

namespace lockstep::data {

// A stretch of the text; `answer`: the assistant's words and the token that ends its turn, which the loss counts.
struct Segment {
  std::string text;
  bool answer = false;
  bool operator==(const Segment&) const = default;
};

// What begins and ends an example under the templates that have no markers of their own (alpaca, plain).
struct TextEnds {
  std::string begin;  // "": nothing
  std::string end;
};

// The text of a conversation, cut where answers begin and end.
//
//   chatml   <|im_start|>ROLE\nCONTENT<|im_end|>\n                             every turn
//   llama2   <s>[INST] <<SYS>>\nSYSTEM\n<</SYS>>\n\nUSER [/INST] ANSWER </s>   texts of turns trimmed, turns alternate
//   llama3   <|begin_of_text|>, then <|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|>; contents trimmed
//   alpaca   a sentence (or the system message), ### Instruction, ### Input, ### Response (Taori et al. 2023)
//   plain    contents one after the other, with a line break where neither side has white space
//
// Where the template knows no context, it follows the instruction after an empty line. `chat_template` is not kAuto.
// Throws UserError at `place` for turns that the template cannot write.
std::vector<Segment> render(spec::ChatTemplate chat_template, const Conversation& conversation, const TextEnds& ends,
                            const SourcePlace& place);

// The template that a Jinja program implements; kAuto when it is not a known one.
spec::ChatTemplate recognise_chat_template(std::string_view program);

// The template to use: `wanted`, or for kAuto what the tokenizer's files say. Throws bad_input naming
// data.chat_template when they say nothing or something unknown, and when the tokenizer lacks the template's markers
// (a tokenizer of bytes spells them out).
spec::ChatTemplate choose_chat_template(spec::ChatTemplate wanted, const Tokenizer& tokenizer,
                                        const TokenizerConfig& config);

// The tokens that begin and end an example, by the tokenizer's files, else by their usual names; of a tokenizer of
// bytes, byte 0 is the end. Throws bad_input when there is no end.
TextEnds text_ends(const Tokenizer& tokenizer, const TokenizerConfig& config);

}  // namespace lockstep::data
