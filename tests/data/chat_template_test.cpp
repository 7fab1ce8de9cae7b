// Chat templates to the letter, and the record shapes that conversations come from.
#include "lockstep/data/chat_template.h"

#include <gtest/gtest.h>

#include "testing.h"

namespace lockstep::data {
namespace {

using namespace lockstep::data::testing;
using spec::ChatTemplate;
using Role = Turn::Role;

const SourcePlace kPlace{"d.jsonl", 3};
const TextEnds kEnds{"<s>", "</s>"};

std::vector<Conversation> conversations(const char* json) {
  return read_conversations(nlohmann::json::parse(json), kPlace);
}

// Answers between ⟦ and ⟧, everything else as it is.
std::string marked(const std::vector<Segment>& segments) {
  std::string text;
  for (const Segment& segment : segments) text += segment.answer ? "⟦" + segment.text + "⟧" : segment.text;
  return text;
}

std::string rendered(ChatTemplate chat_template, const char* json) {
  return marked(render(chat_template, conversations(json).at(0), kEnds, kPlace));
}

const char* const kChat = R"({"messages": [{"role": "system", "content": "Be brief. "},
  {"role": "user", "content": " Hi"}, {"role": "assistant", "content": "Hello\n"},
  {"role": "user", "content": "Bye"}, {"role": "assistant", "content": "See you"}]})";
const char* const kTask = R"({"instruction": "Add.", "input": "2 and 3", "output": "5"})";
const char* const kBareTask = R"({"instruction": "Name a colour.", "output": "Red"})";

TEST(ChatTemplates, of_chatml_are_exact) {
  EXPECT_EQ(rendered(ChatTemplate::kChatml, kChat),
            "<|im_start|>system\nBe brief. <|im_end|>\n<|im_start|>user\n Hi<|im_end|>\n<|im_start|>assistant\n"
            "⟦Hello\n<|im_end|>⟧\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n⟦See you<|im_end|>⟧\n");
  EXPECT_EQ(rendered(ChatTemplate::kChatml, kTask),
            "<|im_start|>user\nAdd.\n\n2 and 3<|im_end|>\n<|im_start|>assistant\n⟦5<|im_end|>⟧\n");
}

TEST(ChatTemplates, of_llama2_are_exact) {
  EXPECT_EQ(rendered(ChatTemplate::kLlama2, kChat),
            "<s>[INST] <<SYS>>\nBe brief. \n<</SYS>>\n\n Hi [/INST]⟦ Hello </s>⟧<s>[INST] Bye [/INST]⟦ See you </s>⟧");
  EXPECT_EQ(rendered(ChatTemplate::kLlama2, kTask), "<s>[INST] Add.\n\n2 and 3 [/INST]⟦ 5 </s>⟧");
}

TEST(ChatTemplates, of_llama2_need_turns_that_alternate) {
  const auto error = [](const char* json) { return [json] { rendered(ChatTemplate::kLlama2, json); }; };
  expect_user_error(ExitCode::kUsage, {"d.jsonl:3", "a turn of the assistant where llama2 expects one of the user"},
                    error(R"({"messages": [{"role": "assistant", "content": "Hi"}]})"));
  expect_user_error(ExitCode::kUsage, {"data.chat_template"},
                    error(R"({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"},
                              {"role": "assistant", "content": "c"}]})"));
}

TEST(ChatTemplates, of_llama3_are_exact) {
  EXPECT_EQ(rendered(ChatTemplate::kLlama3, kChat),
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n⟦Hello<|eot_id|>⟧"
            "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n⟦See you<|eot_id|>⟧");
}

TEST(ChatTemplates, of_alpaca_are_exact) {
  EXPECT_EQ(rendered(ChatTemplate::kAlpaca, kTask),
            "<s>Below is an instruction that describes a task, paired with an input that provides further context. "
            "Write a response that appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### Input:\n"
            "2 and 3\n\n### Response:⟦5</s>⟧");
  EXPECT_EQ(rendered(ChatTemplate::kAlpaca, kBareTask),
            "<s>Below is an instruction that describes a task. Write a response that appropriately completes the "
            "request.\n\n### Instruction:\nName a colour.\n\n### Response:⟦Red</s>⟧");
  EXPECT_EQ(rendered(ChatTemplate::kAlpaca, kChat),
            "<s>Be brief. \n\n### Instruction:\n Hi\n\n### Response:⟦Hello\n</s>⟧\n\n### Instruction:\nBye\n\n"
            "### Response:⟦See you</s>⟧");
}

TEST(ChatTemplates, of_plain_text_break_lines_only_where_words_would_touch) {
  EXPECT_EQ(rendered(ChatTemplate::kPlain, kChat), "<s>Be brief.  Hi\n⟦Hello\n</s>⟧Bye\n⟦See you</s>⟧");
  EXPECT_EQ(rendered(ChatTemplate::kPlain, R"({"prompt": "2+2=", "completion": " 4"})"), "<s>2+2=⟦ 4</s>⟧");
  EXPECT_EQ(rendered(ChatTemplate::kPlain, R"({"prompt": "Q: why?\nA:", "response": "so"})"),
            "<s>Q: why?\nA:\n⟦so</s>⟧");
}

TEST(ChatTemplates, are_recognised_by_their_markers) {
  EXPECT_EQ(recognise_chat_template("{% for m in messages %}{{'<|im_start|>' + m.role}}...<|im_end|>"),
            ChatTemplate::kChatml);
  EXPECT_EQ(recognise_chat_template("'<|start_header_id|>' + role ... '<|eot_id|>'"), ChatTemplate::kLlama3);
  EXPECT_EQ(recognise_chat_template("'<<SYS>>\\n' ... bos_token + '[INST] '"), ChatTemplate::kLlama2);
  EXPECT_EQ(recognise_chat_template("'### Instruction:\\n' ... '### Response:'"), ChatTemplate::kAlpaca);
  EXPECT_EQ(recognise_chat_template("'### Instruction: ' ... '### Response: '"), ChatTemplate::kAuto);
  EXPECT_EQ(recognise_chat_template("bos_token + '[INST] ' + content"), ChatTemplate::kAuto);  // Mistral's
  EXPECT_EQ(recognise_chat_template(""), ChatTemplate::kAuto);
}

TEST(Conversations, come_from_all_four_shapes) {
  EXPECT_EQ(conversations(kChat).at(0).size(), 5u);
  EXPECT_EQ(conversations(kChat)[0][2].role, Role::kAssistant);
  EXPECT_EQ(conversations(kTask).at(0).at(0).context, "2 and 3");
  EXPECT_EQ(conversations(R"({"instruction": "a", "input": null, "output": "b"})")[0][0].context, "");
  EXPECT_EQ(conversations(R"({"prompt": "a", "completion": "b", "id": 7})")[0][1].content, "b");
  const auto seeds = conversations(R"({"id": "seed_task_1", "instruction": "Double it.", "is_classification": false,
    "instances": [{"input": "1", "output": "2"}, {"input": "", "output": "nothing"}]})");
  ASSERT_EQ(seeds.size(), 2u);
  EXPECT_EQ(seeds[0][0].content, "Double it.");
  EXPECT_EQ(seeds[0][0].context, "1");
  EXPECT_EQ(seeds[1][1].content, "nothing");
}

TEST(Conversations, that_are_wrong_are_refused_with_their_line) {
  const std::pair<const char*, const char*> rows[] = {
      {R"({})", "none of the known shapes"},
      {R"({"conversations": []})", "none of the known shapes"},
      {R"({"messages": []})", "`messages` is not a list with entries"},
      {R"({"messages": 7})", "`messages` is not a list with entries"},
      {R"({"messages": ["hi"]})", "`messages[0]` is a JSON string"},
      {R"({"messages": [{"content": "hi"}]})", "no `messages[0].role`"},
      {R"({"messages": [{"role": "tool", "content": "hi"}]})", "`messages[0].role` is `tool`"},
      {R"({"messages": [{"role": "user", "content": null}]})", "`messages[0].content` is a JSON null"},
      {R"({"messages": [{"role": "user", "content": "hi"}]})", "nothing to learn"},
      {R"({"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]})", "after the first"},
      {R"({"instruction": "a"})", "no `output`"},
      {R"({"instruction": ["a"], "output": "b"})", "`instruction` is a JSON array"},
      {R"({"prompt": "a"})", "no `completion`"},
      {R"({"prompt": "a", "completion": 3})", "`completion` is a JSON number"},
      {R"({"instruction": "a", "instances": [{"input": "b"}]})", "no `instances[0].output`"}};
  for (const auto& [json, message] : rows) {
    expect_user_error(ExitCode::kUsage, {"d.jsonl:3", message}, [json = json] { conversations(json); });
  }
}

}  // namespace
}  // namespace lockstep::data
