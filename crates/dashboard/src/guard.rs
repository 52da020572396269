//! Which requests are answered.
//!
//! A page of another origin can make a browser send requests here, and can point a name of its own
//! at this host (DNS rebinding). So a request needs a host that is no foreign name, no sign of
//! another site, and the token or the cookie that the page set.

use crate::token::Token;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Uri, header};
use std::net::IpAddr;

/// Headers in which browsers say where a request comes from and what for.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FETCH_DESTINATION: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// Longest target of a request.
pub const MAX_TARGET_BYTES: usize = 2048;

/// Rules of a server for requests.
#[derive(Clone, Debug)]
pub struct Guard {
    token: Token,
    /// Name of the cookie, which has the port: cookies of one host are shared by all its ports.
    cookie: String,
    /// Host name in the address to listen on, if it is one.
    own_name: Option<String>,
}

/// A refused request: status and one line.
pub type Refusal = (StatusCode, &'static str);

/// An accepted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Whether the target is the page with the token, so that a cookie is set.
    pub opens_page: bool,
}

impl Guard {
    /// Guard of a server at an address to listen on, with its actual port.
    pub fn new(token: Token, listen: &str, port: u16) -> Self {
        let name = host_of(listen).to_owned();
        let own_name = name.parse::<IpAddr>().is_err().then_some(name);
        Self { token, cookie: format!("lockstep-{port}"), own_name }
    }

    /// The `Set-Cookie` header that lets a browser in without the token in every target.
    pub fn set_cookie(&self) -> String {
        let Self { cookie, token, .. } = self;
        format!("{cookie}={}; Path=/; HttpOnly; SameSite=Strict", token.as_str())
    }

    /// Accepts or refuses a request.
    pub fn check(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Accepted, Refusal> {
        if method != Method::GET {
            return Err((StatusCode::METHOD_NOT_ALLOWED, "only GET\n"));
        }
        let target = uri.path_and_query().map_or(0, |target| target.as_str().len());
        if target > MAX_TARGET_BYTES {
            return Err((StatusCode::URI_TOO_LONG, "the target is too long\n"));
        }
        let has_body = headers.contains_key(header::TRANSFER_ENCODING)
            || text(headers, header::CONTENT_LENGTH).is_some_and(|len| len != "0");
        if has_body {
            return Err((StatusCode::PAYLOAD_TOO_LARGE, "a request has no body\n"));
        }
        let Some(host) = single(headers, header::HOST) else {
            return Err((StatusCode::BAD_REQUEST, "a request has one Host\n"));
        };
        if !self.is_own(host) {
            let line = "this host has another name; use its address, or localhost\n";
            return Err((StatusCode::MISDIRECTED_REQUEST, line));
        }
        let query = uri.query().unwrap_or_default();
        let is_page = uri.path() == "/";
        let is_for_scripts = uri.path().starts_with("/api/");
        let has_token = (is_page || is_for_scripts)
            && parameter(query, "token").is_some_and(|token| self.token.is(token));
        if !is_same_site(headers, host, has_token && is_page) {
            return Err((StatusCode::FORBIDDEN, "requests of other sites are refused\n"));
        }
        if has_token || self.has_bearer(headers) || self.has_cookie(headers) {
            return Ok(Accepted { opens_page: has_token && is_page });
        }
        let line = "open the address that the command printed: it ends with ?token=...; scripts \
                    send the token with each request, as ?token=... or Authorization: Bearer ...\n";
        Err((StatusCode::UNAUTHORIZED, line))
    }

    /// Whether a host is ours: an address, `localhost` or the name that was listened on. Another
    /// name could be that of a page which was made to resolve to this host.
    fn is_own(&self, host: &str) -> bool {
        let name = host_of(host);
        name.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.own_name.as_ref().is_some_and(|own| own.eq_ignore_ascii_case(name))
    }

    /// Whether the header for scripts has the token. A page of another site cannot send it.
    fn has_bearer(&self, headers: &HeaderMap) -> bool {
        let token =
            single(headers, header::AUTHORIZATION).and_then(|it| it.strip_prefix("Bearer "));
        token.is_some_and(|token| self.token.is(token))
    }

    fn has_cookie(&self, headers: &HeaderMap) -> bool {
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|it| it.to_str().ok());
        let mut pairs = cookies.flat_map(|line| line.split(';')).map(str::trim);
        pairs.any(|pair| {
            let value = pair.strip_prefix(self.cookie.as_str());
            value.and_then(|rest| rest.strip_prefix('=')).is_some_and(|value| self.token.is(value))
        })
    }
}

/// Whether a request is no other site's doing. A link with the token may be followed from anywhere:
/// whoever has written it has the token.
fn is_same_site(headers: &HeaderMap, host: &str, has_token: bool) -> bool {
    let site = text(headers, FETCH_SITE);
    let is_page = text(headers, FETCH_DESTINATION) == Some("document");
    let is_own_site = match site {
        None | Some("same-origin" | "none") => true,
        Some(_) => has_token && is_page,
    };
    let origin = text(headers, header::ORIGIN);
    let has_own_origin = origin.is_none_or(|origin| {
        origin.strip_prefix("http://").is_some_and(|origin| origin.eq_ignore_ascii_case(host))
    });
    is_own_site && has_own_origin
}

/// Host without the port and without the brackets of an IPv6 address.
fn host_of(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    match authority.split_once(':') {
        // Several colons without brackets: an address without port.
        Some((_, rest)) if rest.contains(':') => authority,
        Some((host, _)) => host,
        None => authority,
    }
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}

fn single(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(first)
}

/// Value of a parameter of a query. Ours need no escapes.
pub fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard() -> (Guard, String) {
        let world = lockstep_platform::real();
        let token = Token::random(world.entropy());
        let text = token.as_str().to_owned();
        (Guard::new(token, "127.0.0.1:0", 8080), text)
    }

    fn status(guard: &Guard, method: &str, target: &str, headers: &[(&str, &str)]) -> u16 {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name.parse::<HeaderName>().unwrap(), value.parse().expect("a header value"));
        }
        let method = method.parse().unwrap();
        guard
            .check(&method, &target.parse().unwrap(), &map)
            .map_or_else(|(status, _)| status.as_u16(), |_| 200)
    }

    #[test]
    fn token_or_cookie_let_in_and_nothing_else_does() {
        let (guard, token) = guard();
        let host = ("host", "127.0.0.1:8080");
        let with = |target: &str, more: &[(&str, &str)]| {
            let headers: Vec<_> = [host].iter().chain(more).copied().collect();
            status(&guard, "GET", target, &headers)
        };
        let cookie = format!("a=b; lockstep-8080={token}");
        assert_eq!(with(&format!("/?token={token}"), &[]), 200);
        assert_eq!(with("/api/runs", &[("cookie", &cookie)]), 200);
        assert_eq!(with("/", &[]), 401);
        assert_eq!(with("/?token=", &[]), 401);
        assert_eq!(with(&format!("/?token={}0", &token[1..]), &[]), 401);
        // Scripts have no cookie.
        assert_eq!(with(&format!("/api/runs?token={token}"), &[]), 200);
        assert_eq!(with(&format!("/api/runs?token={}0", &token[1..]), &[]), 401);
        assert_eq!(with(&format!("/style.css?token={token}"), &[]), 401);
        let bearer = format!("Bearer {token}");
        assert_eq!(with("/api/runs", &[("authorization", &bearer)]), 200);
        assert_eq!(with("/api/runs", &[("authorization", &token)]), 401);
        assert_eq!(with("/api/runs", &[("authorization", "Bearer ")]), 401);
        assert_eq!(with("/api/runs", &[("authorization", &bearer), ("authorization", "x")]), 401);
        let other_port = format!("lockstep-8081={token}");
        assert_eq!(with("/", &[("cookie", &other_port)]), 401);
        assert_eq!(with("/", &[("cookie", "lockstep-8080=")]), 401);
    }

    #[test]
    fn foreign_names_sites_and_methods_are_refused() {
        let (guard, token) = guard();
        let cookie = format!("lockstep-8080={token}");
        let with = |host: &str, more: &[(&str, &str)]| {
            let headers: Vec<_> =
                [("host", host), ("cookie", &cookie)].iter().chain(more).copied().collect();
            status(&guard, "GET", "/api/runs", &headers)
        };
        for host in ["localhost:8080", "LOCALHOST", "127.0.0.1", "[::1]:8080", "10.1.2.3:80"] {
            assert_eq!(with(host, &[]), 200, "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:8080", "127.0.0.1.evil.example", ""] {
            assert_eq!(with(host, &[]), 421, "{host}");
        }
        let own = "127.0.0.1:8080";
        assert_eq!(with(own, &[("host", "127.0.0.1")]), 400, "two hosts");
        assert_eq!(status(&guard, "GET", "/", &[("cookie", &cookie)]), 400, "no host");
        assert_eq!(with(own, &[("sec-fetch-site", "same-origin")]), 200);
        for site in ["cross-site", "same-site", "?"] {
            assert_eq!(with(own, &[("sec-fetch-site", site)]), 403, "{site}");
        }
        assert_eq!(with(own, &[("origin", "http://127.0.0.1:8080")]), 200);
        for origin in ["http://evil.example", "null", "https://127.0.0.1:8080", "http://127.0.0.1"]
        {
            assert_eq!(with(own, &[("origin", origin)]), 403, "{origin}");
        }
        assert_eq!(with(own, &[("content-length", "5")]), 413);
        assert_eq!(with(own, &[("transfer-encoding", "chunked")]), 413);
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "HEAD", "CONNECT", "X"] {
            let headers = [("host", own), ("cookie", cookie.as_str())];
            assert_eq!(status(&guard, method, "/", &headers), 405, "{method}");
        }
        let long = format!("/{}", "a".repeat(MAX_TARGET_BYTES));
        assert_eq!(status(&guard, "GET", &long, &[("host", own), ("cookie", &cookie)]), 414);
    }

    #[test]
    fn a_link_with_the_token_may_be_followed_from_another_page_but_not_embedded() {
        let (guard, token) = guard();
        let with = |destination: &str| {
            let headers = [
                ("host", "127.0.0.1:8080"),
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-dest", destination),
            ];
            status(&guard, "GET", &format!("/?token={token}"), &headers)
        };
        assert_eq!((with("document"), with("iframe"), with("empty")), (200, 403, 403));
        let headers = [
            ("host", "127.0.0.1:8080"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-dest", "document"),
        ];
        assert_eq!(status(&guard, "GET", &format!("/api/runs?token={token}"), &headers), 403);
    }

    #[test]
    fn a_name_that_was_listened_on_is_our_own() {
        let (_, token) = guard();
        let world = lockstep_platform::real();
        let guard = Guard::new(Token::random(world.entropy()), "node7.cluster:8080", 8080);
        assert!(guard.is_own("node7.cluster:8080") && !guard.is_own("node8.cluster:8080"));
        assert_ne!(guard.token.as_str(), token);
    }
}
