#include "lockstep/data/chat_template.h"

#include <fmt/format.h>

#include "lockstep/base/text.h"

namespace lockstep::data {
namespace {

using spec::ChatTemplate;
using Role = Turn::Role;

constexpr const char* kChoices = "chatml, llama2, llama3, alpaca or plain";
constexpr std::string_view kEndByte("\0", 1);

// Segments under construction: neighbours of the same kind become one.
class Text {
 public:
  void prompt(std::string_view text) { add(text, false); }
  void answer(std::string_view text) { add(text, true); }
  bool empty() const { return segments_.empty(); }
  char last() const { return segments_.back().text.back(); }
  std::vector<Segment> take() { return std::move(segments_); }

 private:
  void add(std::string_view text, bool answer) {
    if (text.empty()) return;
    if (segments_.empty() || segments_.back().answer != answer) segments_.push_back({{}, answer});
    segments_.back().text += text;
  }

  std::vector<Segment> segments_;
};

std::string with_context(const Turn& turn) {
  return turn.context.empty() ? turn.content : turn.content + "\n\n" + turn.context;
}

std::vector<Segment> render_chatml(const Conversation& conversation) {
  Text text;
  for (const Turn& turn : conversation) {
    text.prompt(fmt::format("<|im_start|>{}\n", to_string(turn.role)));
    const std::string body = with_context(turn) + "<|im_end|>";
    turn.role == Role::kAssistant ? text.answer(body) : text.prompt(body);
    text.prompt("\n");
  }
  return text.take();
}

std::vector<Segment> render_llama3(const Conversation& conversation) {
  Text text;
  text.prompt("<|begin_of_text|>");
  for (const Turn& turn : conversation) {
    text.prompt(fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n", to_string(turn.role)));
    const std::string body = std::string(trim(with_context(turn))) + "<|eot_id|>";
    turn.role == Role::kAssistant ? text.answer(body) : text.prompt(body);
  }
  return text.take();
}

std::vector<Segment> render_llama2(const Conversation& conversation, const SourcePlace& place) {
  Text text;
  std::string system;
  Role wanted = Role::kUser;
  for (const Turn& turn : conversation) {
    if (turn.role == Role::kSystem) {
      system = "<<SYS>>\n" + turn.content + "\n<</SYS>>\n\n";
      continue;
    }
    if (turn.role != wanted) {
      throw bad_input(
          fmt::format("a turn of the {} where llama2 expects one of the {}", to_string(turn.role), to_string(wanted)),
          "let user and assistant take turns, or choose another data.chat_template", place);
    }
    if (turn.role == Role::kUser) {
      const std::string question = system + with_context(turn);
      text.prompt(fmt::format("<s>[INST] {} [/INST]", trim(question)));
      system.clear();
      wanted = Role::kAssistant;
    } else {
      text.answer(fmt::format(" {} </s>", trim(turn.content)));
      wanted = Role::kUser;
    }
  }
  return text.take();
}

// The two opening sentences of Stanford Alpaca's format (Taori et al. 2023), which models trained on it expect.
const char* alpaca_opening(bool with_input) {
  return with_input ? "Below is an instruction that describes a task, paired with an input that provides further "
                      "context. Write a response that appropriately completes the request."
                    : "Below is an instruction that describes a task. Write a response that appropriately completes "
                      "the request.";
}

std::vector<Segment> render_alpaca(const Conversation& conversation, const TextEnds& ends) {
  Text text;
  text.prompt(ends.begin);
  bool opened = false;
  for (const Turn& turn : conversation) {
    if (turn.role == Role::kSystem) {
      text.prompt(turn.content);
      opened = true;
    } else if (turn.role == Role::kUser) {
      if (!opened) text.prompt(alpaca_opening(!turn.context.empty()));
      opened = true;
      text.prompt("\n\n### Instruction:\n" + turn.content);
      if (!turn.context.empty()) text.prompt("\n\n### Input:\n" + turn.context);
      text.prompt("\n\n### Response:");
    } else {
      text.answer(turn.content + ends.end);
      opened = true;
    }
  }
  return text.take();
}

bool is_space(char c) { return trim(std::string_view(&c, 1)).empty(); }

std::vector<Segment> render_plain(const Conversation& conversation, const TextEnds& ends) {
  Text text;
  text.prompt(ends.begin);
  bool joins = false;  // the turn before ended in words, not in the end of an answer
  for (const Turn& turn : conversation) {
    const std::string body = with_context(turn);
    if (joins && !text.empty() && !is_space(text.last()) && (body.empty() || !is_space(body.front())))
      text.prompt("\n");
    if (turn.role == Role::kAssistant) {
      text.answer(body + ends.end);
    } else {
      text.prompt(body);
    }
    joins = turn.role != Role::kAssistant;
  }
  return text.take();
}

// The tokens without which a template makes no sense.
std::vector<std::string> markers_of(ChatTemplate chat_template) {
  switch (chat_template) {
    case ChatTemplate::kChatml:
      return {"<|im_start|>", "<|im_end|>"};
    case ChatTemplate::kLlama2:
      return {"<s>", "</s>"};
    case ChatTemplate::kLlama3:
      return {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
    default:
      return {};
  }
}

bool is_one_token(const Tokenizer& tokenizer, const std::string& text) { return tokenizer.encode(text).size() == 1; }

}  // namespace

std::vector<Segment> render(ChatTemplate chat_template, const Conversation& conversation, const TextEnds& ends,
                            const SourcePlace& place) {
  switch (chat_template) {
    case ChatTemplate::kChatml:
      return render_chatml(conversation);
    case ChatTemplate::kLlama2:
      return render_llama2(conversation, place);
    case ChatTemplate::kLlama3:
      return render_llama3(conversation);
    case ChatTemplate::kAlpaca:
      return render_alpaca(conversation, ends);
    case ChatTemplate::kPlain:
      return render_plain(conversation, ends);
    case ChatTemplate::kAuto:
      break;
  }
  throw InternalError("a chat template must be chosen before rendering");
}

ChatTemplate recognise_chat_template(std::string_view program) {
  const auto has = [&](std::string_view marker) { return program.find(marker) != std::string_view::npos; };
  if (has("<|im_start|>") && has("<|im_end|>")) return ChatTemplate::kChatml;
  if (has("<|start_header_id|>") && has("<|eot_id|>")) return ChatTemplate::kLlama3;
  if (has("[INST]") && has("<<SYS>>")) return ChatTemplate::kLlama2;  // Mistral's has no <<SYS>> and other spaces
  // With a line break, in Jinja's spelling or as it is; others put the instruction on the same line.
  const bool alpaca = has("### Instruction:\\n") || has("### Instruction:\n");
  if (alpaca && has("### Response:")) return ChatTemplate::kAlpaca;
  return ChatTemplate::kAuto;
}

ChatTemplate choose_chat_template(ChatTemplate wanted, const Tokenizer& tokenizer, const TokenizerConfig& config) {
  if (wanted == ChatTemplate::kAuto) wanted = recognise_chat_template(config.chat_template);
  if (wanted == ChatTemplate::kAuto) {
    throw bad_input(config.chat_template.empty() ? "the tokenizer's files name no chat template"
                                                 : "the chat template in the tokenizer's files is not a known one",
                    fmt::format("set data.chat_template to {}", kChoices));
  }
  if (config.bytes) return wanted;
  for (const std::string& marker : markers_of(wanted)) {
    if (is_one_token(tokenizer, marker)) continue;
    throw bad_input(
        fmt::format("the tokenizer has no token {}, which data.chat_template {} needs", marker, to_string(wanted)),
        "choose alpaca or plain, or the tokenizer of a model trained with that template");
  }
  return wanted;
}

TextEnds text_ends(const Tokenizer& tokenizer, const TokenizerConfig& config) {
  if (config.bytes) return {{}, std::string(kEndByte)};
  TextEnds ends{config.begin_of_text, config.end_of_text};
  if (ends.end.empty()) ends.end = end_of_text_token(tokenizer).value_or("");
  if (ends.end.empty() || !is_one_token(tokenizer, ends.end)) {
    throw bad_input(ends.end.empty() ? "the tokenizer has no token that ends a text"
                                     : fmt::format("the tokenizer does not know its end of text {} as one token",
                                                   printable(ends.end)),
                    "name it as `eos_token` in tokenizer_config.json, and in the added tokens of tokenizer.json");
  }
  if (!ends.begin.empty() && !is_one_token(tokenizer, ends.begin)) ends.begin.clear();
  return ends;
}

}  // namespace lockstep::data
