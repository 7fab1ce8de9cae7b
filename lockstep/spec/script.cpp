#include "lockstep/spec/script.h"

#include <fmt/format.h>

#include <fstream>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"

namespace lockstep::spec {
namespace {

using nlohmann::json;

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

json to_json(const ScriptUnit& unit) {
  return {{"name", unit.name},
          {"parameters", unit.parameters},
          {"entering", unit.entering},
          {"entering_bytes", unit.entering_bytes},
          {"saved_bytes", unit.saved_bytes},
          {"share", unit.share}};
}

ScriptUnit read_unit(const JsonReader& reader) {
  ScriptUnit unit;
  unit.name = reader.text("name");
  unit.parameters = reader.integer("parameters", 0);
  unit.entering = reader.integers("entering");
  unit.entering_bytes = reader.non_negative("entering_bytes");
  unit.saved_bytes = reader.non_negative("saved_bytes");
  unit.share = reader.non_negative("share");
  reader.finish();
  return unit;
}

ScriptProduct read_product(const JsonReader& reader) {
  const ScriptProduct product{reader.positive("count"), reader.positive("m"), reader.positive("n"),
                              reader.positive("k")};
  reader.finish();
  return product;
}

}  // namespace

std::string digest_text(std::uint64_t bytes, std::uint32_t crc) {
  return fmt::format("{} bytes, crc32c {:08x}", bytes, crc);
}

std::string script_digest(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw environment_error(fmt::format("the module {} cannot be read", printable(path)),
                            "save one with torch.jit.script(model).save(FILE)");
  }
  std::vector<char> piece(kPieceBytes);
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;
  while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())) || file.gcount() > 0) {
    const auto count = static_cast<std::size_t>(file.gcount());
    crc = crc32c(piece.data(), count, crc);
    bytes += count;
  }
  return digest_text(bytes, crc);
}

std::string to_text(const ScriptFacts& facts) {
  json units = json::array(), products = json::array();
  for (const ScriptUnit& unit : facts.units) units.push_back(to_json(unit));
  for (const ScriptProduct& product : facts.products) {
    products.push_back({{"count", product.count}, {"m", product.m}, {"n", product.n}, {"k", product.k}});
  }
  return json{{"parameters", facts.parameters},
              {"frozen", facts.frozen},
              {"buffer_bytes", facts.buffer_bytes},
              {"draws", facts.draws},
              {"updates", facts.updates},
              {"shares", facts.shares},
              {"counts_targets", facts.counts_targets},
              {"units", units},
              {"aliases", facts.aliases},
              {"products", products},
              {"pointwise_elements", facts.pointwise_elements},
              {"base_seconds", facts.base_seconds},
              {"sample_seconds", facts.sample_seconds},
              {"forward_share", facts.forward_share},
              {"threads", facts.threads}}
      .dump();
}

ScriptFacts script_facts(const std::string& text, const std::string& name) {
  const json value = parse_json(text, name);
  const JsonReader reader(value, name);
  ScriptFacts facts;
  facts.parameters = reader.integer("parameters", 0);
  facts.frozen = reader.integer("frozen", 0);
  facts.buffer_bytes = reader.non_negative("buffer_bytes");
  facts.draws = reader.boolean("draws");
  facts.updates = reader.boolean("updates");
  facts.shares = reader.boolean("shares");
  facts.counts_targets = reader.boolean("counts_targets");
  for (const JsonReader& unit : reader.objects("units")) facts.units.push_back(read_unit(unit));
  const JsonReader aliases = reader.object("aliases");
  for (const auto& [alias, saved] : aliases.value().items()) facts.aliases[alias] = aliases.text(alias);
  for (const JsonReader& product : reader.objects("products")) facts.products.push_back(read_product(product));
  facts.pointwise_elements = reader.non_negative("pointwise_elements");
  facts.base_seconds = reader.non_negative("base_seconds");
  facts.sample_seconds = reader.non_negative("sample_seconds");
  facts.forward_share = reader.non_negative("forward_share");
  facts.threads = reader.integer("threads", 0);
  reader.finish();
  return facts;
}

}  // namespace lockstep::spec
