#include "lockstep/serve/guard.h"

#include <arpa/inet.h>

#include "lockstep/base/secret.h"
#include "lockstep/base/text.h"

namespace lockstep::serve {
namespace {

constexpr const char* kCookie = "lockstep_token";

constexpr const char* kLoginPage = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Lockstep</title></head>
<body><main><h1>Lockstep</h1>
<form method="post" action="/login"><p><label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<button>Sign in</button></p></form>
<p>The token is in the file that <code>lockstep serve</code> named when it started.</p></main></body></html>
)";

bool is_first(const Request& request, std::string_view segment) {
  return !request.target.path.empty() && request.target.path.front() == segment;
}

bool is_program(const Request& request) { return is_first(request, "api") || is_first(request, "metrics"); }

Response login_page(int status) {
  Response page = answer_text(status, "text/html; charset=utf-8", kLoginPage);
  page.cache = "no-store";
  return page;
}

// "token=..." of a form.
std::string token_of_form(const Request& request) {
  if (request.method == "GET") return request.text("token");
  const auto form = parse_target("/?" + request.body);
  const auto found = form ? form->query.find("token") : std::map<std::string, std::string>::const_iterator();
  return form && found != form->query.end() ? found->second : std::string();
}

}  // namespace

bool is_loopback_name(const std::string& host) {
  if (host == "localhost" || host == "::1") return true;
  in_addr address{};
  return inet_pton(AF_INET, host.c_str(), &address) == 1 && (ntohl(address.s_addr) >> 24) == 127;
}

std::optional<Response> Guard::check_origin(const Request& request) const {
  const std::string_view host = request.header("host");
  const auto name = host_of_authority(host);
  if (!name) return answer_error(400, "the request names no host");
  if (options_.token.empty() && !is_loopback_name(*name)) {
    return answer_error(421, "this server answers on loopback names only; open http://localhost");
  }
  if (const std::string_view origin = request.header("origin"); !origin.empty()) {
    const auto from = authority_of_origin(origin);
    std::string own = to_lower(host);
    for (const char* usual : {":80", ":443"}) {
      if (own.ends_with(usual)) own.resize(own.size() - std::string_view(usual).size());
    }
    if (!from || *from != own) return answer_error(403, "requests of other sites are refused");
  }
  // Browsers say so even where they send no Origin. A link from elsewhere to the page itself is welcome.
  const std::string_view site = request.header("sec-fetch-site");
  if (is_program(request) && (site == "cross-site" || site == "same-site")) {
    return answer_error(403, "requests of other sites are refused");
  }
  return std::nullopt;
}

bool Guard::knows_token(const Request& request) const {
  std::string_view bearer = request.header("authorization");
  if (bearer.size() > 7 && to_lower(bearer.substr(0, 7)) == "bearer ") {
    return same_secret(trim(bearer.substr(7)), options_.token);
  }
  return same_secret(cookie(request.header("cookie"), kCookie), options_.token);
}

Response Guard::login(const Request& request) const {
  if (!same_secret(token_of_form(request), options_.token)) return login_page(403);
  Response response = answer_text(303, "text/plain; charset=utf-8", "");
  response.cache = "no-store";
  response.headers.emplace_back("Location", "/");
  response.headers.emplace_back("Set-Cookie", std::string(kCookie) + "=" + options_.token +
                                                  "; Path=/; HttpOnly; SameSite=Lax" +
                                                  (request.encrypted || options_.behind_proxy ? "; Secure" : ""));
  return response;
}

std::optional<Response> Guard::check(const Request& request) const {
  if (auto refused = check_origin(request)) return refused;
  if (options_.token.empty()) {
    if (is_first(request, "login")) return answer_error(404, "there is no such page");
    return std::nullopt;
  }
  const bool logs_in = request.target.path.size() == 1 && is_first(request, "login");
  if (logs_in && (request.method == "POST" || request.target.query.contains("token"))) return login(request);
  if (logs_in) return login_page(200);
  if (knows_token(request)) return std::nullopt;
  if (!is_program(request)) return login_page(401);
  Response refused = answer_error(401, "a token is needed");
  refused.headers.emplace_back("WWW-Authenticate", "Bearer realm=\"lockstep\"");
  return refused;
}

}  // namespace lockstep::serve
