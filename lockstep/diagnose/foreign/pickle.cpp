#include "lockstep/diagnose/foreign/pickle.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/diagnose/foreign/source.h"

namespace lockstep::diagnose {
namespace {

constexpr int kDeepest = 100;
constexpr std::size_t kMostValues = 5'000'000;
constexpr std::size_t kMostTextBytes = std::size_t{512} << 20;  // of all values, each as often as it is referred to
constexpr std::size_t kMostOnStack = 10'000'000;

// Values are shared: the memo may put a list on the stack again that is filled only later.
struct Node {
  enum class Kind { kScalar, kList, kDict };
  Kind kind = Kind::kScalar;
  nlohmann::json scalar;
  std::vector<std::shared_ptr<Node>> items;  // of a dictionary: key, value, key, value
};
using NodePtr = std::shared_ptr<Node>;

NodePtr scalar(nlohmann::json value) {
  auto node = std::make_shared<Node>();
  node->scalar = std::move(value);
  return node;
}

NodePtr container(Node::Kind kind) {
  auto node = std::make_shared<Node>();
  node->kind = kind;
  return node;
}

// Why an instruction is refused; nullptr: it is not one of those.
const char* refused(unsigned char code) {
  switch (code) {
    case 'c':
    case 0x93:
    case 'i':
      return "it imports a name";
    case 'R':
    case 'o':
    case 0x81:
    case 0x92:
      return "it calls a function";
    case 'b':
      return "it sets the state of an object";
    case 0x82:
    case 0x83:
    case 0x84:
      return "it uses an extension";
    case 'P':
    case 'Q':
      return "it refers to another file";
    case 0x97:
    case 0x98:
      return "it uses a buffer that is not in the file";
    default:
      return nullptr;
  }
}

class Unpickler {
 public:
  Unpickler(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {}
  // Values may refer to themselves; a cycle would never be freed.
  ~Unpickler() {
    for (const auto& node : containers_) node->items.clear();
  }
  Unpickler(const Unpickler&) = delete;
  Unpickler& operator=(const Unpickler&) = delete;

  nlohmann::json read() {
    while (true) {
      start_ = at_;
      const auto code = static_cast<unsigned char>(take(1)[0]);
      if (code == '.') break;
      if (const char* const why = refused(code)) {
        throw damaged(name_, start_, fmt::format("refused: {}", why),
                      "only plain data is read; it could run any program");
      }
      if (!scalar_code(code) && !container_code(code) && !stack_code(code)) {
        fail(fmt::format("instruction 0x{:02x} is not known", code));
      }
      if (stack_.size() > kMostOnStack) fail("too many values");
    }
    return unfold(*pop(), 0);
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const { throw damaged(name_, start_, "not a pickle: " + problem); }

  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - at_)
      throw damaged(name_, bytes_.size(), "the pickle ends in the middle", "copy the file again");
    const std::string_view piece = bytes_.substr(at_, count);
    at_ += count;
    return piece;
  }
  std::string_view line() {
    const std::size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) throw damaged(name_, bytes_.size(), "the pickle ends in the middle");
    std::string_view text = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    if (!text.empty() && text.back() == '\r') text.remove_suffix(1);
    return text;
  }
  std::uint64_t unsigned_number(int size) {
    const std::string_view piece = take(static_cast<std::uint64_t>(size));
    std::uint64_t value = 0;
    for (int i = size - 1; i >= 0; --i)
      value = value << 8 | static_cast<unsigned char>(piece[static_cast<std::size_t>(i)]);
    return value;
  }

  void push(NodePtr node) { stack_.push_back(std::move(node)); }
  NodePtr pop() {
    if (stack_.empty() || (!marks_.empty() && stack_.size() <= marks_.back())) fail("a value is missing");
    NodePtr node = std::move(stack_.back());
    stack_.pop_back();
    return node;
  }
  std::vector<NodePtr> pop_to_mark() {
    if (marks_.empty()) fail("a mark is missing");
    const auto from = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<NodePtr> items(std::make_move_iterator(from), std::make_move_iterator(stack_.end()));
    stack_.erase(from, stack_.end());
    marks_.pop_back();
    return items;
  }
  Node& top(Node::Kind kind) {
    if (stack_.empty() || stack_.back()->kind != kind) fail("a list or a dictionary was expected");
    return *stack_.back();
  }
  void push_container(Node::Kind kind, std::vector<NodePtr> items = {}) {
    if (kind == Node::Kind::kDict && items.size() % 2 != 0) fail("a key without a value");
    NodePtr node = container(kind);
    node->items = std::move(items);
    containers_.push_back(node);
    push(std::move(node));
  }
  void extend(Node& node, std::vector<NodePtr> items) {
    if (node.kind == Node::Kind::kDict && items.size() % 2 != 0) fail("a key without a value");
    node.items.insert(node.items.end(), std::make_move_iterator(items.begin()), std::make_move_iterator(items.end()));
  }

  void push_line_integer() {
    const std::string_view text = line();
    if (text == "00" || text == "01") return push(scalar(text == "01"));
    push_decimal(text);
  }
  void push_decimal(std::string_view text) {
    if (!text.empty() && text.back() == 'L') text.remove_suffix(1);
    std::int64_t value = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || stop != text.data() + text.size()) fail("a number was expected");
    push(scalar(value));
  }
  void push_long(std::uint64_t size) {
    const std::string_view piece = take(size);
    if (size > 8) return push(scalar(std::string("a number of ") + std::to_string(size) + " bytes"));
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < piece.size(); ++i)
      value |= std::uint64_t{static_cast<unsigned char>(piece[i])} << (8 * i);
    if (size > 0 && size < 8 && (piece.back() & 0x80) != 0) value |= ~std::uint64_t{0} << (8 * size);
    push(scalar(static_cast<std::int64_t>(value)));
  }
  void push_float() {
    const std::string_view piece = take(8);
    std::uint64_t bits = 0;
    for (const char byte : piece) bits = bits << 8 | static_cast<unsigned char>(byte);
    double value = 0.0;
    std::memcpy(&value, &bits, sizeof(value));
    push(scalar(value));
  }
  void push_line_float() {
    const std::string_view text = line();
    double value = 0.0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || stop != text.data() + text.size()) fail("a number was expected");
    push(scalar(value));
  }
  void push_text(std::string_view text) { push(scalar(std::string(text))); }
  void push_quoted(std::string_view text) {
    if (text.size() < 2 || text.front() != text.back()) fail("a quoted text was expected");
    push_text(text.substr(1, text.size() - 2));
  }

  bool scalar_code(unsigned char code) {
    switch (code) {
      case 'N':
        push(scalar(nullptr));
        return true;
      case 0x88:
      case 0x89:
        push(scalar(code == 0x88));
        return true;
      case 'I':
        push_line_integer();
        return true;
      case 'J':
        push(scalar(static_cast<std::int32_t>(unsigned_number(4))));
        return true;
      case 'K':
        push(scalar(unsigned_number(1)));
        return true;
      case 'M':
        push(scalar(unsigned_number(2)));
        return true;
      case 'L':
        push_decimal(line());
        return true;
      case 0x8a:
        push_long(unsigned_number(1));
        return true;
      case 0x8b:
        push_long(unsigned_number(4));
        return true;
      case 'F':
        push_line_float();
        return true;
      case 'G':
        push_float();
        return true;
      default:
        return text_code(code);
    }
  }

  bool text_code(unsigned char code) {
    switch (code) {
      case 'S':
        push_quoted(line());
        return true;
      case 'V':
        push_text(line());
        return true;
      case 'U':
      case 'C':
      case 0x8c:
        push_text(take(unsigned_number(1)));
        return true;
      case 'T':
      case 'X':
      case 'B':
        push_text(take(unsigned_number(4)));
        return true;
      case 0x8d:
      case 0x8e:
      case 0x96:
        push_text(take(unsigned_number(8)));
        return true;
      default:
        return false;
    }
  }

  bool container_code(unsigned char code) {
    switch (code) {
      case ']':
      case ')':
      case 0x8f:
        push_container(Node::Kind::kList);
        return true;
      case '}':
        push_container(Node::Kind::kDict);
        return true;
      case 'l':
      case 't':
      case 0x91:
        push_container(Node::Kind::kList, pop_to_mark());
        return true;
      case 'd':
        push_container(Node::Kind::kDict, pop_to_mark());
        return true;
      case 0x85:
      case 0x86:
      case 0x87: {
        std::vector<NodePtr> items(static_cast<std::size_t>(code - 0x84));
        for (std::size_t i = items.size(); i-- > 0;) items[i] = pop();
        push_container(Node::Kind::kList, std::move(items));
        return true;
      }
      default:
        return filling_code(code);
    }
  }

  bool filling_code(unsigned char code) {
    if (code == 'a') {
      std::vector<NodePtr> one{pop()};
      extend(top(Node::Kind::kList), std::move(one));
    } else if (code == 'e' || code == 0x90) {
      std::vector<NodePtr> items = pop_to_mark();
      extend(top(Node::Kind::kList), std::move(items));
    } else if (code == 's') {
      NodePtr value = pop(), key = pop();
      extend(top(Node::Kind::kDict), {std::move(key), std::move(value)});
    } else if (code == 'u') {
      std::vector<NodePtr> items = pop_to_mark();
      extend(top(Node::Kind::kDict), std::move(items));
    } else {
      return false;
    }
    return true;
  }

  bool stack_code(unsigned char code) {
    switch (code) {
      case 0x80:
        if (unsigned_number(1) > 5) fail("a protocol after 5");
        return true;
      case 0x95:
        take(8);
        return true;
      case '(':
        marks_.push_back(stack_.size());
        if (marks_.size() > kMostOnStack) fail("too many values");
        return true;
      case '0':
        pop();
        return true;
      case '1':
        pop_to_mark();
        return true;
      case '2':
        if (stack_.empty()) fail("a value is missing");
        push(stack_.back());
        return true;
      default:
        return memo_code(code);
    }
  }

  std::uint64_t line_number() {
    const std::string_view text = line();
    std::uint64_t value = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || stop != text.data() + text.size()) fail("a number was expected");
    return value;
  }

  bool memo_code(unsigned char code) {
    switch (code) {
      case 'p':
        remember(line_number());
        return true;
      case 'q':
        remember(unsigned_number(1));
        return true;
      case 'r':
        remember(unsigned_number(4));
        return true;
      case 0x94:
        remember(memo_.size());
        return true;
      case 'g':
        recall(line_number());
        return true;
      case 'h':
        recall(unsigned_number(1));
        return true;
      case 'j':
        recall(unsigned_number(4));
        return true;
      default:
        return false;
    }
  }
  void remember(std::uint64_t key) {
    if (stack_.empty()) fail("a value is missing");
    memo_[key] = stack_.back();
  }
  void recall(std::uint64_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) fail("it refers to a value that is not there");
    push(found->second);
  }

  // A text of a kilobyte that is referred to a million times is a gigabyte.
  void count_text(const Node& node) {
    if (!node.scalar.is_string()) return;
    text_bytes_ += node.scalar.get_ref<const std::string&>().size();
    if (text_bytes_ > kMostTextBytes) throw damaged(name_, at_, "the data unfolds to too much text");
  }

  std::string key_of(const Node& node) {
    if (node.kind != Node::Kind::kScalar) throw damaged(name_, at_, "a key of a dictionary is not plain");
    count_text(node);
    return node.scalar.is_string() ? node.scalar.get<std::string>() : node.scalar.dump();
  }

  nlohmann::json unfold(const Node& node, int depth) {
    if (depth > kDeepest) throw damaged(name_, at_, "the data is nested too deeply");
    if (++values_ > kMostValues) throw damaged(name_, at_, "the data unfolds to too many values");
    count_text(node);
    if (node.kind == Node::Kind::kScalar) return node.scalar;
    if (node.kind == Node::Kind::kList) {
      nlohmann::json list = nlohmann::json::array();
      for (const NodePtr& item : node.items) list.push_back(unfold(*item, depth + 1));
      return list;
    }
    nlohmann::json dict = nlohmann::json::object();
    for (std::size_t i = 0; i + 1 < node.items.size(); i += 2) {
      dict[key_of(*node.items[i])] = unfold(*node.items[i + 1], depth + 1);
    }
    return dict;
  }

  std::string_view bytes_;
  const std::string& name_;
  std::size_t at_ = 0;
  std::size_t start_ = 0;                    // of this instruction
  std::size_t values_ = 0, text_bytes_ = 0;  // unfolded so far
  std::vector<NodePtr> stack_;
  std::vector<std::size_t> marks_;  // sizes of the stack
  std::unordered_map<std::uint64_t, NodePtr> memo_;
  std::vector<NodePtr> containers_;
};

}  // namespace

nlohmann::json read_pickle(std::string_view bytes, const std::string& name) { return Unpickler(bytes, name).read(); }

bool looks_like_pickle(std::string_view beginning) {
  if (beginning.size() >= 2 && beginning[0] == '\x80') return beginning[1] >= 2 && beginning[1] <= 5;
  // Protocols 0 and 1: an empty container, or a mark and then one.
  return beginning.starts_with("(d") || beginning.starts_with("(l") || beginning.starts_with("}q") ||
         beginning.starts_with("]q") || beginning.starts_with("(dp") || beginning.starts_with("(lp");
}

}  // namespace lockstep::diagnose
