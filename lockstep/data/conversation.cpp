#include "lockstep/data/conversation.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/text.h"

namespace lockstep::data {
namespace {

using nlohmann::json;
using Role = Turn::Role;

constexpr const char* kShapes =
    "write {\"messages\": [...]}, {\"instruction\", \"input\", \"output\"}, {\"prompt\", \"completion\"} or "
    "{\"instruction\", \"instances\": [...]}";

// One record, or a part of one, with its place for errors; `path` leads to the part ("messages[2].").
struct Reader {
  const json& object;
  const SourcePlace& place;
  std::string path;

  UserError error(const std::string& problem, const std::string& fix = "correct the record") const {
    return bad_input(problem, fix, place);
  }

  bool has(const char* key) const { return object.contains(key); }

  std::string text(const char* key) const {
    const auto found = object.find(key);
    if (found == object.end()) throw error(fmt::format("the record has no `{}{}`", path, key));
    if (!found->is_string()) {
      throw error(fmt::format("`{}{}` is a JSON {}, a text was expected", path, key, found->type_name()));
    }
    return found->get<std::string>();
  }

  std::string optional_text(const char* key) const {
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? std::string() : text(key);
  }

  // The objects of the list `key`.
  std::vector<Reader> list(const char* key) const {
    const json& items = object.at(key);
    if (!items.is_array() || items.empty()) throw error(fmt::format("`{}` is not a list with entries", key));
    std::vector<Reader> readers;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (!items[i].is_object()) {
        throw error(fmt::format("`{}[{}]` is a JSON {}, an object was expected", key, i, items[i].type_name()));
      }
      readers.push_back({items[i], place, fmt::format("{}[{}].", key, i)});
    }
    return readers;
  }
};

Role role_of(const Reader& message) {
  const std::string name = message.text("role");
  for (const Role role : {Role::kSystem, Role::kUser, Role::kAssistant}) {
    if (name == to_string(role)) return role;
  }
  throw message.error(fmt::format("`{}role` is `{}`", message.path, printable(name)),
                      "the roles are system, user and assistant");
}

Conversation read_messages(const Reader& record) {
  Conversation conversation;
  for (const Reader& message : record.list("messages")) {
    conversation.push_back({role_of(message), message.text("content"), {}});
    if (conversation.back().role == Role::kSystem && conversation.size() > 1) {
      throw record.error(fmt::format("`{}role` is `system` after the first message", message.path),
                         "a system message comes first");
    }
  }
  const bool answered = std::any_of(conversation.begin(), conversation.end(),
                                    [](const Turn& turn) { return turn.role == Role::kAssistant; });
  if (!answered) throw record.error("no message of the assistant: there is nothing to learn", "remove the record");
  return conversation;
}

Conversation one_exchange(std::string question, std::string context, std::string answer) {
  return {{Role::kUser, std::move(question), std::move(context)}, {Role::kAssistant, std::move(answer), {}}};
}

std::vector<Conversation> read_instances(const Reader& record) {
  const std::string instruction = record.text("instruction");
  std::vector<Conversation> conversations;
  for (const Reader& instance : record.list("instances")) {
    conversations.push_back(one_exchange(instruction, instance.optional_text("input"), instance.text("output")));
  }
  return conversations;
}

}  // namespace

std::vector<Conversation> read_conversations(const json& record, const SourcePlace& place) {
  const Reader reader{record, place, {}};
  if (reader.has("messages")) return {read_messages(reader)};
  if (reader.has("instances")) return read_instances(reader);
  if (reader.has("instruction")) {
    return {one_exchange(reader.text("instruction"), reader.optional_text("input"), reader.text("output"))};
  }
  if (reader.has("prompt")) {
    const char* answer = reader.has("response") && !reader.has("completion") ? "response" : "completion";
    return {one_exchange(reader.text("prompt"), {}, reader.text(answer))};
  }
  throw reader.error("the record has none of the known shapes", kShapes);
}

}  // namespace lockstep::data
