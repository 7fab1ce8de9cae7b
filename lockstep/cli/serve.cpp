// `lockstep serve`: the page, the API and the metrics of all runs over HTTP.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/secret.h"
#include "lockstep/cli/signals.h"
#include "lockstep/cli/verbs.h"
#include "lockstep/serve/guard.h"
#include "lockstep/serve/server.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::cli {
namespace {

constexpr std::size_t kShortestToken = 16;

struct ServeFlags {
  serve::ServerOptions server;
  std::string token_file, certificate, key, page;
  bool json = false;
};

// Where a token is needed and no file is named, one in the home folder is made.
void find_token(ServeFlags& flags) {
  if (flags.token_file.empty() && !serve::is_loopback_name(flags.server.host)) {
    flags.token_file = (flags.server.home / "serve-token").string();
  }
  if (flags.token_file.empty()) return;
  flags.server.token = secret_in_file(flags.token_file, "give another --token-file", kShortestToken);
}

void announce(const ServeFlags& flags, const serve::Server& server) {
  if (flags.json) {
    nlohmann::json line = {{"schema", "lockstep.serve/1"}, {"url", server.url()}, {"port", server.port()}};
    line["token_file"] = flags.token_file.empty() ? nlohmann::json() : nlohmann::json(flags.token_file);
    fmt::print("{}\n", line.dump());
  } else {
    fmt::print("Lockstep is on {}  (Ctrl-C ends it)\n", server.url());
    if (!flags.token_file.empty()) fmt::print("Sign in with the token in {}\n", flags.token_file);
    if (serve::is_loopback_name(flags.server.host)) {
      fmt::print("From another machine: ssh -L {0}:localhost:{0} {1}\n", server.port(), telemetry::host_name());
    }
  }
  std::fflush(stdout);
}

int serve_until_stopped(ServeFlags& flags) {
  flags.server.home = telemetry::home_directory();
  flags.server.tls_certificate = flags.certificate;
  flags.server.tls_key = flags.key;
  flags.server.page = flags.page;
  find_token(flags);
  survive_closed_pipes();
  count_stop_signals(SecondSignal::kExits);
  const std::unique_ptr<serve::Server> server = serve::make_server(flags.server);
  announce(flags, *server);
  server->run([] { return stop_signals() > 0; });
  return 0;
}

}  // namespace

void add_serve(CLI::App& app, Outcome& outcome) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* verb = app.add_subcommand("serve", "Shows all runs on a live page in the browser");
  verb->add_option("--port", flags->server.port, "Port; 0: any that is free")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  verb->add_option("--host", flags->server.host, "Address to listen on; beyond loopback a token and TLS are needed")
      ->capture_default_str();
  verb->add_option("--token-file", flags->token_file,
                   "File with the token that everybody must show; made if it is missing");
  verb->add_option("--tls-cert", flags->certificate, "Certificate chain, PEM");
  verb->add_option("--tls-key", flags->key, "Its key, PEM");
  verb->add_flag("--behind-proxy", flags->server.behind_proxy,
                 "A proxy in front of this server does the encryption (docs/reference/http-api.md)");
  verb->add_option("--page", flags->page, "Folder of a built page to serve instead of the one inside this program");
  verb->add_option("--dcgm", flags->server.dcgm_url,
                   "URL of a DCGM exporter whose fields the cluster page shows (http://host:9400/metrics)");
  verb->add_flag("--json", flags->json, "One line of JSON on stdout when it is ready (lockstep.serve/1)");
  set_examples(*verb,
               "  lockstep serve\n  lockstep serve --port 0 --json\n"
               "  lockstep serve --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem");
  verb->callback([flags, &outcome] {
    outcome.json = flags->json;
    outcome.exit_code = serve_until_stopped(*flags);
  });
}

}  // namespace lockstep::cli
